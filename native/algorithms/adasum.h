// The adaptive sum of gradients: what two ranks agree on is averaged, what they do not is added.
//
// Maleki and others, "Scaling distributed training with adaptive summation", arXiv:2006.02924, 2020. For two vectors
//   adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
// and for 2^k ranks the same for neighbours, then for pairs of neighbours, and so on.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_ADASUM_H_
#define SPARK_ESTIMATOR_ALGORITHMS_ADASUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// One tensor: its coefficients are its own. `input` and `output` are the same or apart.
struct AdasumPart {
  const void* input;
  void* output;
  size_t count;  // elements
};

// Every output becomes postscale * adasum over ranks of (prescale * input), the same bits on all ranks. Dot products
// are accumulated in float64; float16 and bfloat16 are sent as float32 and are rounded once. SE_INVALID_ARGUMENT for a
// number of ranks that is no power of two, and for a dtype that is not floating point; nothing has been sent then.
Status AdasumAllreduce(StreamGroup& group, std::span<const AdasumPart> parts, int32_t dtype, double prescale,
                       double postscale);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_ADASUM_H_
