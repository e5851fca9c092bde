// The order in which rings and chains pass through the ranks of a group.
#ifndef SPARK_ESTIMATOR_TRANSPORT_RING_ORDER_H_
#define SPARK_ESTIMATOR_TRANSPORT_RING_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace spark_estimator {

class RingOrder {
 public:
  // That of the ranks.
  explicit RingOrder(int size) : size_(size) {}
  // `ranks`: every rank of the group once.
  explicit RingOrder(std::vector<int> ranks) : size_(static_cast<int>(ranks.size())), ranks_(std::move(ranks)) {
    if (std::ranges::is_sorted(ranks_)) ranks_.clear();
    positions_.resize(ranks_.size());
    for (size_t position = 0; position < ranks_.size(); ++position) {
      positions_[static_cast<size_t>(ranks_[position])] = static_cast<int>(position);
    }
  }

  bool is_that_of_ranks() const { return ranks_.empty(); }
  // The ring is closed: positions from -size to 2 size - 1.
  int RankAt(int position) const {
    const int wrapped = (position + size_) % size_;
    return ranks_.empty() ? wrapped : ranks_[static_cast<size_t>(wrapped)];
  }
  int PositionOf(int rank) const { return ranks_.empty() ? rank : positions_[static_cast<size_t>(rank)]; }
  // Of a part of the group, whose ranks are the indices of `members`. That of these, if this one is that of the ranks.
  RingOrder Of(std::span<const int> members) const {
    if (is_that_of_ranks()) return RingOrder(static_cast<int>(members.size()));
    std::vector<int> indices(members.size());
    for (size_t index = 0; index < members.size(); ++index) indices[index] = static_cast<int>(index);
    const auto position = [&](int index) { return PositionOf(members[static_cast<size_t>(index)]); };
    std::ranges::sort(indices, {}, position);
    return RingOrder(std::move(indices));
  }

 private:
  int size_;
  std::vector<int> ranks_;      // by position; empty: that of the ranks
  std::vector<int> positions_;  // by rank
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_RING_ORDER_H_
