// Collectives over streams, for jobs that span hosts or cannot share memory.
//
// All ranks call the same functions in the same order with matching sizes; buffers are each rank's own. An error leaves
// the group unusable. When each is chosen is in algorithms/choose.h; steps and bytes are in
// native/algorithms/README.md.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_STREAM_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "algorithms/choose.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// `output` becomes finish(reduction over ranks of the inputs), the same bits on all ranks. `input` and `output` are
// identical or disjoint. float16 and bfloat16 are accumulated in float32 and rounded once, with every algorithm.
// `algorithm` is one of those over streams.
Status StreamAllreduce(StreamGroup& group, AllreduceAlgorithm algorithm, const void* input, void* output, size_t count,
                       int32_t dtype, int32_t reduce_op, Finish finish);
// `output` becomes finish(reduction of this rank's part): bytes_of[0] bytes of the inputs belong to rank 0, the next
// bytes_of[1] to rank 1, ... `output` may be this rank's part of `input`.
Status StreamReducescatter(StreamGroup& group, const void* input, std::span<const size_t> bytes_of, void* output,
                           int32_t dtype, int32_t reduce_op, Finish finish);
// `data` is read on the root and written elsewhere.
Status StreamBroadcast(StreamGroup& group, BroadcastAlgorithm algorithm, int root, void* data, size_t bytes);
// `output` receives bytes_of[0] bytes of rank 0, then those of rank 1, ...; `input` is this rank's own.
Status StreamAllgather(StreamGroup& group, AllgatherAlgorithm algorithm, const void* input,
                       std::span<const size_t> bytes_of, void* output);
// The first send_bytes[0] bytes of `input` go to rank 0, the next send_bytes[1] to rank 1, ...; `output` receives
// receive_bytes[0] bytes of rank 0, ... Data from a rank to itself is copied.
Status StreamAlltoall(StreamGroup& group, const void* input, std::span<const size_t> send_bytes, void* output,
                      std::span<const size_t> receive_bytes);
Status StreamBarrier(StreamGroup& group);

// The same with the algorithm that suits ranks on as many hosts.
Status StreamAllreduce(StreamGroup& group, const void* input, void* output, size_t count, int32_t dtype,
                       int32_t reduce_op, Finish finish, const Tuning& tuning = {});
Status StreamBroadcast(StreamGroup& group, int root, void* data, size_t bytes);
Status StreamAllgather(StreamGroup& group, const void* input, std::span<const size_t> bytes_of, void* output);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_STREAM_H_
