// What an operation of a SharedGpuGroup moves, and the chunks that it does so in.
#ifndef SPARK_ESTIMATOR_GPU_SHARED_GPU_PLAN_H_
#define SPARK_ESTIMATOR_GPU_SHARED_GPU_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/packing.h"
#include "gpu/shared_gpu_group.h"

namespace spark_estimator {

using InputPacking = Packing<const uint8_t>;
using OutputPacking = Packing<uint8_t>;

struct SharedGpuGroup::Plan {
  explicit Plan(int size) : taken(static_cast<size_t>(size)) {}

  InputPacking given;                      // what this rank puts into its slots; null: zeros
  std::vector<OutputPacking> taken;        // by rank: what is copied from its slots; null: not wanted here
  OutputPacking reduced;                   // what is reduced from the same place of all ranks' slots
  std::vector<device::CopyPiece> at_home;  // what never leaves this rank
  size_t bytes = 0;                        // the largest `given` of all ranks; all of them know it
  bool meets = false;                      // a chunk even when there are no bytes: to meet the others is the purpose

  // Of `reduced`: the kernel and its numbers, but for the sources and pieces.
  CudaFunction reduce = nullptr;
  size_t element_bytes = 1;
  device::ReduceArguments numbers{};
};

// Hands the kernels of one operation over, chunk by chunk. shared_gpu_group.h says in which order and why.
class SharedGpuGroup::Chunks {
 public:
  Chunks(SharedGpuGroup& group, const Plan& plan) : group_(group), plan_(plan) {}

  Status Run();

 private:
  // Of the operation's chunks, counted from 0.
  Status Fill(size_t chunk);
  Status Take(size_t chunk);
  Status Await(ExchangeBuffer::Progress progress, uint64_t chunks);
  Status Tell(ExchangeBuffer::Progress progress, uint64_t chunks);

  Status Copy(const std::vector<device::CopyPiece>& pieces);
  Status ReduceChunk(size_t chunk);
  template <typename Arguments>
  Status Launch(CudaFunction kernel, size_t packets, size_t pieces, Arguments* arguments);

  SharedGpuGroup& group_;
  const Plan& plan_;
  uint64_t first_ = 0;  // the operation's first chunk, counted from the group's beginning
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_SHARED_GPU_PLAN_H_
