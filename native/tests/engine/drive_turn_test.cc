// Who drives: every transition of the table in drive_turn.h, and every one that it refuses.
#include "engine/drive_turn.h"

#include <functional>
#include <map>
#include <thread>

#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;
using State = DriveTurn::State;

void Reach(DriveTurn& turn, State state) {
  switch (state) {
    case State::kFree:
      break;
    case State::kFreeForThread:
      CHECK(turn.ThreadWaits());
      break;
    case State::kDriven:
      CHECK(turn.TakeByCaller());
      break;
    case State::kDrivenThreadNext:
      CHECK(turn.TakeByCaller() && turn.ThreadWaits());
      break;
    case State::kTakenForGood:
      CHECK(turn.TakeForGood());
      break;
  }
  CHECK(turn.state() == state);
}

void EveryTransition() {
  using Event = bool (DriveTurn::*)();
  const std::map<State, std::map<int, State>> table = {
      {State::kFree, {{0, State::kDriven}, {2, State::kFreeForThread}, {5, State::kTakenForGood}}},
      {State::kFreeForThread, {{3, State::kDriven}, {4, State::kFree}}},
      {State::kDriven, {{1, State::kFree}, {2, State::kDrivenThreadNext}}},
      {State::kDrivenThreadNext, {{1, State::kFreeForThread}, {4, State::kDriven}}},
      {State::kTakenForGood, {}},
  };
  const Event events[] = {&DriveTurn::TakeByCaller, &DriveTurn::Release,       &DriveTurn::ThreadWaits,
                          &DriveTurn::ThreadTakes,  &DriveTurn::ThreadGivesUp, &DriveTurn::TakeForGood};
  for (const auto& [from, transitions] : table) {
    for (int event = 0; event < 6; ++event) {
      DriveTurn turn;
      Reach(turn, from);
      const auto to = transitions.find(event);
      CHECK_EQ((turn.*events[event])(), to != transitions.end());
      CHECK(turn.state() == (to != transitions.end() ? to->second : from));
      const bool driven = turn.state() != State::kFree && turn.state() != State::kFreeForThread;
      CHECK_EQ(turn.is_driven(), driven);
      CHECK_EQ(turn.is_free(), turn.state() == State::kFree);
    }
  }
}

void AWaitEndsAtItsDeadlineOrWhenWoken() {
  DriveTurn turn;
  std::mutex mutex;
  std::unique_lock<std::mutex> lock(mutex);
  CHECK(!turn.Wait(lock, After(Seconds(0.01))));
  CHECK(lock.owns_lock() && !turn.any_waiting());
  std::thread waker([&] {
    while (true) {
      const std::lock_guard<std::mutex> held(mutex);
      if (!turn.any_waiting()) continue;
      turn.WakeAllIfAnyWaits();
      return;
    }
  });
  CHECK(turn.Wait(lock, Time::max()));
  lock.unlock();
  waker.join();
}

// Else an operation that its caller leaves stands still until the engine's thread looks again on its own.
void AReleaseNotifiesTheThreadThatIsNext() {
  DriveTurn turn;
  std::mutex mutex;
  std::unique_lock<std::mutex> lock(mutex);
  CHECK(turn.TakeByCaller());
  CHECK(turn.ThreadWaits());
  std::thread caller([&] {
    const std::lock_guard<std::mutex> held(mutex);  // once the thread waits
    CHECK(turn.any_waiting());
    CHECK(turn.Release());
  });
  CHECK(turn.Wait(lock, After(Seconds(10))));
  CHECK(turn.ThreadTakes());
  lock.unlock();
  caller.join();
}

}  // namespace

int main() {
  return RunTests({{"every transition", EveryTransition},
                   {"a wait ends at its deadline or when woken", AWaitEndsAtItsDeadlineOrWhenWoken},
                   {"a release notifies the thread that is next", AReleaseNotifiesTheThreadThatIsNext}});
}
