#include "engine/wire/proposal.h"

#include <algorithm>
#include <utility>

namespace spark_estimator {

Lines CommonPrefixes(const Lines& a, const Lines& b) {
  Lines common;
  for (const Line& line : a) {
    const auto other =
        std::ranges::find_if(b, [&](const Line& candidate) { return candidate.front() == line.front(); });
    if (other == b.end()) continue;
    const auto end = std::ranges::mismatch(line, *other).in1;
    if (end - line.begin() > 1) common.emplace_back(line.begin(), end);
  }
  return common;
}

std::vector<int32_t> Pack(const Lines& lines) {
  std::vector<int32_t> packed;
  for (const Line& line : lines) {
    packed.push_back(static_cast<int32_t>(line.size()));
    packed.insert(packed.end(), line.begin(), line.end());
  }
  return packed;
}

bool Unpack(std::span<const int32_t> packed, size_t cache_capacity, Lines* lines) {
  lines->clear();
  while (!packed.empty()) {
    const int32_t length = packed[0];
    if (length < 2 || static_cast<size_t>(length) >= packed.size()) return false;
    const auto ids = packed.subspan(1, static_cast<size_t>(length));
    const auto possible = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < cache_capacity; };
    if (!std::ranges::all_of(ids, possible)) return false;
    lines->emplace_back(ids.begin(), ids.end());
    packed = packed.subspan(1 + ids.size());
  }
  return true;
}

}  // namespace spark_estimator
