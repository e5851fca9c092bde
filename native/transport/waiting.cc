#include "transport/waiting.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

namespace spark_estimator {
namespace {

constexpr int kYields = 4;
constexpr int kPausesPerLookAtClock = 16;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// The word is shared between processes, so these are not the "private" futex calls.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::nanoseconds timeout) {
  timespec limit{};
  limit.tv_sec = timeout.count() / 1000000000;
  limit.tv_nsec = timeout.count() % 1000000000;
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

int64_t InvoluntarySwitches() {
  rusage usage{};
#if defined(RUSAGE_THREAD)
  getrusage(RUSAGE_THREAD, &usage);
#endif
  return usage.ru_nivcsw;
}

}  // namespace

void Post(Flag& flag, uint32_t value) {
  // Sequentially consistent on both sides: a sleeper announces itself and looks once more, we store and then look for
  // sleepers, so one of the two sees the other.
  flag.core.store(sched_getcpu(), std::memory_order_relaxed);
  flag.value.store(value, std::memory_order_seq_cst);
  if (flag.sleepers.load(std::memory_order_seq_cst) > 0) FutexWakeAll(flag.value);
}

Waiting::Waiting(int local_size, int cores, int spin_microseconds, bool moves_apart)
    : crowded_(local_size > cores), moves_apart_(moves_apart && !crowded_) {
  const std::chrono::nanoseconds longest =
      spin_microseconds < 0 ? kLongestSpin : std::chrono::microseconds(spin_microseconds);
  if (!crowded_ && local_size > 1) longest_spin_ = longest;
}

void Caution::Cost() {
  paid_ = 0;
  resting_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, longest_rest_);
}

void Caution::Paid() {
  if (++paid_ < kPaidToForget) return;
  paid_ = 0;
  next_rest_ = std::max(next_rest_ / 2, kShortestRest);
}

bool Waiting::Spin(const Flag& flag, uint32_t value, Time deadline) {
  const Time end = std::min(deadline, Clock::now() + longest_spin_);
  do {
    for (int i = 0; i < kPausesPerLookAtClock; ++i) {
      Pause();
      if (!Reached(flag, value)) continue;
      failures_ = 0;
      spinning_.Paid();
      return true;
    }
  } while (Clock::now() < end);
  const int64_t pushed_off = InvoluntarySwitches();
  const bool others_want_the_core = pushed_off > pushed_off_;
  pushed_off_ = pushed_off;
  if (++failures_ >= kFailuresBeforeRest || others_want_the_core) {
    failures_ = 0;
    spinning_.Cost();
  }
  return false;
}

bool Waiting::GiveWay(const Flag& flag, uint32_t value) {
  Time before = Clock::now();
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    const Time after = Clock::now();
    const bool reached = Reached(flag, value);
    if (after - before > kLongYield) {
      yielding_.Cost();
      return reached;
    }
    if (reached) {
      yielding_.Paid();
      return true;
    }
    before = after;
  }
  return false;
}

bool LeaveCore() {
  cpu_set_t allowed;
  const int core = sched_getcpu();
  if (core < 0 || sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < 2) return false;
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<size_t>(core), &others);
  if (sched_setaffinity(0, sizeof(others), &others) != 0) return false;
  sched_setaffinity(0, sizeof(allowed), &allowed);
  return true;
}

void Waiting::MoveApart(const Flag& flag) {
  if (flag.core.load(std::memory_order_relaxed) != sched_getcpu()) {
    together_ = 0;
    if (++apart_ < kApart) return;
    apart_ = 0;
    stay_ = kShortestStay;
    return;
  }
  apart_ = 0;
  if (++together_ < kTogether) return;
  together_ = 0;
  const Time now = Clock::now();
  if (now < next_move_ || !LeaveCore()) return;
  next_move_ = now + stay_;
  stay_ = std::min(2 * stay_, kLongestStay);
}

Status Waiting::AwaitSlowly(Flag& flag, uint32_t value, Time deadline, Liveness& liveness, bool* reached) {
  *reached = true;
  if (moves_apart_) MoveApart(flag);
  if (may_spin() && !spinning_.Resting() && Spin(flag, value, deadline)) return Status::Ok();
  if (!yielding_.Resting() && GiveWay(flag, value)) return Status::Ok();
  Time asked = Clock::now();
  while (true) {
    const Time now = Clock::now();
    if (now >= deadline) {
      *reached = Reached(flag, value);
      return Status::Ok();
    }
    if (now - asked >= kLivenessInterval) {
      SE_RETURN_IF_ERROR(liveness.Check());
      asked = now;
    }
    flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = flag.value.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - value) < 0) {
      FutexWait(flag.value, seen, std::min<std::chrono::nanoseconds>(deadline - now, asked + kLivenessInterval - now));
    }
    flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (Reached(flag, value)) return Status::Ok();
  }
}

}  // namespace spark_estimator
