// Collectives through shared segments, for jobs whose ranks all see one another's memory.
//
// All ranks call the same functions in the same order with matching sizes; buffers are each rank's own. An error leaves
// the group unusable. Steps and bytes of each are in native/README.md.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_SHARED_H_
#define SPARK_ESTIMATOR_ALGORITHMS_SHARED_H_

#include <cstddef>
#include <span>

#include "algorithms/buffer_list.h"
#include "base/kernels.h"
#include "base/status.h"
#include "transport/shared_group.h"

namespace spark_estimator {

// Every output becomes finish(reduction over ranks of the inputs, in rank order).
Status SharedAllreduce(SharedGroup& group, const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish);
// `data` of `bytes` bytes is read on the root and written elsewhere.
Status SharedBroadcast(SharedGroup& group, int root, const void* input, void* output, size_t bytes);
// `output` receives bytes_of[0] bytes of rank 0, then those of rank 1, ...; `input` is this rank's own.
Status SharedAllgather(SharedGroup& group, const void* input, std::span<const size_t> bytes_of, void* output);
Status SharedBarrier(SharedGroup& group);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_SHARED_H_
