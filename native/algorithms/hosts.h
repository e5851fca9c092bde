// Which ranks are of one host, as far as collectives care: those that can share memory.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_HOSTS_H_
#define SPARK_ESTIMATOR_ALGORITHMS_HOSTS_H_

#include <vector>

namespace spark_estimator {

struct Hosts {
  std::vector<int> host_of;               // [rank]
  std::vector<int> local_of;              // [rank], its index among the ranks of its host
  std::vector<std::vector<int>> members;  // [host][local index], ranks in ascending order

  int count() const { return static_cast<int>(members.size()); }
  // 0 when the hosts hold different numbers of ranks.
  int ranks_per_host() const;
  // Whether all hold equally many, the first host the first ranks, and so on.
  bool in_rank_order() const;
};

// visible_ranks[r] are the ranks whose segments rank r has mapped; itself may be among them or not. Ranks that see each
// other, directly or through others, are a host if all of them see all others; else each of them is a host. Hosts are
// numbered by their lowest rank. Pure, so that all ranks compute the same from the same hellos.
Hosts HostsOf(const std::vector<std::vector<int>>& visible_ranks);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_HOSTS_H_
