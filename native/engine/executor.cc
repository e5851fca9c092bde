#include "engine/executor.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "algorithms/adasum.h"
#include "algorithms/hierarchical.h"
#include "algorithms/int8/stream.h"
#include "algorithms/shared.h"
#include "algorithms/streams/list.h"
#include "algorithms/streams/stream.h"
#include "base/dtype.h"
#include "base/rows.h"

namespace spark_estimator {
namespace {

// Scratch beyond this is freed after use, so that one huge tensor does not hold memory for ever.
constexpr size_t kKeptScratchBytes = size_t{16} << 20;

// A narrow integer's sum may not fit although its average does.
bool NeedsWidening(int32_t reduce_op, int32_t dtype) {
  return reduce_op == SE_AVERAGE && IsInteger(dtype) && dtype != SE_INT64;
}

size_t RowBytes(const Part& part) {
  size_t bytes = DtypeBytes(part.dtype);
  for (size_t i = 1; i < part.dims.size(); ++i) bytes *= static_cast<size_t>(part.dims[i]);
  return bytes;
}

Finish FinishOf(const Signature& signature, int size) {
  Finish finish;
  finish.factor = signature.postscale;
  if (signature.reduce_op == SE_AVERAGE) finish.divisor = size;
  return finish;
}

int32_t Reduction(const Signature& signature) {
  return signature.reduce_op == SE_AVERAGE ? SE_SUM : signature.reduce_op;
}

// Calls visit(memory, part) for each tensor of `dtype` of the requests, in order.
template <typename Visit>
void ForEachOf(const std::vector<RequestPtr>& requests, int32_t dtype, Visit visit) {
  for (const RequestPtr& request : requests) {
    for (size_t i = 0; i < request->memory.size(); ++i) {
      const Part& part = request->signature->parts[i];
      if (part.dtype == dtype) visit(request->memory[i], part);
    }
  }
}

}  // namespace

Executor::Executor(StreamGroup* streams, SharedGroup* local, const Hosts* hosts, const Tuning* tuning, int cores,
                   Counters* counters)
    : streams_(streams),
      local_(local),
      shared_(local != nullptr && local->size == streams->size() ? local : nullptr),
      hosts_(hosts),
      tuning_(tuning),
      cores_(cores),
      counters_(counters) {}

Status Executor::Scratch(size_t bytes, uint8_t** memory) {
  if (bytes > scratch_bytes_ || scratch_bytes_ > kKeptScratchBytes) {
    scratch_.reset();
    scratch_bytes_ = 0;
    SE_RETURN_IF_ERROR(AllocateMemory(bytes, &scratch_));
    scratch_bytes_ = bytes;
  }
  *memory = static_cast<uint8_t*>(scratch_.get());
  return Status::Ok();
}

Status Executor::Place(const TensorMemory& memory, size_t bytes, Gathered* gathered) {
  gathered->bytes = static_cast<int64_t>(bytes);
  if (memory.output != nullptr && static_cast<size_t>(memory.output_bytes) >= bytes) {
    gathered->data = memory.output;
    return Status::Ok();
  }
  SE_RETURN_IF_ERROR(AllocateMemory(bytes, &gathered->owned));
  gathered->data = gathered->owned.get();
  return Status::Ok();
}

Status Executor::Run(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows) {
  Increase(counters_->operations);
  if (requests.size() > 1) Increase(counters_->fused_requests, static_cast<int64_t>(requests.size()));
  moved_before_ = streams_->bytes_moved();
  algorithm_ = "LOCAL";
  Status status;
  Request& first = *requests[0];
  const size_t parts = first.signature->parts.size();
  switch (first.signature->op) {
    case SE_ALLREDUCE:
      status = Allreduce(requests);
      break;
    case SE_ALLGATHER:
      first.gathered.resize(parts);
      for (size_t part = 0; part < parts && status.ok(); ++part) {
        status = Allgather(first, part, rows.data() + part * static_cast<size_t>(streams_->size()));
      }
      break;
    case SE_REDUCESCATTER:
      for (size_t part = 0; part < parts && status.ok(); ++part) status = Reducescatter(first, part);
      break;
    case SE_ALLTOALL:
      first.gathered.resize(parts);
      status = Alltoall(first, rows);
      break;
    case SE_BROADCAST:
      status = Broadcast(first);
      break;
    default:
      status = Barrier();
  }
  Increase(counters_->stream_bytes, bytes_moved());
  return status;
}

Status Executor::Allreduce(const std::vector<RequestPtr>& requests) {
  // Dtypes in the order of their first tensor: the same on all ranks.
  std::vector<int32_t> dtypes;
  for (const RequestPtr& request : requests) {
    for (const Part& part : request->signature->parts) {
      if (std::find(dtypes.begin(), dtypes.end(), part.dtype) == dtypes.end()) dtypes.push_back(part.dtype);
    }
  }
  for (const int32_t dtype : dtypes) SE_RETURN_IF_ERROR(AllreduceOfDtype(requests, dtype));
  return Status::Ok();
}

Status Executor::AllreduceOfDtype(const std::vector<RequestPtr>& requests, int32_t dtype) {
  const Signature& signature = *requests[0]->signature;
  if (signature.reduce_op == SE_ADASUM) return Adasum(requests, dtype);
  const Finish finish = FinishOf(signature, streams_->size());
  if (NeedsWidening(signature.reduce_op, dtype)) return AllreduceWidened(requests, dtype, finish);
  if (dtype == SE_FLOAT32) {
    bool reduced = false;
    SE_RETURN_IF_ERROR(AllreduceAsInt8(requests, finish, &reduced));
    if (reduced) return Status::Ok();
  }
  BufferList buffers;
  ForEachOf(requests, dtype, [&](const TensorMemory& memory, const Part& part) {
    const void* input = memory.input;
    const auto count = static_cast<size_t>(part.Elements());
    if (signature.prescale != 1.0 && count > 0) {
      GetKernels().finish(dtype, memory.output, input, count, Finish{signature.prescale, 1});
      input = memory.output;
    }
    buffers.Add(input, memory.output, count * DtypeBytes(dtype));
  });
  return Reduce(buffers, dtype, Reduction(signature), finish);
}

Status Executor::AllreduceAsInt8(const std::vector<RequestPtr>& requests, Finish finish, bool* reduced) {
  std::vector<Int8Part> parts;
  size_t count = 0;
  bool int8 = false;
  ForEachOf(requests, SE_FLOAT32, [&](const TensorMemory& memory, const Part& part) {
    const auto elements = static_cast<size_t>(part.Elements());
    parts.push_back({static_cast<const float*>(memory.input), static_cast<float*>(memory.output), memory.residue,
                     elements, !part.int8});
    count += elements;
    int8 = int8 || part.int8;
  });
  Situation situation = SituationOf(count * sizeof(float), SE_FLOAT32);
  situation.int8 = int8;
  const AllreduceAlgorithm algorithm = ChooseAllreduce(situation);
  *reduced = algorithm == AllreduceAlgorithm::kInt8 || algorithm == AllreduceAlgorithm::kHierarchicalInt8;
  if (!*reduced) return Status::Ok();
  algorithm_ = Name(algorithm);
  in_arenas_.clear();
  const auto prescale = static_cast<float>(requests[0]->signature->prescale);
  if (algorithm == AllreduceAlgorithm::kInt8) return Int8Allreduce(*streams_, parts, prescale, finish);
  Increase(counters_->shared_bytes, static_cast<int64_t>(count * sizeof(float)));
  return HierarchicalInt8Allreduce(*local_, *streams_, *hosts_, parts, prescale, finish, *tuning_);
}

Status Executor::Adasum(const std::vector<RequestPtr>& requests, int32_t dtype) {
  const Signature& signature = *requests[0]->signature;
  std::vector<AdasumPart> parts;
  ForEachOf(requests, dtype, [&](const TensorMemory& memory, const Part& part) {
    parts.push_back({memory.input, memory.output, static_cast<size_t>(part.Elements())});
  });
  algorithm_ = "ADASUM";
  return AdasumAllreduce(*streams_, parts, dtype, signature.prescale, signature.postscale);
}

Status Executor::AllreduceWidened(const std::vector<RequestPtr>& requests, int32_t dtype, Finish finish) {
  const Signature& signature = *requests[0]->signature;
  const Kernels& kernels = GetKernels();
  size_t count = 0;
  ForEachOf(requests, dtype,
            [&](const TensorMemory&, const Part& part) { count += static_cast<size_t>(part.Elements()); });
  // Separate memory: Reduce may use the scratch.
  Memory memory;
  SE_RETURN_IF_ERROR(AllocateMemory(count * sizeof(int64_t), &memory));
  auto* wide = static_cast<int64_t*>(memory.get());
  size_t start = 0;
  ForEachOf(requests, dtype, [&](const TensorMemory& tensor, const Part& part) {
    const auto n = static_cast<size_t>(part.Elements());
    if (n > 0) kernels.widen(dtype, wide + start, tensor.input, n);
    start += n;
  });
  if (signature.prescale != 1.0) kernels.finish(SE_INT64, wide, wide, count, Finish{signature.prescale, 1});
  BufferList buffers;
  buffers.Add(wide, wide, count * sizeof(int64_t));
  SE_RETURN_IF_ERROR(Reduce(buffers, SE_INT64, SE_SUM, finish));
  start = 0;
  ForEachOf(requests, dtype, [&](const TensorMemory& tensor, const Part& part) {
    const auto n = static_cast<size_t>(part.Elements());
    if (n > 0) kernels.narrow(dtype, tensor.output, wide + start, n);
    start += n;
  });
  return Status::Ok();
}

Status Executor::Reduce(const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish) {
  const size_t bytes = buffers.total_bytes();
  const size_t element = DtypeBytes(dtype);
  if (bytes == 0) return Status::Ok();
  if (streams_->size() == 1) {
    for (const BufferPart& part : buffers.parts()) {
      if (!finish.nothing()) {
        GetKernels().finish(dtype, part.output, part.input, part.bytes / element, finish);
      } else if (part.output != part.input) {
        std::memcpy(part.output, part.input, part.bytes);
      }
    }
    return Status::Ok();
  }
  Situation situation = SituationOf(bytes, dtype);
  const std::vector<uint8_t*> in_arenas = std::exchange(in_arenas_, {});
  situation.in_arena = !in_arenas.empty();
  const AllreduceAlgorithm algorithm = ChooseAllreduce(situation);
  algorithm_ = Name(algorithm);
  if (local_ != nullptr) Increase(counters_->shared_bytes, static_cast<int64_t>(bytes));
  switch (algorithm) {
    case AllreduceAlgorithm::kSharedInArena:
      return SymmetricAllreduce(*shared_, in_arenas, bytes, dtype, reduce_op, finish);
    case AllreduceAlgorithm::kSharedOneShot:
    case AllreduceAlgorithm::kSharedPipeline:
      return SharedAllreduce(*shared_, buffers, dtype, reduce_op, finish);
    case AllreduceAlgorithm::kHierarchical:
      return HierarchicalAllreduce(*local_, *streams_, *hosts_, buffers, dtype, reduce_op, finish, *tuning_);
    default:
      break;
  }
  if (buffers.parts().size() == 1) {
    const BufferPart& part = buffers.parts()[0];
    return StreamAllreduce(*streams_, algorithm, part.input, part.output, bytes / element, dtype, reduce_op, finish);
  }
  const bool is_long_direct = algorithm == AllreduceAlgorithm::kDirect && bytes >= tuning_->ring_bytes;
  if (algorithm == AllreduceAlgorithm::kRing || is_long_direct) {
    return StreamListAllreduce(*streams_, algorithm, buffers, dtype, reduce_op, finish);
  }
  uint8_t* joined = nullptr;
  SE_RETURN_IF_ERROR(Scratch(bytes, &joined));
  buffers.ForEach(0, bytes, [&](const uint8_t* input, uint8_t*, size_t offset, size_t piece) {
    std::memcpy(joined + offset, input, piece);
  });
  SE_RETURN_IF_ERROR(StreamAllreduce(*streams_, algorithm, joined, joined, bytes / element, dtype, reduce_op, finish));
  buffers.ForEach(0, bytes, [&](const uint8_t*, uint8_t* output, size_t offset, size_t piece) {
    std::memcpy(output, joined + offset, piece);
  });
  return Status::Ok();
}

Situation Executor::SituationOf(size_t bytes, int32_t dtype) const {
  Situation situation;
  situation.bytes = bytes;
  situation.ranks = streams_->size();
  situation.hosts = hosts_->count();
  situation.ranks_per_host = hosts_->ranks_per_host();
  situation.hosts_in_rank_order = hosts_->in_rank_order();
  situation.shared = shared_ != nullptr;
  situation.cores = cores_;
  situation.dtype = dtype;
  situation.tuning = *tuning_;
  return situation;
}

std::string Executor::DescribeChoices() const {
  std::string text;
  const auto describe = [&](const char* op, auto choose) {
    const char* last = "";
    for (size_t bytes = 4; bytes <= size_t{1} << 30; bytes *= 2) {
      const char* name = Name(choose(SituationOf(bytes, SE_FLOAT32)));
      if (std::string(name) == last) continue;
      text += std::string(op) + " from " + std::to_string(bytes) + " bytes: " + name + "\n";
      last = name;
    }
  };
  describe("allreduce", ChooseAllreduce);
  describe("broadcast", ChooseBroadcast);
  describe("allgather", ChooseAllgather);
  const auto always = [&](const char* op, const char* name) { text += std::string(op) + ": " + name + "\n"; };
  const bool alone = streams_->size() == 1;
  const char* pipelined = alone ? Name(AllgatherAlgorithm::kAlone) : Name(AllgatherAlgorithm::kShared);
  const bool inside = alone || shared_ != nullptr;
  const bool by_hosts = ReducescatterByHosts(SituationOf(size_t{1} << 20, SE_FLOAT32));
  always("reducescatter", inside ? pipelined : by_hosts ? "hierarchical (16-bit types: direct)" : "direct");
  always("alltoall", inside ? pipelined : "pairwise");
  always("adasum", alone ? pipelined : "recursive halving over streams");
  return text;
}

Status Executor::PlaceRows(Request& request, size_t part, const int64_t* rows, std::vector<size_t>* bytes_of) {
  const size_t row_bytes = RowBytes(request.signature->parts[part]);
  size_t total = 0;
  for (int rank = 0; rank < streams_->size(); ++rank) {
    bytes_of->push_back(static_cast<size_t>(rows[rank]) * row_bytes);
    total += bytes_of->back();
  }
  Gathered& gathered = request.gathered[part];
  SE_RETURN_IF_ERROR(Place(request.memory[part], total, &gathered));
  gathered.rows.assign(rows, rows + streams_->size());
  return Status::Ok();
}

Status Executor::Allgather(Request& request, size_t part, const int64_t* rows) {
  std::vector<size_t> bytes_of;
  SE_RETURN_IF_ERROR(PlaceRows(request, part, rows, &bytes_of));
  const Gathered& gathered = request.gathered[part];
  if (gathered.bytes == 0) return Status::Ok();
  const void* input = request.memory[part].input;
  if (streams_->size() > 1 && shared_ != nullptr) {
    Increase(counters_->shared_bytes, gathered.bytes);
    algorithm_ = Name(AllgatherAlgorithm::kShared);
    return SharedAllgather(*shared_, input, bytes_of, gathered.data);
  }
  const AllgatherAlgorithm algorithm =
      ChooseAllgather(SituationOf(static_cast<size_t>(gathered.bytes), request.signature->parts[part].dtype));
  algorithm_ = Name(algorithm);
  if (algorithm == AllgatherAlgorithm::kHierarchical) {
    Increase(counters_->shared_bytes, gathered.bytes);
    return HierarchicalAllgather(*local_, *streams_, *hosts_, input, bytes_of, gathered.data);
  }
  return StreamAllgather(*streams_, algorithm, input, bytes_of, gathered.data);
}

Status Executor::Alltoall(Request& request, const std::vector<int64_t>& rows) {
  const auto size = static_cast<size_t>(streams_->size());
  const auto me = static_cast<size_t>(streams_->rank());
  const size_t row_bytes = RowBytes(request.signature->parts[0]);
  std::vector<size_t> send_bytes;
  std::vector<size_t> receive_bytes;
  Gathered& gathered = request.gathered[0];
  size_t total = 0;
  size_t largest = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    send_bytes.push_back(static_cast<size_t>(rows[me * size + rank]) * row_bytes);
    receive_bytes.push_back(static_cast<size_t>(rows[rank * size + me]) * row_bytes);
    gathered.rows.push_back(rows[rank * size + me]);
    total += receive_bytes.back();
  }
  for (const int64_t split : rows) largest = std::max(largest, static_cast<size_t>(split) * row_bytes);
  SE_RETURN_IF_ERROR(Place(request.memory[0], total, &gathered));
  if (largest == 0) return Status::Ok();
  const void* input = request.memory[0].input;
  if (size == 1) {
    std::memcpy(gathered.data, input, total);
    return Status::Ok();
  }
  if (shared_ != nullptr) {
    Increase(counters_->shared_bytes, static_cast<int64_t>(total));
    algorithm_ = "SHARED_ALLTOALL";
    return SharedAlltoall(*shared_, input, send_bytes, receive_bytes, largest, gathered.data);
  }
  algorithm_ = "PAIRWISE_ALLTOALL";
  return StreamAlltoall(*streams_, input, send_bytes, gathered.data, receive_bytes);
}

