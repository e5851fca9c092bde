// Looking again before sleeping, for waits on sockets: being woken costs more than a few looks.
#ifndef SPARK_ESTIMATOR_TRANSPORT_POLLING_H_
#define SPARK_ESTIMATOR_TRANSPORT_POLLING_H_

#include <chrono>

#include "base/clock.h"

namespace spark_estimator {

// One thread's policy, which adapts. Between two polls the thread yields its core. If polling did not help several
// times in a row, or another thread took the core and kept it, waits sleep at once for a while, twice as long each
// time.
class Polling {
 public:
  static constexpr std::chrono::microseconds kLongest{50};   // about what sleeping and being woken costs
  static constexpr std::chrono::microseconds kLongTurn{30};  // the core was taken by a thread that computes
  static constexpr int kUselessBeforeRest = 4;
  static constexpr int kShortestRest = 16;  // waits
  static constexpr int kLongestRest = 4096;

  // After a poll that found nothing: whether to poll again now (the core has been yielded meanwhile), or to sleep.
  bool Again();
  // Data has arrived: the wait is over.
  void Came();

 private:
  enum class Wait {
    kNone,
    kLooking,
    kSleeping
  };

  void Rest();

  Wait wait_ = Wait::kNone;
  Time began_;
  int useless_ = 0;
  int resting_ = 0;
  int next_rest_ = kShortestRest;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_POLLING_H_
