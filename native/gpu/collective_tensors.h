// What a collective on GPU tensors takes: its tensors and, where it reduces, how.
#ifndef SPARK_ESTIMATOR_GPU_COLLECTIVE_TENSORS_H_
#define SPARK_ESTIMATOR_GPU_COLLECTIVE_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace spark_estimator {

// What an allreduce or reducescatter does to its elements, in the words of the C ABI.
struct Reduction {
  int32_t dtype = 0;
  int32_t reduce_op = 0;
  double prescale = 1;
  double postscale = 1;
};

// One tensor of an allreduce.
struct ReduceTensor {
  const void* input = nullptr;  // null: this rank has joined and takes part with zeros
  void* output = nullptr;       // may be the input; null with a null input: the result is not needed here
  size_t count = 0;             // elements, the same on all ranks
};

// One tensor of a broadcast.
struct BroadcastTensor {
  const void* input = nullptr;  // read on the root; may be the output
  void* output = nullptr;
  size_t bytes = 0;
};

// One tensor of an allgather.
struct GatherTensor {
  const void* input = nullptr;  // bytes_of[rank]; may be where it belongs in the output
  void* output = nullptr;       // bytes_of[0] of rank 0, then those of rank 1, ...
  std::span<const size_t> bytes_of;
};

// One tensor of a reducescatter.
struct ScatterTensor {
  const void* input = nullptr;  // count_of[0] elements for rank 0, then those for rank 1, ...; null: zeros
  void* output = nullptr;       // count_of[rank] elements; may be this rank's part of the input; null as above
  std::span<const size_t> count_of;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_COLLECTIVE_TENSORS_H_
