// Finds connected sets of mutual visibility; the complete ones are hosts.
#include "algorithms/hosts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace spark_estimator {

int Hosts::ranks_per_host() const {
  if (members.empty()) return 0;
  const size_t first = members[0].size();
  const bool even =
      std::all_of(members.begin(), members.end(), [&](const std::vector<int>& host) { return host.size() == first; });
  return even ? static_cast<int>(first) : 0;
}

bool Hosts::in_rank_order() const {
  if (ranks_per_host() == 0) return false;
  int next = 0;
  for (const std::vector<int>& host : members) {
    for (const int rank : host) {
      if (rank != next++) return false;
    }
  }
  return true;
}

Hosts HostsOf(const std::vector<std::vector<int>>& visible_ranks) {
  const size_t ranks = visible_ranks.size();
  std::vector<std::vector<bool>> sees(ranks, std::vector<bool>(ranks));
  for (size_t rank = 0; rank < ranks; ++rank) {
    sees[rank][rank] = true;
    for (const int other : visible_ranks[rank]) sees[rank][static_cast<size_t>(other)] = true;
  }
  const auto mutual = [&](size_t a, size_t b) { return sees[a][b] && sees[b][a]; };

  std::vector<std::vector<int>> sets;
  std::vector<bool> placed(ranks);
  for (size_t first = 0; first < ranks; ++first) {
    if (placed[first]) continue;
    std::vector<size_t> set = {first};
    placed[first] = true;
    for (size_t next = 0; next < set.size(); ++next) {
      for (size_t other = first + 1; other < ranks; ++other) {
        if (placed[other] || !mutual(set[next], other)) continue;
        placed[other] = true;
        set.push_back(other);
      }
    }
    std::sort(set.begin(), set.end());
    const bool complete = std::all_of(set.begin(), set.end(), [&](size_t a) {
      return std::all_of(set.begin(), set.end(), [&](size_t b) { return mutual(a, b); });
    });
    if (complete) sets.emplace_back();
    for (const size_t rank : set) {
      if (!complete) sets.emplace_back();
      sets.back().push_back(static_cast<int>(rank));
    }
  }
  std::sort(sets.begin(), sets.end());

  Hosts hosts;
  hosts.members = std::move(sets);
  hosts.host_of.resize(ranks);
  hosts.local_of.resize(ranks);
  for (size_t host = 0; host < hosts.members.size(); ++host) {
    for (size_t local = 0; local < hosts.members[host].size(); ++local) {
      const auto rank = static_cast<size_t>(hosts.members[host][local]);
      hosts.host_of[rank] = static_cast<int>(host);
      hosts.local_of[rank] = static_cast<int>(local);
    }
  }
  return hosts;
}

}  // namespace spark_estimator
