// Which ranks share memory with this one, and that memory: the host's segments and the arena of shared tensors.
//
// Made once, by the creating thread; after that nothing of it changes but what the collectives write.
#ifndef SPARK_ESTIMATOR_ENGINE_TOPOLOGY_H_
#define SPARK_ESTIMATOR_ENGINE_TOPOLOGY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "algorithms/hosts.h"
#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/membership/handshake.h"
#include "engine/membership/membership.h"
#include "transport/arena.h"
#include "transport/segment.h"
#include "transport/shared_group.h"

namespace spark_estimator {

struct Topology {
  Hosts hosts;
  std::unique_ptr<SharedGroup> local;  // the ranks of this host, when there are several that share memory
  std::unique_ptr<Arena> arena = std::make_unique<Arena>();

  // Whether all ranks share memory.
  bool all_share() const { return local && local->size == static_cast<int>(hosts.host_of.size()); }
};

// Maps this rank's segment and those of the peers that have one. `segments`: [size]; `visible`: the ranks of those that
// are mapped.
Status MapSegments(const EngineConfig& config, std::vector<PeerConfig>& peers, const Membership& membership,
                   std::vector<Segment>* segments, std::vector<int64_t>* visible);
// `liveness` is asked by every wait in shared memory, and outlives the topology.
Status MakeTopology(const EngineConfig& config, const GroupSettings& settings, std::vector<Segment> segments,
                    Liveness* liveness, Topology* topology);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_TOPOLOGY_H_
