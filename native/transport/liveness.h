// What a rank asks again and again while it waits for others: is it still worth waiting?
#ifndef SPARK_ESTIMATOR_TRANSPORT_LIVENESS_H_
#define SPARK_ESTIMATOR_TRANSPORT_LIVENESS_H_

#include <chrono>
#include <string>

#include "base/status.h"

namespace spark_estimator {

class Liveness {
 public:
  virtual ~Liveness() = default;
  // An error ends the wait: a peer is lost, or this rank is leaving. Must not block.
  virtual Status Check() = 0;
  // What to call a rank of the group in an error.
  virtual std::string NameOf(int rank) const { return "rank " + std::to_string(rank); }
};

// How long a wait may continue without a check. This is the longest delay until a dead peer's last message is read.
constexpr std::chrono::milliseconds kLivenessInterval{50};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_LIVENESS_H_
