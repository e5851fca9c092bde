// Collectives of several hosts with several ranks each: through shared memory inside, by streams across.
//
// `local` holds the ranks of this host by their local index; `all` holds all ranks. As with all collectives, every rank
// of `all` calls the same functions in the same order with matching sizes, and an error leaves both groups unusable.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_HIERARCHICAL_H_
#define SPARK_ESTIMATOR_ALGORITHMS_HIERARCHICAL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "algorithms/buffer_list.h"
#include "algorithms/choose.h"
#include "algorithms/hosts.h"
#include "algorithms/int8/parts.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "transport/shared_group.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// Every output becomes finish(reduction over ranks of the inputs), the same bits on all ranks: first over the ranks of
// each host, in rank order, then over hosts. Up to tuning.exchange_bytes, and where hosts hold different numbers of
// ranks, one rank per host communicates with the others. Else each rank reduces a share inside its host, and the ranks
// of one local index reduce that share across hosts, so that a host's link carries each byte once. float16 and bfloat16
// are summed in float32 and rounded once; the sums of hosts are sent as float32, the results as they are.
Status HierarchicalAllreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const BufferList& buffers,
                             int32_t dtype, int32_t reduce_op, Finish finish, const Tuning& tuning = {});
// The same of float32 in int8 between hosts, see int8/stream.h; inside hosts the values are summed as they are.
Status HierarchicalInt8Allreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts,
                                 std::span<const Int8Part> parts, float prescale, Finish finish,
                                 const Tuning& tuning = {});
// `bytes` bytes of `input` are read on rank `root` and written to every rank's `output`.
Status HierarchicalBroadcast(SharedGroup& local, StreamGroup& all, const Hosts& hosts, int root, const void* input,
                             void* output, size_t bytes);
// Rows of `bytes_of[rank]` bytes, of all ranks to all, in the order of the ranks; for hosts in_rank_order() only.
Status HierarchicalAllgather(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const void* input,
                             std::span<const size_t> bytes_of, void* output);
// Row `rank` of the reduction over all ranks' inputs, to that rank's output, which does not overlap its input; for
// hosts in_rank_order() only. First over the ranks of each host, in rank order, then over hosts; not for float16 and
// bfloat16, which would be rounded in between.
Status HierarchicalReducescatter(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const void* input,
                                 std::span<const size_t> bytes_of, void* output, int32_t dtype, int32_t reduce_op,
                                 Finish finish);
Status HierarchicalBarrier(SharedGroup& local, StreamGroup& all, const Hosts& hosts);

// The ranks of one local index, one of each host; for those that have that index.
SubGroup Across(StreamGroup& all, const Hosts& hosts, int local_index);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_HIERARCHICAL_H_
