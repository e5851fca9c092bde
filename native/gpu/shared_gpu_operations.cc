// The operations of a group: what each gives to the other ranks, and what it takes from them.
#include <numeric>  // for accumulate

#include "base/dtype.h"
#include "gpu/shared_gpu_plan.h"

namespace spark_estimator {
namespace {

const uint8_t* At(const void* data, size_t bytes) {
  return data == nullptr ? nullptr : static_cast<const uint8_t*>(data) + bytes;
}
uint8_t* At(void* data, size_t bytes) { return data == nullptr ? nullptr : static_cast<uint8_t*>(data) + bytes; }

void CopyAtHome(const void* from, void* to, size_t bytes, std::vector<device::CopyPiece>* pieces) {
  if (bytes > 0 && from != to) pieces->push_back({from, to, bytes});
}

}  // namespace

bool SharedGpuGroup::Offers(int32_t op, const Reduction& reduction) const {
  switch (op) {
    case SE_ALLREDUCE:
    case SE_REDUCESCATTER:
      return !DeviceKernels::NameOf(reduction.dtype, reduction.reduce_op).empty();
    case SE_ALLGATHER:
    case SE_BROADCAST:
    case SE_ALLTOALL:
    case SE_BARRIER:
      return true;
    default:
      return false;
  }
}

Status SharedGpuGroup::Reduce(const char* what, Plan* plan, const Reduction& reduction, CudaEvent ready,
                              CudaEvent done) {
  SE_RETURN_IF_ERROR(Healthy());
  plan->bytes = plan->given.bytes();
  plan->element_bytes = DtypeBytes(reduction.dtype);
  plan->numbers.prescale = reduction.prescale;
  plan->numbers.postscale = reduction.postscale;
  plan->numbers.divisor = reduction.reduce_op == SE_AVERAGE ? options_.size : 1;
  if (plan->bytes > 0) {
    const DriverContextScope scope(kernels_.driver(), context_);
    Status status = scope.status();
    if (status.ok()) {
      status = kernels_.Find(options_.device, reduction.dtype,
                             DeviceKernels::NameOf(reduction.dtype, reduction.reduce_op), &plan->reduce);
    }
    if (!status.ok()) return Fail(status.Within(Who() + ", " + what));
  }
  return Run(what, *plan, ready, done);
}

Status SharedGpuGroup::Allreduce(std::span<const ReduceTensor> tensors, const Reduction& reduction, CudaEvent ready,
                                 CudaEvent done) {
  if (!Offers(SE_ALLREDUCE, reduction)) return NotOffered(SE_ALLREDUCE, reduction);
  const size_t element = DtypeBytes(reduction.dtype);
  Plan plan(options_.size);
  for (const ReduceTensor& tensor : tensors) {
    if (tensor.count > 0 && tensor.output == nullptr && tensor.input != nullptr) {
      return Refused("an allreduce has no output");
    }
    plan.given.Add(At(tensor.input, 0), tensor.count * element);
    plan.reduced.Add(At(tensor.output, 0), tensor.count * element);
  }
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  return Reduce("allreduce", &plan, reduction, ready, done);
}

Status SharedGpuGroup::Broadcast(std::span<const BroadcastTensor> tensors, int root, CudaEvent ready, CudaEvent done) {
  if (root < 0 || root >= options_.size) return Refused("a broadcast's root is " + std::to_string(root));
  Plan plan(options_.size);
  for (const BroadcastTensor& tensor : tensors) {
    if (options_.rank != root) {
      plan.taken[static_cast<size_t>(root)].Add(At(tensor.output, 0), tensor.bytes);
      continue;
    }
    const void* input = tensor.input != nullptr ? tensor.input : tensor.output;
    CopyAtHome(input, tensor.output, tensor.bytes, &plan.at_home);
    if (!alone()) plan.given.Add(At(input, 0), tensor.bytes);
  }
  plan.bytes = std::max(plan.given.bytes(), plan.taken[static_cast<size_t>(root)].bytes());
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  return Run("broadcast", plan, ready, done);
}

Status SharedGpuGroup::Allgather(std::span<const GatherTensor> tensors, CudaEvent ready, CudaEvent done) {
  const auto size = static_cast<size_t>(options_.size);
  const auto own = static_cast<size_t>(options_.rank);
  Plan plan(options_.size);
  for (const GatherTensor& tensor : tensors) {
    if (tensor.bytes_of.size() != size) {
      return Refused("an allgather has sizes of " + std::to_string(tensor.bytes_of.size()) + " ranks");
    }
    size_t before = 0;
    for (size_t rank = 0; rank < size; ++rank) {
      const size_t bytes = tensor.bytes_of[rank];
      uint8_t* output = At(tensor.output, before);
      before += bytes;
      if (rank != own) {
        plan.taken[rank].Add(output, bytes);
        continue;
      }
      CopyAtHome(tensor.input, output, bytes, &plan.at_home);
      if (!alone()) plan.given.Add(At(tensor.input, 0), bytes);
    }
  }
  plan.bytes = plan.given.bytes();
  for (const OutputPacking& theirs : plan.taken) plan.bytes = std::max(plan.bytes, theirs.bytes());
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  return Run("allgather", plan, ready, done);
}

Status SharedGpuGroup::Reducescatter(std::span<const ScatterTensor> tensors, const Reduction& reduction,
                                     CudaEvent ready, CudaEvent done) {
  if (!Offers(SE_REDUCESCATTER, reduction)) return NotOffered(SE_REDUCESCATTER, reduction);
  const size_t element = DtypeBytes(reduction.dtype);
  const auto size = static_cast<size_t>(options_.size);
  const auto own = static_cast<size_t>(options_.rank);
  Plan plan(options_.size);
  for (const ScatterTensor& tensor : tensors) {
    if (tensor.count_of.size() != size) {
      return Refused("a reducescatter has sizes of " + std::to_string(tensor.count_of.size()) + " ranks");
    }
    if (tensor.output == nullptr && tensor.input != nullptr && tensor.count_of[own] > 0) {
      return Refused("a reducescatter has no output");
    }
    size_t before = 0;
    for (size_t rank = 0; rank < size; ++rank) {
      const size_t bytes = tensor.count_of[rank] * element;
      plan.given.Add(At(tensor.input, before), bytes);
      plan.reduced.Add(rank == own ? At(tensor.output, 0) : nullptr, bytes);
      before += bytes;
    }
  }
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  return Reduce("reducescatter", &plan, reduction, ready, done);
}

Status SharedGpuGroup::Alltoall(const void* input, std::span<const size_t> send_bytes, void* output,
                                std::span<const size_t> receive_bytes, CudaEvent ready, CudaEvent done) {
  const auto size = static_cast<size_t>(options_.size);
  const auto own = static_cast<size_t>(options_.rank);
  if (send_bytes.size() != size || receive_bytes.size() != size) {
    return Refused("an alltoall has splits of " + std::to_string(send_bytes.size()) + " and " +
                   std::to_string(receive_bytes.size()) + " ranks");
  }
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  SE_RETURN_IF_ERROR(Healthy());
  // Where a rank finds what is meant for it follows from what the others get from the same sender.
  std::vector<size_t> splits(send_bytes.begin(), send_bytes.end());
  splits.insert(splits.end(), receive_bytes.begin(), receive_bytes.end());
  std::vector<size_t> all(2 * size * size);
  SE_RETURN_IF_ERROR(
      Exchange("telling the splits of an alltoall", splits.data(), splits.size() * sizeof(size_t), all.data()));
  const auto sends = [&](size_t from, size_t to) { return all[2 * size * from + to]; };
  const auto receives = [&](size_t to, size_t from) { return all[2 * size * to + size + from]; };
  for (size_t from = 0; from < size; ++from) {
    for (size_t to = 0; to < size; ++to) {
      if (sends(from, to) == receives(to, from)) continue;
      return Refused("in an alltoall rank " + std::to_string(from) + " sends " + std::to_string(sends(from, to)) +
                     " bytes to rank " + std::to_string(to) + ", which expects " + std::to_string(receives(to, from)));
    }
  }
  Plan plan(options_.size);
  size_t sent = 0;
  size_t received = 0;
  for (size_t other = 0; other < size; ++other) {
    if (other == own) {
      CopyAtHome(At(input, sent), At(output, received), send_bytes[own], &plan.at_home);
    } else {
      plan.given.Add(At(input, sent), send_bytes[other]);
    }
    OutputPacking sender;
    for (size_t to = 0; to < size; ++to) {
      if (to != other) sender.Add(to == own ? At(output, received) : nullptr, sends(other, to));
    }
    plan.bytes = std::max(plan.bytes, sender.bytes());
    if (other != own) plan.taken[other] = sender;
    sent += send_bytes[other];
    received += receive_bytes[other];
  }
  return Run("alltoall", plan, ready, done);
}

Status SharedGpuGroup::Barrier(CudaEvent ready, CudaEvent done) {
  Plan plan(options_.size);
  plan.meets = !alone();
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  return Run("barrier", plan, ready, done);
}

Status SharedGpuGroup::NotOffered(int32_t op, const Reduction& reduction) const {
  return Refused("ranks that share a GPU have no " + OpName(op) + " of " + DtypeName(reduction.dtype) + " by " +
                 ReduceOpName(reduction.reduce_op));
}

}  // namespace spark_estimator
