// Collectives over stream sockets, for jobs that span hosts or cannot share memory.
//
// All ranks call the same functions in the same order with matching sizes; buffers are each rank's own. An error leaves
// the group unusable. Steps and bytes of each are in native/README.md.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAM_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/kernels.h"
#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// `data` (count elements) becomes finish(reduction over ranks), in place; the same bits on all ranks.
Status StreamAllreduce(StreamGroup& group, void* data, size_t count, int32_t dtype, int32_t reduce_op, Finish finish);
// The two that StreamAllreduce chooses from: one exchange with everybody, or a ring.
Status ExchangeAllreduce(StreamGroup& group, void* data, size_t count, int32_t dtype, int32_t reduce_op, Finish finish);
Status RingAllreduce(StreamGroup& group, void* data, size_t count, int32_t dtype, int32_t reduce_op, Finish finish);

// `data` is read on the root and written elsewhere.
Status StreamBroadcast(StreamGroup& group, int root, void* data, size_t bytes);
// `output` receives bytes_of[0] bytes of rank 0, then those of rank 1, ...; `input` is this rank's own.
Status StreamAllgather(StreamGroup& group, const void* input, std::span<const size_t> bytes_of, void* output);
Status StreamBarrier(StreamGroup& group);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAM_H_
