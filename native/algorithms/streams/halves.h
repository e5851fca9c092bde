// Allreduces of 16-bit floating-point values whose sums are kept in float32: 6 bytes on the wire for each instead of 8.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_HALVES_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_HALVES_H_

#include <cstdint>
#include <memory>

#include "algorithms/streams/operation.h"
#include "base/kernels/kernels.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// The sums are sent as float32 to the rank that finishes and rounds them, the results as `dtype`. `sums` and `results`
// have `count` elements each and do not overlap. Uses the group's scratch memory. In a ring (`in_ring`), which
// overwrites `sums`, or to each owner from all ranks at once.
std::unique_ptr<StreamOperation> BeginHalvesAllreduce(StreamGroup& group, float* sums, uint8_t* results, size_t count,
                                                      int32_t dtype, int32_t reduce_op, Finish finish, bool in_ring);
// In a ring, of values of `dtype`: input and output may be one.
std::unique_ptr<StreamOperation> BeginHalvesRingAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output,
                                                          size_t count, int32_t dtype, int32_t reduce_op,
                                                          Finish finish);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_HALVES_H_
