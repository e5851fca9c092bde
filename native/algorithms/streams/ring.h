// Rings over streams: a reduction followed by an allgather, or one of the two alone.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_RING_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_RING_H_

#include <memory>

#include "algorithms/streams/operation.h"
#include "algorithms/streams/shares.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. Partial sums
// are sent, so not for the 16-bit floating-point types.
Status RingAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output, size_t count, int32_t dtype,
                     int32_t reduce_op, Finish finish);
// `output` holds this rank's share at its place already.
Status RingAllgather(StreamGroup& group, uint8_t* output, const Shares& shares);

// The same, to be advanced by the caller. They use the group's scratch memory once they receive.
std::unique_ptr<StreamOperation> BeginRingAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output,
                                                    size_t count, int32_t dtype, int32_t reduce_op, Finish finish);
std::unique_ptr<StreamOperation> BeginRingAllgather(StreamGroup& group, uint8_t* output, const Shares& shares);

// The two halves of a ring allreduce, for a caller that changes the results in between. After the first, `output` holds
// the finished share of the rank that follows this one in the ring's order, and partial sums elsewhere.
std::unique_ptr<StreamOperation> BeginRingReduction(StreamGroup& group, const uint8_t* input, uint8_t* output,
                                                    size_t count, int32_t dtype, int32_t reduce_op, Finish finish);
std::unique_ptr<StreamOperation> BeginRingSpreading(StreamGroup& group, uint8_t* output, const Shares& shares);
// Whose share a rank has finished.
int FinishedInRing(const StreamGroup& group);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_RING_H_
