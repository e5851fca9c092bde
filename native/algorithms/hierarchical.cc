// Collectives of several hosts that are made of those inside a host and those across.
#include "algorithms/hierarchical.h"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "algorithms/hierarchical_blocks.h"
#include "algorithms/shared.h"
#include "algorithms/streams/halves.h"
#include "algorithms/streams/ring.h"
#include "algorithms/streams/stream.h"
#include "base/dtype.h"
#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

// A single tensor is reduced in its output. Others are joined, and 16-bit types are widened.
class Allreduce final : public HierarchicalBlocks {
 public:
  Allreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const BufferList& buffers, int32_t dtype,
            int32_t reduce_op, Finish finish, const Tuning& tuning)
      : HierarchicalBlocks(local, all, hosts, VectorOf(buffers, dtype, reduce_op), tuning),
        buffers_(buffers),
        half_(IsHalf(dtype)),
        whole_(IsWhole(buffers, dtype)),
        dtype_(dtype),
        computed_as_(half_ ? SE_FLOAT32 : dtype),
        element_(DtypeBytes(dtype)),
        reduce_op_(reduce_op),
        finish_(finish),
        tuning_(tuning) {}

 private:
  static bool IsWhole(const BufferList& buffers, int32_t dtype) {
    return buffers.parts().size() == 1 && !IsHalf(dtype);
  }
  static Vector VectorOf(const BufferList& buffers, int32_t dtype, int32_t reduce_op) {
    return {.count = buffers.total_bytes() / DtypeBytes(dtype),
            .computed_as = IsHalf(dtype) ? SE_FLOAT32 : dtype,
            .result_bytes = DtypeBytes(dtype),
            .reduce_op = reduce_op,
            .in_place = IsWhole(buffers, dtype) ? buffers.parts()[0].output : nullptr};
  }

  const uint8_t* Join(const VectorRange& block) override {
    if (whole_) return buffers_.parts()[0].input + block.start * element_;
    buffers_.ForEach(block.start * element_, block.count * element_,
                     [&](const uint8_t* input, uint8_t*, size_t offset, size_t bytes) {
                       if (half_) {
                         auto* floats = reinterpret_cast<float*>(block.values);
                         HalvesToFloat32(dtype_, floats + offset / element_, input, bytes / element_);
                       } else {
                         std::memcpy(block.values + offset, input, bytes);
                       }
                     });
    return block.values;
  }

  void Spread(const VectorRange& block) override {
    if (whole_) return;
    buffers_.ForEach(block.start * element_, block.count * element_,
                     [&](const uint8_t*, uint8_t* output, size_t offset, size_t bytes) {
                       std::memcpy(output, block.results + offset, bytes);
                     });
  }

  Status ReduceAcross(SubGroup& hosts, const VectorRange& range) override {
    SE_RETURN_IF_ERROR(
        StreamAllreduce(hosts, range.values, range.values, range.count, computed_as_, reduce_op_, finish_, tuning_));
    if (half_) HalvesFromFloat32(dtype_, range.results, reinterpret_cast<const float*>(range.values), range.count);
    return Status::Ok();
  }

  std::unique_ptr<StreamOperation> BeginAcross(SubGroup& hosts, const VectorRange& share, bool overlaps) override {
    const bool is_long = share.count * element_ >= LeastRingBytes(hosts.size());
    if (half_) {
      auto* sums = reinterpret_cast<float*>(share.values);
      const bool in_ring = tuning_.halves_in_ring && is_long;
      return BeginHalvesAllreduce(hosts, sums, share.results, share.count, dtype_, reduce_op_, finish_, in_ring);
    }
    if (!overlaps || !is_long) return nullptr;
    return BeginRingAllreduce(hosts, share.values, share.values, share.count, dtype_, reduce_op_, finish_);
  }

  const BufferList& buffers_;
  const bool half_;
  const bool whole_;
  const int32_t dtype_;
  const int32_t computed_as_;
  const size_t element_;
  const int32_t reduce_op_;
  const Finish finish_;
  const Tuning tuning_;
};

}  // namespace

SubGroup Across(StreamGroup& all, const Hosts& hosts, int local_index) {
  std::vector<int> members;
  for (const std::vector<int>& host : hosts.members) members.push_back(host[static_cast<size_t>(local_index)]);
  return SubGroup(&all, std::move(members));
}

Status HierarchicalAllreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const BufferList& buffers,
                             int32_t dtype, int32_t reduce_op, Finish finish, const Tuning& tuning) {
  return Allreduce(local, all, hosts, buffers, dtype, reduce_op, finish, tuning).Run();
}

Status HierarchicalBroadcast(SharedGroup& local, StreamGroup& all, const Hosts& hosts, int root, const void* input,
                             void* output, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  const auto root_index = static_cast<size_t>(root);
  const auto me = static_cast<size_t>(all.rank());
  // The root speaks for its host, the first rank for each other.
  std::vector<int> speakers;
  for (const std::vector<int>& host : hosts.members) speakers.push_back(host[0]);
  speakers[static_cast<size_t>(hosts.host_of[root_index])] = root;
  const int speaker = speakers[static_cast<size_t>(hosts.host_of[me])];
  if (all.rank() == root && input != output) std::memcpy(output, input, bytes);
  if (all.rank() == speaker) {
    SubGroup across(&all, speakers);
    SE_RETURN_IF_ERROR(StreamBroadcast(across, hosts.host_of[root_index], output, bytes));
  }
  return SharedBroadcast(local, hosts.local_of[static_cast<size_t>(speaker)], output, output, bytes);
}

Status HierarchicalBarrier(SharedGroup& local, StreamGroup& all, const Hosts& hosts) {
  SE_RETURN_IF_ERROR(SharedBarrier(local));
  if (local.rank == 0) {
    SubGroup leaders = Across(all, hosts, 0);
    SE_RETURN_IF_ERROR(StreamBarrier(leaders));
  }
  return SharedBarrier(local);
}

}  // namespace spark_estimator
