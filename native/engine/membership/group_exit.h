// Ends a rank's membership: reports a failure to the peers, sends the goodbye, and until then keeps the links alive.
//
//   a failure      AnnounceFailure, then TendLinks until the engine is shut down: links that end early would look like
//                  another death to peers that have not seen the cause yet
//   a departure    SayGoodbye; the links end after it
//
// Every function leaves out what there is no memory for, rather than throw. Threads: used by the driving thread, which
// is the engine's at its end.
#ifndef SPARK_ESTIMATOR_ENGINE_GROUP_EXIT_H_
#define SPARK_ESTIMATOR_ENGINE_GROUP_EXIT_H_

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/membership/membership.h"
#include "engine/membership/peer_links.h"

namespace spark_estimator {

class GroupExit {
 public:
  // `no_memory`: the failure of this rank for lack of memory, made ahead. All outlive it.
  GroupExit(Membership* membership, PeerLinks* links, const Status* no_memory);

  // Each peer is sent an abort, if its connection takes it: without, it would take this rank, which lives, for lost.
  void AnnounceFailure(const Status& why) noexcept;
  // For a broken engine that is not shut down yet: reads frames, follows which ranks leave, and forgets a peer that
  // falls silent, since its expired clock would wake the thread repeatedly.
  void TendLinks(Time now) noexcept;
  // Notifies the peers that this rank leaves in good order after this number of operations, and ends its side of the
  // links.
  void SayGoodbye(int64_t executed) noexcept;
  // To all watched peers that have not left.
  void SendHeartbeats();

 private:
  void TakeIn(int source, Time now);
  void Drain();

  Membership* const membership_;
  PeerLinks* const links_;
  const Status* const no_memory_;
  std::string no_memory_abort_;  // the payload
  std::vector<pollfd> drained_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_GROUP_EXIT_H_
