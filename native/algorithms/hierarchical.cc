// Long vectors are worked through in blocks, two at a time: while the network carries one, the ranks of each host
// reduce the next one and copy the last one out. The memory for joining and widening them stays small, too.
#include "algorithms/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "algorithms/shared.h"
#include "algorithms/stream.h"
#include "algorithms/stream_halves.h"
#include "algorithms/stream_operation.h"
#include "algorithms/stream_ring.h"
#include "base/dtype.h"
#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

// Of values as they are reduced. Two such blocks still fit into memory that a group keeps.
constexpr size_t kBlockBytes = size_t{2} << 20;
constexpr size_t kLargestBlockBytes = size_t{16} << 20;
// A rank's share of a block on a host: long against what a ring needs to fill, and for each step of that ring.
constexpr size_t kShareBytes = size_t{512} << 10;
constexpr size_t kStepBytes = size_t{64} << 10;

size_t CeilingOfQuotient(size_t dividend, size_t divisor) { return (dividend + divisor - 1) / divisor; }

class Allreduce {
 public:
  Allreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const BufferList& buffers, int32_t dtype,
            int32_t reduce_op, Finish finish, const Tuning& tuning)
      : local_(local),
        all_(all),
        hosts_(hosts),
        buffers_(buffers),
        even_(hosts.ranks_per_host() > 0 && hosts.count() > 1),
        half_(IsHalf(dtype)),
        whole_(buffers.parts().size() == 1 && !half_),
        dtype_(dtype),
        reduced_as_(half_ ? SE_FLOAT32 : dtype),
        element_(DtypeBytes(dtype)),
        reduced_element_(DtypeBytes(reduced_as_)),
        count_(buffers.total_bytes() / element_),
        reduce_op_(reduce_op),
        finish_(finish),
        tuning_(tuning) {}

  Status Run() {
    if (count_ == 0) return Status::Ok();
    return even_ && count_ * reduced_element_ > tuning_.exchange_bytes ? RunByShares() : RunByLeaders();
  }

 private:
  // A part of the vector. `values` is what is reduced, of the type that is computed with, and `results` the outcome:
  // the same memory, if they are of the same type.
  struct Block {
    size_t start = 0;  // in elements
    size_t count = 0;
    uint8_t* values = nullptr;
    uint8_t* results = nullptr;
    std::unique_ptr<StreamOperation> across;  // null before its start, and if nothing can be done beside it
  };

  // --- by one rank of each host

  Status RunByLeaders() {
    const size_t most = whole_ ? count_ : kLargestBlockBytes / reduced_element_;
    for (size_t start = 0; start < count_; start += most) {
      Block block;
      SE_RETURN_IF_ERROR(Place(start, std::min(most, count_ - start), 0, 1, &block));
      if (!whole_) Join(block);
      SE_RETURN_IF_ERROR(ReduceByLeader(block));
      if (!whole_) Spread(block);
    }
    return Status::Ok();
  }

  Status ReduceByLeader(const Block& block) {
    BufferList list;
    list.Add(whole_ ? Input(block) : block.values, block.values, block.count * reduced_element_);
    SE_RETURN_IF_ERROR(SharedAllreduce(local_, list, reduced_as_, reduce_op_, Finish{}));
    if (local_.rank == 0) {
      SubGroup leaders = Across(all_, hosts_, 0);
      SE_RETURN_IF_ERROR(
          StreamAllreduce(leaders, block.values, block.values, block.count, reduced_as_, reduce_op_, finish_, tuning_));
      if (half_) {
        HalvesFromFloat32(dtype_, block.results, reinterpret_cast<const float*>(block.values), block.count);
      }
    }
    return SharedBroadcast(local_, 0, block.results, block.results, block.count * element_);
  }

  // --- by shares: each rank of a host reduces one, then those of one local index reduce theirs across hosts

  // Every rank starts the same operations in the same order, so that none waits for one that waits for it.
  Status RunByShares() {
    SubGroup peers = Across(all_, hosts_, local_.rank);
    const size_t blocks = CeilingOfQuotient(count_ * reduced_element_, BlockBytes());
    constexpr size_t kLine = 64;  // elements; so many begin at a line of a cache, if the vector does
    const size_t most = blocks == 1 ? count_ : CeilingOfQuotient(CeilingOfQuotient(count_, blocks), kLine) * kLine;
    Block current;
    SE_RETURN_IF_ERROR(Place(0, most, 0, 2, &current));
    SE_RETURN_IF_ERROR(ReduceInside(current, nullptr));
    SE_RETURN_IF_ERROR(BeginAcross(peers, current, blocks > 1));
    for (size_t index = 1; current.count > 0; ++index) {
      Block next;
      const size_t start = current.start + current.count;
      if (start < count_) {
        SE_RETURN_IF_ERROR(Place(start, std::min(most, count_ - start), index % 2, 2, &next));
        SE_RETURN_IF_ERROR(ReduceInside(next, current.across.get()));
      }
      SE_RETURN_IF_ERROR(CompleteAcross(peers, current));
      if (next.count > 0) SE_RETURN_IF_ERROR(BeginAcross(peers, next, true));
      SE_RETURN_IF_ERROR(GatherInside(current, next.across.get()));
      current = std::move(next);
    }
    return Status::Ok();
  }

  size_t BlockBytes() const {
    const auto local_ranks = static_cast<size_t>(local_.size);
    const size_t share = std::max(kShareBytes, static_cast<size_t>(hosts_.count()) * kStepBytes);
    return std::min(std::max(kBlockBytes, local_ranks * share), kLargestBlockBytes);
  }

  Status ReduceInside(const Block& block, StreamOperation* meanwhile) {
    if (!whole_) Join(block);
    SE_RETURN_IF_ERROR(Advance(meanwhile));
    const std::vector<size_t> bytes_of = BytesOfShares(block, reduced_element_);
    const uint8_t* input = whole_ ? Input(block) : block.values;
    SE_RETURN_IF_ERROR(
        SharedReducescatter(local_, input, bytes_of, ShareOfValues(block), reduced_as_, reduce_op_, Finish{}));
    return Advance(meanwhile);
  }

  // `overlaps`: there is another block, to work on meanwhile.
  Status BeginAcross(SubGroup& peers, Block& block, bool overlaps) {
    const size_t count = CountOfShare(block);
    if (half_) {
      block.across = BeginHalvesAllreduce(peers, reinterpret_cast<const float*>(ShareOfValues(block)),
                                          ShareOfResults(block), count, dtype_, reduce_op_, finish_);
    } else if (overlaps && count * element_ >= static_cast<size_t>(peers.size()) * kStepBytes / 2) {
      uint8_t* share = ShareOfValues(block);
      block.across = BeginRingAllreduce(peers, share, share, count, dtype_, reduce_op_, finish_);
    }
    return Advance(block.across.get());
  }

  Status CompleteAcross(SubGroup& peers, const Block& block) {
    if (block.across) return block.across->Complete();
    uint8_t* share = ShareOfValues(block);
    return StreamAllreduce(peers, share, share, CountOfShare(block), dtype_, reduce_op_, finish_, tuning_);
  }

  Status GatherInside(const Block& block, StreamOperation* meanwhile) {
    SE_RETURN_IF_ERROR(SharedAllgather(local_, ShareOfResults(block), BytesOfShares(block, element_), block.results));
    SE_RETURN_IF_ERROR(Advance(meanwhile));
    if (whole_) return Status::Ok();
    Spread(block);
    return Advance(meanwhile);
  }

  static Status Advance(StreamOperation* operation) { return operation ? operation->Advance() : Status::Ok(); }

  std::vector<size_t> BytesOfShares(const Block& block, size_t element) const {
    return SharesOf(block.count * element, element, local_.size);
  }
  // Elements of this rank's share, and of those before it.
  size_t CountOfShare(const Block& block) const { return BytesOfShares(block, 1)[static_cast<size_t>(local_.rank)]; }
  size_t StartOfShare(const Block& block) const {
    const std::vector<size_t> counts = BytesOfShares(block, 1);
    return std::accumulate(counts.begin(), counts.begin() + local_.rank, size_t{0});
  }
  uint8_t* ShareOfValues(const Block& block) const { return block.values + StartOfShare(block) * reduced_element_; }
  uint8_t* ShareOfResults(const Block& block) const { return block.results + StartOfShare(block) * element_; }

  // --- memory

  // A single tensor is reduced in its output; others, and 16-bit types, in the `area`-th part of memory for `areas`
  // blocks. The first block is none smaller than the others.
  Status Place(size_t start, size_t count, size_t area, size_t areas, Block* block) {
    block->start = start;
    block->count = count;
    if (whole_) {
      block->values = block->results = buffers_.parts()[0].output + start * element_;
      return Status::Ok();
    }
    if (start == 0) {
      area_bytes_ = count * (reduced_element_ + (half_ ? element_ : 0));
      SE_RETURN_IF_ERROR(all_.Scratch(area_bytes_ * (count < count_ ? areas : 1), &memory_));
    }
    block->values = memory_ + area * area_bytes_;
    block->results = half_ ? block->values + count * reduced_element_ : block->values;
    return Status::Ok();
  }

  const uint8_t* Input(const Block& block) const { return buffers_.parts()[0].input + block.start * element_; }

  // Copies the block's part of the buffers to `values`.
  void Join(const Block& block) const {
    buffers_.ForEach(block.start * element_, block.count * element_,
                     [&](const uint8_t* input, uint8_t*, size_t offset, size_t bytes) {
                       if (half_) {
                         auto* floats = reinterpret_cast<float*>(block.values);
                         HalvesToFloat32(dtype_, floats + offset / element_, input, bytes / element_);
                       } else {
                         std::memcpy(block.values + offset, input, bytes);
                       }
                     });
  }
  // Copies `results` to the block's part of the buffers.
  void Spread(const Block& block) const {
    buffers_.ForEach(block.start * element_, block.count * element_,
                     [&](const uint8_t*, uint8_t* output, size_t offset, size_t bytes) {
                       std::memcpy(output, block.results + offset, bytes);
                     });
  }

  SharedGroup& local_;
  StreamGroup& all_;
  const Hosts& hosts_;
  const BufferList& buffers_;
  const bool even_;
  const bool half_;
  const bool whole_;
  const int32_t dtype_;
  const int32_t reduced_as_;
  const size_t element_;
  const size_t reduced_element_;
  const size_t count_;  // elements of the vector
  const int32_t reduce_op_;
  const Finish finish_;
  const Tuning tuning_;
  uint8_t* memory_ = nullptr;
  size_t area_bytes_ = 0;
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
