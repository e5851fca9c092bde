// The turn to drive: the driving thread goes through the rounds and runs the agreed operations. One thread at a time, a
// caller or the engine's thread, which has precedence when it waits for its turn.
//
// The transitions (refused: the call returns false and nothing changes):
//
//   state              TakeByCaller   Release           ThreadWaits        ThreadTakes   ThreadGivesUp   TakeForGood
//   kFree              kDriven        -                 kFreeForThread     -             -               kTakenForGood
//   kFreeForThread     -              -                 -                  kDriven       kFree           -
//   kDriven            -              kFree             kDrivenThreadNext  -             -               -
//   kDrivenThreadNext  -              kFreeForThread    -                  -             kDriven         -
//   kTakenForGood      -              -                 -                  -             -               -
//
// Threads: the engine's lock guards it; every function is called by a thread that holds it. Wait() gives it up while it
// waits.
#ifndef SPARK_ESTIMATOR_ENGINE_DRIVE_TURN_H_
#define SPARK_ESTIMATOR_ENGINE_DRIVE_TURN_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/scoped.h"

namespace spark_estimator {

class DriveTurn {
 public:
  enum class State : uint8_t {
    kFree,
    kFreeForThread,     // the engine's thread waits for its turn: no caller may take it
    kDriven,            // by a caller or the engine's thread
    kDrivenThreadNext,  // by a caller, and the engine's thread is next
    kTakenForGood,      // the engine is at its end
  };

  State state() const { return state_; }
  bool is_free() const { return state_ == State::kFree; }
  bool is_driven() const { return state_ != State::kFree && state_ != State::kFreeForThread; }

  bool TakeByCaller() { return Move(State::kFree, State::kDriven); }
  // By the caller or the thread that has it. Notifies if the engine's thread is next; else who releases it decides
  // that.
  bool Release() {
    if (!Move(State::kDrivenThreadNext, State::kFreeForThread)) return Move(State::kDriven, State::kFree);
    changed_.notify_all();
    return true;
  }
  bool ThreadWaits() {
    return Move(State::kFree, State::kFreeForThread) || Move(State::kDriven, State::kDrivenThreadNext);
  }
  bool ThreadTakes() { return Move(State::kFreeForThread, State::kDriven); }
  bool ThreadGivesUp() {
    return Move(State::kFreeForThread, State::kFree) || Move(State::kDrivenThreadNext, State::kDriven);
  }
  bool TakeForGood() { return Move(State::kFree, State::kTakenForGood); }

  // --- waiting for a turn, or for a request to be done

  bool any_waiting() const { return waiting_ > 0; }
  // True when it returned before `deadline`; Time::max() for none. It may return without a cause.
  bool Wait(std::unique_lock<std::mutex>& lock, Time deadline) {
    const ScopedCount waits(waiting_);
    if (deadline != Time::max()) return changed_.wait_until(lock, deadline) != std::cv_status::timeout;
    changed_.wait(lock);
    return true;
  }
  void WakeAll() { changed_.notify_all(); }
  void WakeAllIfAnyWaits() {
    if (waiting_ > 0) changed_.notify_all();
  }

 private:
  bool Move(State from, State to) {
    if (state_ != from) return false;
    state_ = to;
    return true;
  }

  State state_ = State::kFree;
  int waiting_ = 0;
  std::condition_variable changed_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_DRIVE_TURN_H_
