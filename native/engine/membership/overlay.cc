#include "engine/membership/overlay.h"

#include <set>

namespace spark_estimator::overlay {

std::vector<int> Neighbours(int rank, int size) {
  std::set<int> ranks;
  for (int64_t distance = 1; distance < size; distance *= 2) {
    ranks.insert(static_cast<int>((rank + distance) % size));
    ranks.insert(static_cast<int>((rank + size - distance) % size));
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace spark_estimator::overlay
