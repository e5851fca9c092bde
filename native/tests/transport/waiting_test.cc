// Waiting for flags: with and without a deadline, spinning and asleep, and the end of a wait that no rank answers.
#include "transport/waiting.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;
using std::chrono::milliseconds;

class AlwaysAlive : public Liveness {
 public:
  Status Check() override {
    ++asked;
    return Status::Ok();
  }
  int asked = 0;
};

class DiesAfter : public Liveness {
 public:
  explicit DiesAfter(int questions) : left_(questions) {}
  Status Check() override { return --left_ >= 0 ? Status::Ok() : Status(SE_PEER_LOST, "rank 1 is gone"); }

 private:
  int left_;
};

// Never spins, spins briefly, adapts, spins for longer than any wait here; also with more ranks than cores.
std::vector<Waiting> Ways() {
  return {Waiting(), Waiting(2, 2, 0), Waiting(2, 2, 5), Waiting(2, 2, -1), Waiting(2, 2, 1000000), Waiting(4, 2, -1)};
}

void WhoSpins() {
  CHECK(!Waiting().may_spin());
  CHECK(!Waiting(2, 2, 0).may_spin());
  CHECK(Waiting(2, 2, -1).may_spin());
  CHECK(Waiting(2, 2, 3).may_spin());
  CHECK(!Waiting(1, 2, -1).may_spin());  // no rank to wait for
  CHECK(!Waiting(3, 2, -1).may_spin());
  CHECK(!Waiting(3, 2, 100).may_spin());
  CHECK(Waiting(3, 2, -1).crowded());
}

void LeavingACoreKeepsTheChoice() {
  cpu_set_t before;
  CHECK_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  const int core = sched_getcpu();
  const bool left = LeaveCore();
  CHECK_EQ(left, CPU_COUNT(&before) > 1);
  // The kernel may move it back at once, but hardly ten times in a row.
  int elsewhere = sched_getcpu() != core;
  for (int i = 0; i < 10 && left && elsewhere == 0; ++i) {
    const int here = sched_getcpu();
    CHECK(LeaveCore());
    elsewhere = sched_getcpu() != here;
  }
  CHECK(!left || elsewhere);
  cpu_set_t after;
  CHECK_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  CHECK(CPU_EQUAL(&before, &after));
}

// Each time that it cost, twice as many waits skip it, up to a limit; repeated gains shorten them again.
void CautionGrowsAndFades() {
  constexpr int kLongestRest = 1024;
  Caution caution(kLongestRest);
  const auto rests = [&caution] {
    int count = 0;
    while (caution.Resting()) ++count;
    return count;
  };
  CHECK_EQ(rests(), 0);
  int expected = Caution::kShortestRest;
  for (int turn = 0; turn < 20; ++turn) {
    caution.Cost();
    CHECK_EQ(rests(), expected);
    CHECK(!caution.Resting());
    expected = std::min(2 * expected, kLongestRest);
  }
  for (int i = 0; i < Caution::kPaidToForget - 1; ++i) caution.Paid();
  caution.Cost();
  CHECK_EQ(rests(), kLongestRest);  // not often enough
  for (int i = 0; i < 3 * Caution::kPaidToForget; ++i) caution.Paid();
  caution.Cost();
  CHECK_EQ(rests(), kLongestRest / 8);
  for (int i = 0; i < 100 * Caution::kPaidToForget; ++i) caution.Paid();
  caution.Cost();
  CHECK_EQ(rests(), Caution::kShortestRest);
}

void ReachedAtOnce() {
  for (Waiting waiting : Ways()) {
    Flag flag{};
    AlwaysAlive alive;
    Post(flag, 5);
    bool reached = false;
    for (const uint32_t value : {5u, 4u, 0u, 0xfffffff0u}) {  // the last is behind: counters wrap
      CHECK(waiting.AwaitUntil(flag, value, Time::min(), alive, &reached).ok());
      CHECK(reached);
    }
    CHECK_EQ(alive.asked, 0);
  }
}

void DeadlinePasses() {
  for (Waiting waiting : Ways()) {
    Flag flag{};
    AlwaysAlive alive;
    for (const milliseconds delay : {milliseconds(-10), milliseconds(0), milliseconds(3), milliseconds(120)}) {
      const Time deadline = Clock::now() + delay;
      bool reached = true;
      CHECK(waiting.AwaitUntil(flag, 1, deadline, alive, &reached).ok());
      CHECK(!reached);
      CHECK(Clock::now() >= deadline);
    }
    CHECK_EQ(flag.sleepers.load(), 0u);
  }
}

void LivenessEndsIt() {
  for (Waiting waiting : Ways()) {
    Flag flag{};
    DiesAfter liveness(2);
    bool reached = false;
    const Status status = waiting.AwaitUntil(flag, 1, Time::max(), liveness, &reached);
    CHECK_EQ(status.code(), SE_PEER_LOST);
    CHECK_EQ(flag.sleepers.load(), 0u);
  }
}

void WokenFromSleep() {
  for (Waiting waiting : Ways()) {
    Flag flag{};
    std::thread poster([&flag] {
      while (flag.sleepers.load() == 0) std::this_thread::yield();  // it does sleep in the end
      Post(flag, 1);
    });
    AlwaysAlive alive;
    bool reached = false;
    CHECK(waiting.AwaitUntil(flag, 1, Time::max(), alive, &reached).ok());
    CHECK(reached);
    poster.join();
  }
}

// Two threads pass a turn back and forth; every way of waiting completes, and none misses a wake-up.
void PingPong() {
  for (size_t way = 0; way < Ways().size(); ++way) {
    std::array<Flag, 2> flags{};
    constexpr uint32_t kTurns = 3000;
    const auto play = [&](size_t me) {
      Waiting waiting = Ways()[way];
      AlwaysAlive alive;
      for (uint32_t turn = 0xffffff00u; turn != 0xffffff00u + kTurns; ++turn) {  // past the end of the counter
        Post(flags[me], turn + 1);
        bool reached = false;
        CHECK(waiting.AwaitUntil(flags[1 - me], turn + 1, Time::max(), alive, &reached).ok());
        CHECK(reached);
      }
    };
    for (Flag& flag : flags) flag.value = 0xffffff00u;
    std::thread other(play, 1);
    play(0);
    other.join();
  }
}

}  // namespace

int main() {
  return RunTests({{"who spins", WhoSpins},
                   {"leaving a core keeps the choice", LeavingACoreKeepsTheChoice},
                   {"caution grows and fades", CautionGrowsAndFades},
                   {"reached at once", ReachedAtOnce},
                   {"deadline passes", DeadlinePasses},
                   {"liveness ends it", LivenessEndsIt},
                   {"woken from sleep", WokenFromSleep},
                   {"ping pong", PingPong}});
}
