// The allreduce over streams of several tensors treated as one long vector.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_LIST_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_LIST_H_

#include <cstdint>

#include "algorithms/buffer_list.h"
#include "algorithms/choose.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// As StreamAllreduce. The tensors are joined in the group's scratch memory: in blocks where links' speed decides, so
// that a block is copied in and out while the network carries another one, else all at once.
Status StreamListAllreduce(StreamGroup& group, AllreduceAlgorithm algorithm, const BufferList& buffers, int32_t dtype,
                           int32_t reduce_op, Finish finish);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_LIST_H_
