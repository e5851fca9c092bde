// The ranks' first frames to each other, while an engine is created: who each one is, whose memory it sees, and the
// settings that all of them use.
//
// Threads: used by the creating thread, before there is any other.
#ifndef SPARK_ESTIMATOR_ENGINE_HANDSHAKE_H_
#define SPARK_ESTIMATOR_ENGINE_HANDSHAKE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/membership/membership.h"
#include "engine/membership/peer_links.h"
#include "engine/parameters.h"
#include "engine/wire/message.h"

namespace spark_estimator {

// The values that all ranks have agreed on.
struct GroupSettings {
  Parameters parameters;
  int64_t cache_capacity = 0;
  int cores = 1;                             // of the host that has fewest
  std::vector<std::vector<int>> visible_of;  // [size], the ranks whose segments each rank has mapped
};

// Why a group of `size` cannot take this as the hello of its `rank`: the field and its value. Empty when it can.
std::string WhyImpossible(const Hello& hello, int rank, int size);

// Sends this rank's hello and takes those of all peers, within config.start_timeout_seconds. `visible`: the ranks whose
// segments this rank has mapped. Gives the members the names by which they know themselves. What peers send after their
// hello stays in their inboxes.
Status ExchangeHellos(const EngineConfig& config, const std::vector<int64_t>& visible, Membership& membership,
                      PeerLinks& links, GroupSettings* settings);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_HANDSHAKE_H_
