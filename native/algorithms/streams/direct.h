// Reductions in which every rank sends each owner its part and the owner reduces them all: no partial sum is sent.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_DIRECT_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_DIRECT_H_

#include <memory>

#include "algorithms/streams/operation.h"
#include "algorithms/streams/shares.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// In rank order, rounded once: the same bits as the algorithms through shared memory.
Status DirectAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output, size_t count, int32_t dtype,
                       int32_t reduce_op, Finish finish);
// `output` receives this rank's share alone.
Status DirectReducescatter(StreamGroup& group, const uint8_t* input, const Shares& shares, uint8_t* output,
                           int32_t dtype, int32_t reduce_op, Finish finish);
// The same, to be advanced by the caller. They use the group's scratch memory from their first step on.
std::unique_ptr<StreamOperation> BeginDirectAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output,
                                                      size_t count, int32_t dtype, int32_t reduce_op, Finish finish);
std::unique_ptr<StreamOperation> BeginDirectReducescatter(StreamGroup& group, const uint8_t* input,
                                                          const Shares& shares, uint8_t* output, int32_t dtype,
                                                          int32_t reduce_op, Finish finish);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_DIRECT_H_
