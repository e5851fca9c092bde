// How a vector is divided among ranks.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_SHARES_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_SHARES_H_

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace spark_estimator {

class Shares {
 public:
  // Even shares of `bytes` bytes in whole units.
  Shares(size_t bytes, size_t unit, int ranks) {
    const auto n = static_cast<size_t>(ranks);
    const size_t share = (bytes / unit + n - 1) / n * unit;
    for (size_t rank = 0; rank <= n; ++rank) starts_.push_back(std::min(bytes, share * rank));
  }
  // Shares of these lengths.
  explicit Shares(std::span<const size_t> bytes_of) {
    starts_.push_back(0);
    for (const size_t bytes : bytes_of) starts_.push_back(starts_.back() + bytes);
  }
  size_t start(int rank) const { return starts_[static_cast<size_t>(rank)]; }
  size_t length(int rank) const { return start(rank + 1) - start(rank); }
  size_t total() const { return starts_.back(); }

 private:
  std::vector<size_t> starts_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_SHARES_H_
