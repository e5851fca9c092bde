// Collectives through shared segments, for the ranks of one host which all see each other's memory.
//
// All ranks call the same functions in the same order with matching sizes; buffers are each rank's own, and overlap
// only where documented. Every element is reduced by one rank in rank order, so that all ranks hold the same bits. An
// error (a peer is lost, this rank is leaving) leaves the group unusable. Steps and bytes of each are in
// native/algorithms/README.md.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_SHARED_H_
#define SPARK_ESTIMATOR_ALGORITHMS_SHARED_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/buffer_list.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "transport/shared_group.h"

namespace spark_estimator {

// Every output becomes finish(reduction over ranks of the inputs, in rank order). An output may be its input.
Status SharedAllreduce(SharedGroup& group, const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish);

// The same in place for tensors in the ranks' arenas: nothing is copied. data_of[t * group.size + r] is where this rank
// sees tensor t of local rank r; bytes_of[t] is its size, the same on all ranks.
Status SymmetricAllreduce(SharedGroup& group, std::span<uint8_t* const> data_of, std::span<const size_t> bytes_of,
                          int32_t dtype, int32_t reduce_op, Finish finish);
// For one tensor.
inline Status SymmetricAllreduce(SharedGroup& group, std::span<uint8_t* const> data_of, size_t bytes, int32_t dtype,
                                 int32_t reduce_op, Finish finish) {
  return SymmetricAllreduce(group, data_of, std::span<const size_t>(&bytes, 1), dtype, reduce_op, finish);
}

// `input` is one slab of bytes_of[r] bytes (whole elements) for each rank r, one behind the other; `output` becomes
// finish(reduction over ranks of this rank's slab). It may be this rank's slab of `input`, which is otherwise only
// read.
Status SharedReducescatter(SharedGroup& group, const void* input, std::span<const size_t> bytes_of, void* output,
                           int32_t dtype, int32_t reduce_op, Finish finish);

// `output` receives bytes_of[0] bytes of rank 0, then those of rank 1, ...; `input` is this rank's own, and may be
// where it belongs in `output`.
Status SharedAllgather(SharedGroup& group, const void* input, std::span<const size_t> bytes_of, void* output);

// `input` holds send_bytes[0] bytes for rank 0, then those for rank 1, ...; `output` receives receive_bytes[0] bytes of
// rank 0, ... `largest` is the largest send_bytes of any pair on any rank, so the same on all. `output` may be `input`
// when send_bytes and receive_bytes are equal.
Status SharedAlltoall(SharedGroup& group, const void* input, std::span<const size_t> send_bytes,
                      std::span<const size_t> receive_bytes, size_t largest, void* output);

// `bytes` bytes are read from `input` on the root and written to `output` on all ranks. The two may be the same.
Status SharedBroadcast(SharedGroup& group, int root, const void* input, void* output, size_t bytes);

Status SharedBarrier(SharedGroup& group);

// Cuts a vector into one share of whole elements for each rank, lower ranks one more. A reducescatter of such shares
// into the vector itself and an allgather of them in place are the two halves of an allreduce, between which a
// hierarchical one reduces across hosts.
std::vector<size_t> SharesOf(size_t total_bytes, size_t element_bytes, int size);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_SHARED_H_
