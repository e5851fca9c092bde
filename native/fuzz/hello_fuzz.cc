// Fuzzes the ranks' first frames: for all accepted hellos, the hosts that the ranks compute are consistent.
#include <algorithm>
#include <vector>

#include "algorithms/hosts.h"
#include "engine/membership/handshake.h"
#include "input.h"

using namespace spark_estimator;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length) {
  fuzz::Input input(data, length);
  const int size = 1 + input.Byte() % 8;
  std::vector<std::vector<int>> visible;
  for (int rank = 0; rank < size; ++rank) {
    Hello hello;
    // A hello that is refused ends its job; here its rank sees no other.
    if (!Decode(input.Piece(), &hello) || !WhyImpossible(hello, rank, size).empty()) hello.visible_ranks.clear();
    visible.emplace_back(hello.visible_ranks.begin(), hello.visible_ranks.end());
  }
  const Hosts hosts = HostsOf(visible);
  int placed = 0;
  for (int host = 0; host < hosts.count(); ++host) {
    const std::vector<int>& members = hosts.members[static_cast<size_t>(host)];
    fuzz::Require(!members.empty() && std::ranges::is_sorted(members), "a host has ranks, in ascending order");
    for (size_t local = 0; local < members.size(); ++local) {
      const auto rank = static_cast<size_t>(members[local]);
      fuzz::Require(hosts.host_of.at(rank) == host, "a rank is of the host that it is a member of");
      fuzz::Require(hosts.local_of.at(rank) == static_cast<int>(local), "and knows its place there");
      placed += 1;
    }
  }
  fuzz::Require(placed == size, "every rank is of one host");
  return 0;
}
