// The ranks of a job that all see one another's segments, as one of them holds them.
#ifndef SPARK_ESTIMATOR_TRANSPORT_SHARED_GROUP_H_
#define SPARK_ESTIMATOR_TRANSPORT_SHARED_GROUP_H_

#include <cstdint>
#include <vector>

#include "transport/liveness.h"
#include "transport/segment.h"

namespace spark_estimator {

struct SharedGroup {
  int rank = 0;
  int size = 1;
  std::vector<Segment> segments;  // [size], by rank
  // The same on all ranks, since all run the same collectives in the same order.
  uint32_t next_block = 0;
  uint32_t next_small = 0;
  int spin_pauses = 0;
  Liveness* liveness = nullptr;

  Segment& mine() { return segments[static_cast<size_t>(rank)]; }
  Segment& of(int peer) { return segments[static_cast<size_t>(peer)]; }
  Status AwaitFlag(Flag& flag, uint32_t value) { return Await(flag, value, spin_pauses, *liveness); }
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
