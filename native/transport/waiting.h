// Flags in shared memory and how a rank waits for them: spin while that pays, give the processor away, then sleep.
#ifndef SPARK_ESTIMATOR_TRANSPORT_WAITING_H_
#define SPARK_ESTIMATOR_TRANSPORT_WAITING_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "transport/liveness.h"

namespace spark_estimator {

// A counter that one rank raises and others wait for. Two lines apart, so that neither the flags' owners nor the
// processor's pairwise prefetch make neighbours share.
struct alignas(128) Flag {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
  std::atomic<int32_t> core;  // on which it was raised last, for those who wait on the same one
};

// Raises `flag` to `value` and wakes all that sleep on it.
void Post(Flag& flag, uint32_t value);

// "Reached" is a signed difference, since counters wrap.
inline bool Reached(const Flag& flag, uint32_t value) {
  return static_cast<int32_t>(flag.value.load(std::memory_order_acquire) - value) >= 0;
}

// When to try something that pays on a quiet machine and costs on a crowded one: not for a while after it cost, twice
// as long each time, and less long again after it has paid many times.
class Caution {
 public:
  static constexpr int kShortestRest = 16;  // waits without it
  static constexpr int kPaidToForget = 64;

  explicit Caution(int longest_rest) : longest_rest_(longest_rest) {}

  // To be asked once a wait.
  bool Resting() {
    if (resting_ == 0) return false;
    --resting_;
    return true;
  }
  void Cost();
  void Paid();

 private:
  int longest_rest_;
  int resting_ = 0;
  int next_rest_ = kShortestRest;
  int paid_ = 0;  // since it last cost
};

// Leaves the core that the calling thread runs on for another one that it may use; which ones these are stays as it
// was. False when there is none.
bool LeaveCore();

// One rank's way of waiting, which adapts. A spinning wait answers ten times sooner than a sleeping one when every rank
// has a core, and keeps the awaited rank from running when it has none (measured: 35 times slower at 4 ranks on 2
// cores). So it spins only when the host's ranks fit the cores, and is cautious after spins that failed in a row, or in
// which this thread was pushed off its core. Yielding the processor responds eight times sooner than sleeping if the
// awaited rank gets it, and a thousand times later if another program does: after a yield that took long it sleeps at
// once, since the kernel runs a woken thread before those that only compute. Two ranks that wake each other may end up
// on one core and take turns there permanently, six times slower than side by side, because to the kernel neither ever
// waits for the core: the rank that should move detects this and moves to another core. For one thread at a time.
class Waiting {
 public:
  static constexpr std::chrono::microseconds kLongestSpin{50};
  static constexpr int kFailuresBeforeRest = 3;                // of spins
  static constexpr std::chrono::microseconds kLongYield{200};  // more than a rank works between two hand-offs

  Waiting() = default;  // never spins
  // `local_size` ranks of this host share `cores` (those that this process may use); `spin_microseconds` is the longest
  // spin, 0 for none, -1 for kLongestSpin. `moves_apart`: when it shares a core with whom it waits for, it is this rank
  // that leaves.
  Waiting(int local_size, int cores, int spin_microseconds, bool moves_apart = false);

  // Waits until `flag` has reached `value` (then *reached is true) or `deadline` has passed (then it is false);
  // Time::max() for no deadline. `liveness` is asked at least every kLivenessInterval; its error ends the wait.
  Status AwaitUntil(Flag& flag, uint32_t value, Time deadline, Liveness& liveness, bool* reached) {
    if (Reached(flag, value)) {
      *reached = true;
      return Status::Ok();
    }
    return AwaitSlowly(flag, value, deadline, liveness, reached);
  }

  bool may_spin() const { return longest_spin_.count() > 0; }
  bool crowded() const { return crowded_; }  // more ranks than cores

 private:
  Status AwaitSlowly(Flag& flag, uint32_t value, Time deadline, Liveness& liveness, bool* reached);
  bool Spin(const Flag& flag, uint32_t value, Time deadline);
  bool GiveWay(const Flag& flag, uint32_t value);
  void MoveApart(const Flag& flag);

  static constexpr int kTogether = 8;  // waits in a row on the awaited rank's core, before this rank leaves it
  static constexpr int kApart = 4096;  // waits in a row on another core, after which leaving is cheap again
  static constexpr std::chrono::milliseconds kShortestStay{1};  // on a core; twice as long after each move
  static constexpr std::chrono::milliseconds kLongestStay{4000};

  std::chrono::nanoseconds longest_spin_{0};
  bool crowded_ = false;
  bool moves_apart_ = false;
  int together_ = 0;
  int apart_ = 0;
  std::chrono::milliseconds stay_ = kShortestStay;
  Time next_move_{};
  // A spin that fails costs its 50 us; a yield to another program costs a time slice of some milliseconds.
  Caution spinning_{256};
  Caution yielding_{4096};
  int failures_ = 0;        // spins in a row that did not see the flag
  int64_t pushed_off_ = 0;  // involuntary context switches of this thread when last looked at
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_WAITING_H_
