#include "transport/polling.h"

#include <sched.h>

#include <algorithm>

namespace spark_estimator {

bool Polling::Again() {
  if (wait_ == Wait::kSleeping) return false;
  const Time now = Clock::now();
  if (wait_ == Wait::kNone) {
    if (resting_ > 0) {
      --resting_;
      wait_ = Wait::kSleeping;
      return false;
    }
    wait_ = Wait::kLooking;
    began_ = now;
  } else if (now - began_ > kLongest) {
    wait_ = Wait::kSleeping;
    if (++useless_ >= kUselessBeforeRest) Rest();
    return false;
  }
  sched_yield();
  if (Clock::now() - now > kLongTurn) {
    wait_ = Wait::kSleeping;
    Rest();
  }
  return true;
}

void Polling::Came() {
  if (wait_ == Wait::kLooking) {
    useless_ = 0;
    next_rest_ = kShortestRest;
  }
  wait_ = Wait::kNone;
}

void Polling::Rest() {
  useless_ = 0;
  resting_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
}

}  // namespace spark_estimator
