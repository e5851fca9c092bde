#include "engine/membership/topology.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

namespace spark_estimator {

Status MapSegments(const EngineConfig& config, std::vector<PeerConfig>& peers, const Membership& membership,
                   std::vector<Segment>* segments, std::vector<int64_t>* visible) {
  segments->resize(static_cast<size_t>(config.size));
  const bool any_peer = std::ranges::any_of(peers, [](const PeerConfig& peer) { return peer.segment.valid(); });
  if (!config.own_segment.valid() || !any_peer) return Status::Ok();
  int local_size = 0;
  SE_RETURN_IF_ERROR(Segment::LocalSizeOf(config.own_segment.get(), &local_size).Within("this rank's own segment"));
  Segment& own_segment = (*segments)[static_cast<size_t>(config.rank)];
  SE_RETURN_IF_ERROR(own_segment.Map(config.own_segment.get(), local_size).Within("this rank's own segment"));
  for (PeerConfig& peer : peers) {
    if (!peer.segment.valid()) continue;
    SE_RETURN_IF_ERROR((*segments)[static_cast<size_t>(peer.rank)]
                           .Map(peer.segment.get(), local_size)
                           .Within("the segment of " + membership.NameOf(peer.rank)));
    peer.segment.Reset(-1);  // the mapping stays
  }
  for (int rank = 0; rank < config.size; ++rank) {
    if ((*segments)[static_cast<size_t>(rank)].mapped()) visible->push_back(rank);
  }
  return Status::Ok();
}

Status MakeTopology(const EngineConfig& config, const GroupSettings& settings, std::vector<Segment> segments,
                    Liveness* liveness, Topology* topology) {
  topology->hosts = HostsOf(settings.visible_of);
  const Hosts& hosts = topology->hosts;
  const std::vector<int>& members = hosts.members[static_cast<size_t>(hosts.host_of[static_cast<size_t>(config.rank)])];
  if (hosts.count() == config.size) return Status::Ok();
  if (members.size() == 1) {
    // Alone on its host among hosts with several: it takes part in what they do, with itself.
    UniqueFd alone;
    SE_RETURN_IF_ERROR(Segment::Create(1, &alone));
    SE_RETURN_IF_ERROR(segments[static_cast<size_t>(config.rank)].Map(alone.get(), 1));
  }
  topology->local = std::make_unique<SharedGroup>();
  SharedGroup& local = *topology->local;
  local.size = static_cast<int>(members.size());
  local.liveness = liveness;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == config.rank) local.rank = static_cast<int>(i);
    local.segments.push_back(std::move(segments[static_cast<size_t>(members[i])]));
  }
  // All ranks must take the cores to be as many, since that decides how they cut vectors. Of two ranks on one core, one
  // has to stay.
  local.waiting = Waiting(local.size, settings.cores, config.spin_microseconds, local.rank > 0);
  Segment& own_segment = local.mine();
  if (own_segment.arena() != nullptr && members.size() > 1) {
    topology->arena =
        std::make_unique<Arena>(UniqueFd(fcntl(config.own_segment.get(), F_DUPFD_CLOEXEC, 3)),
                                own_segment.arena_offset(), own_segment.arena(), own_segment.arena_bytes());
  }
  return Status::Ok();
}

}  // namespace spark_estimator
