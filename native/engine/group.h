// The group as this rank reaches it: the peers' names and connections, the memory that ranks share, and what runs
// operations over these.
//
// It owns them all, and is made in two steps: the constructor makes what needs no peer, so that a failure can be
// announced from then on; Start() makes the rest. Nothing is replaced afterwards.
//
//   Membership, PeerLinks, GroupExit       who is there, the connections to them, and how this rank ends its membership
//   Topology, StreamGroup, LateSockets     shared memory; data connections, and those that are made on first use
//   Executor, GpuExecutor                  one operation on tensors of the host, of a GPU
//
// Threads: Start() by the creating thread. The driving thread (DriveTurn) uses what the accessors under "driving" give;
// the others are for any thread, within what the header of the class that they give allows.
#ifndef SPARK_ESTIMATOR_ENGINE_GROUP_H_
#define SPARK_ESTIMATOR_ENGINE_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/contain.h"
#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/executor.h"
#include "engine/gpu/gpu_executor.h"
#include "engine/membership/group_exit.h"
#include "engine/membership/membership.h"
#include "engine/membership/peer_links.h"
#include "engine/membership/topology.h"
#include "engine/observe/counters.h"
#include "engine/parameters.h"
#include "transport/late_sockets.h"
#include "transport/liveness.h"
#include "transport/ring_order.h"
#include "transport/stream_group.h"

namespace spark_estimator {

class Group {
 public:
  // Both outlive it.
  Group(const EngineConfig* config, Counters* counters);

  // Takes over the connections and exchanges hellos with the peers. `liveness` is asked by every wait for a peer, and
  // outlives all operations. An error of this rank itself is for group_exit().AnnounceFailure.
  Status Start(std::vector<PeerConfig> peers, Liveness* liveness);
  // While no request is live: nothing reads these then. With the request table's lock held.
  void OrderRing(RingOrder order, bool halves_in_ring) {
    streams_->OrderRing(std::move(order));
    parameters_.tuning.halves_in_ring = halves_in_ring;
  }

  // --- driving

  Membership& membership() { return membership_; }
  PeerLinks& links() { return links_; }
  GroupExit& group_exit() { return exit_; }
  const Parameters& parameters() const { return parameters_; }
  // Whom the operation that runs waits for; empty when it waits for a GPU.
  std::vector<int> Awaited() const;
  // Increases with each step of an operation.
  int64_t StepsDone() const { return (topology_.local ? topology_.local->waits : 0) + streams_->bytes_moved(); }

  // --- any thread

  const EngineConfig& config() const { return config_; }
  const Topology& topology() const { return topology_; }
  int64_t UnsentTime() const { return streams_->UnsentTime(); }
  size_t cache_capacity() const { return cache_capacity_; }
  Executor& executor() const { return *executor_; }
  GpuExecutor& gpu() const { return *gpu_; }
  LateSockets& late_sockets() { return late_sockets_; }
  // That this rank could not allocate memory. It exists already.
  const Status& no_memory() const { return no_memory_; }
  template <typename Function>
  Status Contained(Function&& function) const noexcept {
    return Contain(no_memory_, std::forward<Function>(function));
  }
  // For a forked child: closes every descriptor and changes nothing else.
  void AbandonAfterFork();

 private:
  void MakeExecutors(int cores, Liveness* liveness);

  const EngineConfig& config_;
  Counters* const counters_;
  Membership membership_;
  const Status no_memory_;  // made before it is needed
  PeerLinks links_;
  GroupExit exit_;
  Topology topology_;
  Parameters parameters_;
  size_t cache_capacity_ = 0;
  LateSockets late_sockets_;
  std::unique_ptr<StreamGroup> streams_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<GpuExecutor> gpu_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_GROUP_H_