Status Executor::Reducescatter(Request& request, size_t part_index) {
  const Signature& signature = *request.signature;
  const Part& part = signature.parts[part_index];
  const TensorMemory& memory = request.memory[part_index];
  const auto count = static_cast<size_t>(part.Elements());
  if (count == 0) return Status::Ok();
  int32_t dtype = part.dtype;
  size_t row_bytes = RowBytes(part);
  const Finish finish = FinishOf(signature, streams_->size());
  const void* input = memory.input;
  void* output = memory.output;
  const Kernels& kernels = GetKernels();
  const int64_t own_rows = RowsOf(part.dims[0], streams_->rank(), streams_->size());
  const auto own_count = static_cast<size_t>(own_rows) * row_bytes / DtypeBytes(dtype);
  // The input must not be changed: scaled or widened values are written to separate memory.
  Memory changed;
  Memory reduced;
  const bool widen = NeedsWidening(signature.reduce_op, dtype);
  if (widen || signature.prescale != 1.0) {
    SE_RETURN_IF_ERROR(AllocateMemory(count * (widen ? sizeof(int64_t) : DtypeBytes(dtype)), &changed));
    if (widen) {
      kernels.widen(dtype, static_cast<int64_t*>(changed.get()), input, count);
      SE_RETURN_IF_ERROR(AllocateMemory(own_count * sizeof(int64_t), &reduced));
      output = reduced.get();
      row_bytes = row_bytes / DtypeBytes(dtype) * sizeof(int64_t);
      dtype = SE_INT64;
      input = changed.get();
    }
    if (signature.prescale != 1.0) {
      kernels.finish(dtype, changed.get(), input, count, Finish{signature.prescale, 1});
      input = changed.get();
    }
  }
  std::vector<size_t> bytes_of;
  for (int rank = 0; rank < streams_->size(); ++rank) {
    bytes_of.push_back(static_cast<size_t>(RowsOf(part.dims[0], rank, streams_->size())) * row_bytes);
  }
  Status status;
  if (streams_->size() == 1) {
    kernels.finish(dtype, output, input, count, finish);
  } else if (shared_ != nullptr) {
    Increase(counters_->shared_bytes, static_cast<int64_t>(count * DtypeBytes(dtype)));
    algorithm_ = "SHARED_REDUCESCATTER";
    status = SharedReducescatter(*shared_, input, bytes_of, output, dtype, Reduction(signature), finish);
  } else if (ReducescatterByHosts(SituationOf(count * DtypeBytes(dtype), dtype))) {
    Increase(counters_->shared_bytes, static_cast<int64_t>(count * DtypeBytes(dtype)));
    algorithm_ = "HIERARCHICAL_REDUCESCATTER";
    status = HierarchicalReducescatter(*local_, *streams_, *hosts_, input, bytes_of, output, dtype,
                                       Reduction(signature), finish);
  } else {
    algorithm_ = "STREAM_REDUCESCATTER";
    status = StreamReducescatter(*streams_, input, bytes_of, output, dtype, Reduction(signature), finish);
  }
  if (status.ok() && widen && own_count > 0) {
    kernels.narrow(part.dtype, memory.output, static_cast<const int64_t*>(output), own_count);
  }
  return status;
}

