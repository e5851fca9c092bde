#include "engine/executor.h"

#include <cstring>
#include <string>

#include "algorithms/shared.h"
#include "algorithms/stream.h"
#include "base/dtype.h"

namespace spark_estimator {
namespace {

// Scratch beyond this is given back after use, so that one huge tensor does not hold memory for ever.
constexpr size_t kKeptScratchBytes = size_t{256} << 20;

Status Allocate(size_t bytes, Memory* memory) {
  memory->reset(std::malloc(bytes > 0 ? bytes : 1));
  if (*memory) return Status::Ok();
  return Status(SE_NO_MEMORY, "could not allocate " + std::to_string(bytes) + " bytes");
}

// A narrow integer's sum may not fit although its average does.
bool NeedsWidening(const Signature& signature) {
  return signature.reduce_op == SE_AVERAGE && IsInteger(signature.dtype) && signature.dtype != SE_INT64;
}

}  // namespace

Executor::Executor(StreamGroup streams, std::unique_ptr<SharedGroup> shared, Counters* counters)
    : streams_(std::move(streams)), shared_(std::move(shared)), counters_(counters) {}

Status Executor::Scratch(size_t bytes, uint8_t** memory) {
  if (bytes > scratch_bytes_ || scratch_bytes_ > kKeptScratchBytes) {
    scratch_.reset();
    scratch_bytes_ = 0;
    SE_RETURN_IF_ERROR(Allocate(bytes, &scratch_));
    scratch_bytes_ = bytes;
  }
  *memory = static_cast<uint8_t*>(scratch_.get());
  return Status::Ok();
}

Status Executor::Run(const Response& response, const std::vector<RequestPtr>& requests) {
  counters_->responses += 1;
  if (requests.size() > 1) counters_->fused_requests += static_cast<int64_t>(requests.size());
  const int64_t moved_before = streams_.bytes_moved;
  Status status;
  switch (requests[0]->signature.op) {
    case SE_ALLREDUCE:
      status = Allreduce(requests);
      break;
    case SE_ALLGATHER:
      status = Allgather(response, *requests[0]);
      break;
    case SE_BROADCAST:
      status = Broadcast(*requests[0]);
      break;
    default:
      status = Barrier();
  }
  counters_->stream_bytes += streams_.bytes_moved - moved_before;
  return status;
}

Status Executor::Allreduce(const std::vector<RequestPtr>& requests) {
  const Signature& signature = requests[0]->signature;
  Finish finish;
  finish.factor = signature.postscale;
  if (signature.reduce_op == SE_AVERAGE) finish.divisor = streams_.size;
  if (NeedsWidening(signature)) return AllreduceWidened(requests, finish);

  BufferList buffers;
  const size_t element = DtypeBytes(signature.dtype);
  for (const RequestPtr& request : requests) {
    for (const se_buffer& buffer : request->buffers) {
      const auto count = static_cast<size_t>(buffer.count);
      if (signature.prescale == 1.0) {
        buffers.Add(buffer.input, buffer.output, count * element);
      } else {
        if (count > 0) {
          GetKernels().finish(signature.dtype, buffer.output, buffer.input, count, Finish{signature.prescale, 1});
        }
        buffers.Add(buffer.output, buffer.output, count * element);
      }
    }
  }
  return Reduce(buffers, signature.dtype, signature.reduce_op == SE_AVERAGE ? SE_SUM : signature.reduce_op, finish);
}

Status Executor::AllreduceWidened(const std::vector<RequestPtr>& requests, Finish finish) {
  const Signature& signature = requests[0]->signature;
  const Kernels& kernels = GetKernels();
  size_t count = 0;
  for (const RequestPtr& request : requests) {
    for (const se_buffer& buffer : request->buffers) count += static_cast<size_t>(buffer.count);
  }
  // Memory of its own: Reduce may use the scratch.
  Memory memory;
  SE_RETURN_IF_ERROR(Allocate(count * sizeof(int64_t), &memory));
  auto* wide = static_cast<int64_t*>(memory.get());
  size_t start = 0;
  for (const RequestPtr& request : requests) {
    for (const se_buffer& buffer : request->buffers) {
      const auto n = static_cast<size_t>(buffer.count);
      if (n > 0) kernels.widen(signature.dtype, wide + start, buffer.input, n);
      start += n;
    }
  }
  if (signature.prescale != 1.0) kernels.finish(SE_INT64, wide, wide, count, Finish{signature.prescale, 1});
  BufferList buffers;
  buffers.Add(wide, wide, count * sizeof(int64_t));
  SE_RETURN_IF_ERROR(Reduce(buffers, SE_INT64, SE_SUM, finish));
  start = 0;
  for (const RequestPtr& request : requests) {
    for (const se_buffer& buffer : request->buffers) {
      const auto n = static_cast<size_t>(buffer.count);
      if (n > 0) kernels.narrow(signature.dtype, buffer.output, wide + start, n);
      start += n;
    }
  }
  return Status::Ok();
}

Status Executor::Reduce(const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish) {
  const size_t bytes = buffers.total_bytes();
  const size_t element = DtypeBytes(dtype);
  if (bytes == 0) return Status::Ok();
  if (streams_.size == 1) {
    for (const BufferPart& part : buffers.parts()) {
      if (!finish.nothing()) {
        GetKernels().finish(dtype, part.output, part.input, part.bytes / element, finish);
      } else if (part.output != part.input) {
        std::memcpy(part.output, part.input, part.bytes);
      }
    }
    return Status::Ok();
  }
  if (shared_) {
    counters_->shared_bytes += static_cast<int64_t>(bytes);
    return SharedAllreduce(*shared_, buffers, dtype, reduce_op, finish);
  }
  if (buffers.parts().size() == 1) {
    const BufferPart& part = buffers.parts()[0];
    if (part.output != part.input) std::memcpy(part.output, part.input, bytes);
    return StreamAllreduce(streams_, part.output, bytes / element, dtype, reduce_op, finish);
  }
  uint8_t* joined = nullptr;
  SE_RETURN_IF_ERROR(Scratch(bytes, &joined));
  buffers.ForEach(0, bytes, [&](const uint8_t* input, uint8_t*, size_t offset, size_t piece) {
    std::memcpy(joined + offset, input, piece);
  });
  SE_RETURN_IF_ERROR(StreamAllreduce(streams_, joined, bytes / element, dtype, reduce_op, finish));
  buffers.ForEach(0, bytes, [&](const uint8_t*, uint8_t* output, size_t offset, size_t piece) {
    std::memcpy(output, joined + offset, piece);
  });
  return Status::Ok();
}

Status Executor::Allgather(const Response& response, Request& request) {
  const size_t element = DtypeBytes(request.signature.dtype);
  size_t row_bytes = element;
  for (size_t i = 1; i < request.signature.dims.size(); ++i) {
    row_bytes *= static_cast<size_t>(request.signature.dims[i]);
  }
  std::vector<size_t> bytes_of;
  size_t total = 0;
  for (const int64_t rows : response.rows) {
    bytes_of.push_back(static_cast<size_t>(rows) * row_bytes);
    total += bytes_of.back();
  }
  SE_RETURN_IF_ERROR(Allocate(total, &request.gathered));
  request.gathered_bytes = static_cast<int64_t>(total);
  request.rows = response.rows;
  if (total == 0) return Status::Ok();
  const void* input = request.buffers[0].input;
  if (streams_.size > 1 && shared_) {
    counters_->shared_bytes += static_cast<int64_t>(total);
    return SharedAllgather(*shared_, input, bytes_of, request.gathered.get());
  }
  return StreamAllgather(streams_, input, bytes_of, request.gathered.get());
}

Status Executor::Broadcast(Request& request) {
  const se_buffer& buffer = request.buffers[0];
  const size_t bytes = static_cast<size_t>(buffer.count) * DtypeBytes(request.signature.dtype);
  const int root = request.signature.root_rank;
  if (streams_.size > 1 && shared_) {
    counters_->shared_bytes += static_cast<int64_t>(bytes);
    return SharedBroadcast(*shared_, root, buffer.input, buffer.output, bytes);
  }
  if (bytes == 0) return Status::Ok();
  if (streams_.rank == root && buffer.output != buffer.input) std::memcpy(buffer.output, buffer.input, bytes);
  return streams_.size == 1 ? Status::Ok() : StreamBroadcast(streams_, root, buffer.output, bytes);
}

Status Executor::Barrier() {
  if (streams_.size == 1) return Status::Ok();
  return shared_ ? SharedBarrier(*shared_) : StreamBarrier(streams_);
}

}  // namespace spark_estimator
