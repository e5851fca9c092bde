// A stack beside the thread's own, for work that one thread may leave unfinished and another one continues.
//
// The transitions (refused: nothing happens, and the call returns false):
//
//   state      Run       GoOn      Leave                     the body ends
//   kIdle      kInside   -         -
//   kInside    -         -         kLeft                     kIdle
//   kLeft      -         kInside   -
//
// The body takes what it finds in another thread as it was in the first one, but for what belongs to threads: it must
// not leave while it holds a lock, has set a GPU for its thread, or handles an exception, and it reads errno by
// LastErrno(). Nothing may be thrown out of it.
//
// For one thread at a time.
#ifndef SPARK_ESTIMATOR_ENGINE_SIDE_STACK_H_
#define SPARK_ESTIMATOR_ENGINE_SIDE_STACK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace spark_estimator {

class SideStack {
 public:
  enum class State : uint8_t {
    kIdle,
    kInside,
    kLeft
  };

  explicit SideStack(std::function<void()> body);
  ~SideStack();  // of one that is idle
  SideStack(const SideStack&) = delete;
  SideStack& operator=(const SideStack&) = delete;

  // Takes the memory; before anything else.
  Status Open();

  State state() const { return state_; }
  // Runs the body, until it ends or leaves.
  bool Run();
  // Continues where the body has left, until it ends or leaves again.
  bool GoOn();
  // By the body: back to the caller of Run or GoOn. Returns at the next GoOn.
  bool Leave();

 private:
  struct Switch;  // how stacks are changed

  static void Enter(SideStack* self);

  const std::function<void()> body_;
  State state_ = State::kIdle;
  std::unique_ptr<Switch> switch_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_SIDE_STACK_H_
