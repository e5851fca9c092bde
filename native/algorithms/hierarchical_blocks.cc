#include "algorithms/hierarchical_blocks.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "algorithms/hierarchical.h"
#include "algorithms/shared.h"
#include "base/dtype.h"

namespace spark_estimator {
namespace {

// Of values. Two blocks of the least size still fit into memory that a group keeps.
constexpr size_t kBlockBytes = size_t{2} << 20;
constexpr size_t kLeadersBlockBytes = size_t{16} << 20;
// A rank's share of a block on a host: long against what a ring needs to fill, and for each step of that ring.
constexpr size_t kShareBytes = size_t{512} << 10;
constexpr size_t kStepBytes = size_t{64} << 10;

size_t CeilingOfQuotient(size_t dividend, size_t divisor) { return (dividend + divisor - 1) / divisor; }

Status Advance(StreamOperation* operation) { return operation ? operation->Advance() : Status::Ok(); }

}  // namespace

size_t LeastRingBytes(int hosts) { return static_cast<size_t>(hosts) * kStepBytes / 2; }

HierarchicalBlocks::HierarchicalBlocks(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const Vector& vector,
                                       const Tuning& tuning)
    : local_(local),
      all_(all),
      hosts_(hosts),
      vector_(vector),
      value_bytes_(DtypeBytes(vector.computed_as)),
      tuning_(tuning) {}

Status HierarchicalBlocks::Run() {
  if (vector_.count == 0) return Status::Ok();
  const bool even = hosts_.ranks_per_host() > 0 && hosts_.count() > 1;
  return even && vector_.count * value_bytes_ > tuning_.exchange_bytes ? RunByShares() : RunByLeaders();
}

Status HierarchicalBlocks::RunByLeaders() {
  const size_t most = vector_.in_place ? vector_.count : kLeadersBlockBytes / value_bytes_;
  VectorRange block;
  for (size_t start = 0; start < vector_.count; start += most) {
    SE_RETURN_IF_ERROR(Place(start, std::min(most, vector_.count - start), 0, 1, &block));
    BufferList list;
    list.Add(Join(block), block.values, block.count * value_bytes_);
    SE_RETURN_IF_ERROR(SharedAllreduce(local_, list, vector_.computed_as, vector_.reduce_op, Finish{}));
    if (local_.rank == 0) {
      SubGroup leaders = Across(all_, hosts_, 0);
      SE_RETURN_IF_ERROR(ReduceAcross(leaders, block));
    }
    SE_RETURN_IF_ERROR(SharedBroadcast(local_, 0, block.results, block.results, block.count * vector_.result_bytes));
    Spread(block);
  }
  return Status::Ok();
}

// Every rank calls the same operations that wait in the same order, so that no two wait for each other.
Status HierarchicalBlocks::RunByShares() {
  SubGroup peers = Across(all_, hosts_, local_.rank);
  const size_t blocks = CeilingOfQuotient(vector_.count * value_bytes_, BlockBytes());
  constexpr size_t kLine = 64;  // elements: blocks begin at a line of a cache, if the vector does
  const size_t even = CeilingOfQuotient(CeilingOfQuotient(vector_.count, blocks), kLine) * kLine;
  const size_t most = std::min(even, vector_.count);
  VectorRange block;
  SE_RETURN_IF_ERROR(Place(0, most, 0, 2, &block));
  SE_RETURN_IF_ERROR(ReduceInside(block, nullptr));
  auto across = BeginAcross(peers, ShareOf(block), most < vector_.count);
  SE_RETURN_IF_ERROR(Advance(across.get()));
  for (size_t index = 1; block.count > 0; ++index) {
    VectorRange next;
    const size_t start = block.start + block.count;
    if (start < vector_.count) {
      SE_RETURN_IF_ERROR(Place(start, std::min(most, vector_.count - start), index % 2, 2, &next));
      SE_RETURN_IF_ERROR(ReduceInside(next, across.get()));
    }
    SE_RETURN_IF_ERROR(across ? across->Complete() : ReduceAcross(peers, ShareOf(block)));
    across.reset();
    if (next.count > 0) across = BeginAcross(peers, ShareOf(next), true);
    SE_RETURN_IF_ERROR(Advance(across.get()));
    SE_RETURN_IF_ERROR(GatherInside(block, across.get()));
    block = next;
  }
  return Status::Ok();
}

size_t HierarchicalBlocks::BlockBytes() const {
  const size_t step = kStepBytes * static_cast<size_t>(vector_.values_in_one);
  const size_t share = std::max(kShareBytes, static_cast<size_t>(hosts_.count()) * step);
  return std::max(kBlockBytes, static_cast<size_t>(local_.size) * share);
}

Status HierarchicalBlocks::Place(size_t start, size_t count, size_t area, size_t areas, VectorRange* block) {
  *block = {start, count, vector_.in_place, vector_.in_place};
  if (vector_.in_place) {
    block->values += start * value_bytes_;
    block->results += start * vector_.result_bytes;
    return Status::Ok();
  }
  const bool apart = vector_.result_bytes != value_bytes_;
  if (start == 0) {
    area_bytes_ = count * (value_bytes_ + (apart ? vector_.result_bytes : 0));
    SE_RETURN_IF_ERROR(all_.Scratch(area_bytes_ * (count < vector_.count ? areas : 1), &memory_));
  }
  block->values = memory_ + area * area_bytes_;
  block->results = block->values + (apart ? count * value_bytes_ : 0);
  return Status::Ok();
}

VectorRange HierarchicalBlocks::ShareOf(const VectorRange& block) const {
  const std::vector<size_t> counts = SharesOf(block.count, 1, local_.size);
  const size_t before = std::accumulate(counts.begin(), counts.begin() + local_.rank, size_t{0});
  return {block.start + before, counts[static_cast<size_t>(local_.rank)], block.values + before * value_bytes_,
          block.results + before * vector_.result_bytes};
}

Status HierarchicalBlocks::ReduceInside(const VectorRange& block, StreamOperation* meanwhile) {
  const uint8_t* input = Join(block);
  SE_RETURN_IF_ERROR(Advance(meanwhile));
  const std::vector<size_t> bytes_of = SharesOf(block.count * value_bytes_, value_bytes_, local_.size);
  SE_RETURN_IF_ERROR(SharedReducescatter(local_, input, bytes_of, ShareOf(block).values, vector_.computed_as,
                                         vector_.reduce_op, Finish{}));
  return Advance(meanwhile);
}

Status HierarchicalBlocks::GatherInside(const VectorRange& block, StreamOperation* meanwhile) {
  const std::vector<size_t> bytes_of = SharesOf(block.count * vector_.result_bytes, vector_.result_bytes, local_.size);
  SE_RETURN_IF_ERROR(SharedAllgather(local_, ShareOf(block).results, bytes_of, block.results));
  SE_RETURN_IF_ERROR(Advance(meanwhile));
  Spread(block);
  return Advance(meanwhile);
}

}  // namespace spark_estimator
