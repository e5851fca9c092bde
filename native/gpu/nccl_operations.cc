// The operations of a group: which of NCCL's calls each is.
#include <algorithm>
#include <numeric>  // for accumulate

#include "base/dtype.h"
#include "gpu/nccl_calls.h"
#include "gpu/nccl_group.h"

namespace spark_estimator {
namespace {

bool AllEqual(std::span<const size_t> values) {
  return std::all_of(values.begin(), values.end(), [&](size_t value) { return value == values[0]; });
}

const uint8_t* At(const void* data, size_t bytes) { return static_cast<const uint8_t*>(data) + bytes; }
uint8_t* At(void* data, size_t bytes) { return static_cast<uint8_t*>(data) + bytes; }

}  // namespace

bool NcclGroup::Offers(int32_t op, const Reduction& reduction) const {
  return NcclOffers(op, reduction, options_.size);
}

Status NcclGroup::Allreduce(std::span<const ReduceTensor> tensors, const Reduction& reduction, CudaEvent ready,
                            CudaEvent done) {
  if (!Offers(SE_ALLREDUCE, reduction)) return NotOffered(SE_ALLREDUCE, reduction);
  const size_t element = DtypeBytes(reduction.dtype);
  std::vector<ReduceTensor> filled;
  size_t nowhere = 0;  // bytes of the tensors that have no memory here
  for (const ReduceTensor& tensor : tensors) {
    if (tensor.count == 0) continue;
    if (tensor.output == nullptr && tensor.input != nullptr) return Refused("an allreduce has no output");
    if (tensor.output == nullptr) nowhere += Aligned(tensor.count * element);
    filled.push_back(tensor);
  }
  int op = kNcclSum;
  NcclType type = kNcclUint8;
  const auto prepare = [&]() -> Status {
    SE_RETURN_IF_ERROR(OperatorFor(reduction, &op, &type));
    void* zeros = nullptr;
    if (nowhere > 0) SE_RETURN_IF_ERROR(Scratch(nowhere, &zeros));
    for (ReduceTensor& tensor : filled) {
      if (tensor.input != nullptr) continue;
      const size_t bytes = tensor.count * element;
      if (tensor.output == nullptr) {
        tensor.output = zeros;
        zeros = At(zeros, Aligned(bytes));
      }
      SE_RETURN_IF_ERROR(Clear(tensor.output, bytes));
      tensor.input = tensor.output;
    }
    return Status::Ok();
  };
  if (filled.empty()) return Run("allreduce", ready, done, nullptr, nullptr);
  return Run("allreduce", ready, done, prepare, [&](NcclComm comm) {
    NcclCalls calls;
    for (const ReduceTensor& tensor : filled) {
      if (!calls.going_on()) break;
      calls.Add(nccl_.AllReduce(tensor.input, tensor.output, tensor.count, type, op, comm, stream_));
    }
    return calls.result();
  });
}

Status NcclGroup::Broadcast(std::span<const BroadcastTensor> tensors, int root, CudaEvent ready, CudaEvent done) {
  if (root < 0 || root >= options_.size) return Refused("a broadcast's root is " + std::to_string(root));
  const bool empty = std::all_of(tensors.begin(), tensors.end(), [](const auto& tensor) { return tensor.bytes == 0; });
  if (empty) return Run("broadcast", ready, done, nullptr, nullptr);
  return Run("broadcast", ready, done, nullptr, [&](NcclComm comm) {
    NcclCalls calls;
    for (const BroadcastTensor& tensor : tensors) {
      if (tensor.bytes == 0 || !calls.going_on()) continue;
      const void* input = tensor.input != nullptr ? tensor.input : tensor.output;
      calls.Add(nccl_.Broadcast(input, tensor.output, tensor.bytes, kNcclUint8, root, comm, stream_));
    }
    return calls.result();
  });
}

Status NcclGroup::Allgather(std::span<const GatherTensor> tensors, CudaEvent ready, CudaEvent done) {
  bool empty = true;
  for (const GatherTensor& tensor : tensors) {
    if (tensor.bytes_of.size() != static_cast<size_t>(options_.size)) {
      return Refused("an allgather has sizes of " + std::to_string(tensor.bytes_of.size()) + " ranks");
    }
    for (const size_t bytes : tensor.bytes_of) empty = empty && bytes == 0;
  }
  if (empty) return Run("allgather", ready, done, nullptr, nullptr);
  return Run("allgather", ready, done, nullptr, [&](NcclComm comm) {
    NcclCalls calls;
    for (const GatherTensor& tensor : tensors) {
      if (!calls.going_on()) break;
      if (AllEqual(tensor.bytes_of)) {
        if (tensor.bytes_of[0] == 0) continue;
        calls.Add(nccl_.AllGather(tensor.input, tensor.output, tensor.bytes_of[0], kNcclUint8, comm, stream_));
        continue;
      }
      size_t offset = 0;
      for (int rank = 0; rank < options_.size && calls.going_on(); ++rank) {
        const size_t bytes = tensor.bytes_of[static_cast<size_t>(rank)];
        uint8_t* output = At(tensor.output, offset);
        const void* input = rank == options_.rank ? tensor.input : output;
        if (bytes > 0) calls.Add(nccl_.Broadcast(input, output, bytes, kNcclUint8, rank, comm, stream_));
        offset += bytes;
      }
    }
    return calls.result();
  });
}

Status NcclGroup::Reducescatter(std::span<const ScatterTensor> tensors, const Reduction& reduction, CudaEvent ready,
                                CudaEvent done) {
  if (!Offers(SE_REDUCESCATTER, reduction)) return NotOffered(SE_REDUCESCATTER, reduction);
  const size_t element = DtypeBytes(reduction.dtype);
  const auto own_rank = static_cast<size_t>(options_.rank);
  std::vector<ScatterTensor> filled;
  std::vector<size_t> totals;
  size_t nowhere = 0;
  for (const ScatterTensor& tensor : tensors) {
    if (tensor.count_of.size() != static_cast<size_t>(options_.size)) {
      return Refused("a reducescatter has sizes of " + std::to_string(tensor.count_of.size()) + " ranks");
    }
    const size_t total = std::accumulate(tensor.count_of.begin(), tensor.count_of.end(), size_t{0});
    if (total == 0) continue;
    if (tensor.output == nullptr && tensor.input != nullptr && tensor.count_of[own_rank] > 0) {
      return Refused("a reducescatter has no output");
    }
    if (tensor.input == nullptr) nowhere += Aligned(total * element);
    filled.push_back(tensor);
    totals.push_back(total);
  }
  int op = kNcclSum;
  NcclType type = kNcclUint8;
  const auto prepare = [&]() -> Status {
    SE_RETURN_IF_ERROR(OperatorFor(reduction, &op, &type));
    void* zeros = nullptr;
    if (nowhere > 0) SE_RETURN_IF_ERROR(Scratch(nowhere, &zeros));
    for (size_t i = 0; i < filled.size(); ++i) {
      ScatterTensor& tensor = filled[i];
      if (tensor.input != nullptr) continue;
      const size_t bytes = totals[i] * element;
      SE_RETURN_IF_ERROR(Clear(zeros, bytes));
      tensor.input = zeros;
      if (tensor.output == nullptr) {  // in place
        const size_t before =
            std::accumulate(tensor.count_of.begin(), tensor.count_of.begin() + options_.rank, size_t{0});
        tensor.output = At(zeros, before * element);
      }
      zeros = At(zeros, Aligned(bytes));
    }
    return Status::Ok();
  };
  if (filled.empty()) return Run("reducescatter", ready, done, nullptr, nullptr);
  return Run("reducescatter", ready, done, prepare, [&](NcclComm comm) {
    NcclCalls calls;
    for (const ScatterTensor& tensor : filled) {
      if (!calls.going_on()) break;
      if (AllEqual(tensor.count_of)) {
        calls.Add(nccl_.ReduceScatter(tensor.input, tensor.output, tensor.count_of[0], type, op, comm, stream_));
        continue;
      }
      size_t offset = 0;
      for (int rank = 0; rank < options_.size && calls.going_on(); ++rank) {
        const size_t count = tensor.count_of[static_cast<size_t>(rank)];
        void* output = rank == options_.rank ? tensor.output : nullptr;
        if (count > 0) {
          calls.Add(nccl_.Reduce(At(tensor.input, offset * element), output, count, type, op, rank, comm, stream_));
        }
        offset += count;
      }
    }
    return calls.result();
  });
}

Status NcclGroup::Alltoall(const void* input, std::span<const size_t> send_bytes, void* output,
                           std::span<const size_t> receive_bytes, CudaEvent ready, CudaEvent done) {
  const auto size = static_cast<size_t>(options_.size);
  if (send_bytes.size() != size || receive_bytes.size() != size) {
    return Refused("an alltoall has splits of " + std::to_string(send_bytes.size()) + " and " +
                   std::to_string(receive_bytes.size()) + " ranks");
  }
  const auto nothing = [](std::span<const size_t> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](size_t value) { return value == 0; });
  };
  // Messages are between two ranks: who has none of them need not take part.
  if (nothing(send_bytes) && nothing(receive_bytes)) return Run("alltoall", ready, done, nullptr, nullptr);
  return Run("alltoall", ready, done, nullptr, [&](NcclComm comm) {
    NcclCalls calls;
    size_t sent = 0;
    size_t received = 0;
    for (size_t peer = 0; peer < size && calls.going_on(); ++peer) {
      const int rank = static_cast<int>(peer);
      if (send_bytes[peer] > 0) {
        calls.Add(nccl_.Send(At(input, sent), send_bytes[peer], kNcclUint8, rank, comm, stream_));
      }
      if (receive_bytes[peer] > 0 && calls.going_on()) {
        calls.Add(nccl_.Recv(At(output, received), receive_bytes[peer], kNcclUint8, rank, comm, stream_));
      }
      sent += send_bytes[peer];
      received += receive_bytes[peer];
    }
    return calls.result();
  });
}

Status NcclGroup::Barrier(CudaEvent ready, CudaEvent done) {
  void* byte = nullptr;
  const auto prepare = [&] { return Scratch(1, &byte); };
  return Run("barrier", ready, done, prepare,
             [&](NcclComm comm) { return nccl_.AllReduce(byte, byte, 1, kNcclUint8, kNcclMax, comm, stream_); });
}

Status NcclGroup::NotOffered(int32_t op, const Reduction& reduction) const {
  return Refused("NCCL has no " + OpName(op) + " of " + DtypeName(reduction.dtype) + " by " +
                 ReduceOpName(reduction.reduce_op) + " with prescale " + std::to_string(reduction.prescale) +
                 " and postscale " + std::to_string(reduction.postscale) + " that is exact");
}

}  // namespace spark_estimator