Status Executor::Broadcast(Request& request) {
  const TensorMemory& memory = request.memory[0];
  const auto bytes = static_cast<size_t>(request.bytes);
  const int root = request.signature->root_rank;
  if (bytes == 0) return Status::Ok();
  const BroadcastAlgorithm algorithm = ChooseBroadcast(SituationOf(bytes, SE_UINT8));
  algorithm_ = Name(algorithm);
  if (local_ != nullptr) Increase(counters_->shared_bytes, static_cast<int64_t>(bytes));
  if (algorithm == BroadcastAlgorithm::kShared) {
    return SharedBroadcast(*shared_, root, memory.input, memory.output, bytes);
  }
  if (algorithm == BroadcastAlgorithm::kHierarchical) {
    return HierarchicalBroadcast(*local_, *streams_, *hosts_, root, memory.input, memory.output, bytes);
  }
  if (streams_->rank() == root && memory.output != memory.input) std::memcpy(memory.output, memory.input, bytes);
  return streams_->size() == 1 ? Status::Ok() : StreamBroadcast(*streams_, algorithm, root, memory.output, bytes);
}

Status Executor::Barrier() {
  if (streams_->size() == 1) return Status::Ok();
  if (shared_ != nullptr) {
    algorithm_ = "SHARED_BARRIER";
    return SharedBarrier(*shared_);
  }
  if (hosts_->count() < streams_->size()) {
    algorithm_ = "HIERARCHICAL_BARRIER";
    return HierarchicalBarrier(*local_, *streams_, *hosts_);
  }
  algorithm_ = "DISSEMINATION_BARRIER";
  return StreamBarrier(*streams_);
}

}  // namespace spark_estimator
