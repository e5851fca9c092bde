// The ranks of a group that are on one host and all see one another's segments, as one of them holds them.
#ifndef SPARK_ESTIMATOR_TRANSPORT_SHARED_GROUP_H_
#define SPARK_ESTIMATOR_TRANSPORT_SHARED_GROUP_H_

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "transport/liveness.h"
#include "transport/segment.h"
#include "transport/waiting.h"

namespace spark_estimator {

// For one thread at a time.
struct SharedGroup {
  int rank = 0;  // among the ranks of this host
  int size = 1;
  std::vector<Segment> segments;  // [size], by local rank
  // The same on all ranks, since all run the same collectives in the same order.
  uint32_t next_block = 0;
  uint32_t next_small = 0;
  uint32_t next_arena = 0;
  Waiting waiting;
  Liveness* liveness = nullptr;

  Segment& mine() { return segments[static_cast<size_t>(rank)]; }
  Segment& of(int peer) { return segments[static_cast<size_t>(peer)]; }

  // See Waiting::AwaitUntil.
  Status AwaitFlagUntil(Flag& flag, uint32_t value, Time deadline, bool* reached) {
    return waiting.AwaitUntil(flag, value, deadline, *liveness, reached);
  }
  Status AwaitFlag(Flag& flag, uint32_t value) {
    bool reached = false;
    return waiting.AwaitUntil(flag, value, Time::max(), *liveness, &reached);
  }
  // Waits until every other rank's flag, as chosen by `flag_of(Segment&)`, has reached `value`.
  template <typename FlagOf>
  Status AwaitOthers(FlagOf flag_of, uint32_t value) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      SE_RETURN_IF_ERROR(AwaitFlag(flag_of(of(peer)), value));
    }
    return Status::Ok();
  }
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_SHARED_GROUP_H_
