// Runs the operations on which the ranks have agreed by rounds, and watches each operation that waits for its peers.
//
// Those of one round run on a separate stack: a caller whose deadline passes in the middle of one leaves it
// unfinished, and the engine's thread continues it. The memory of its requests belongs to the engine until they are
// done, as before. The state is the stack's (SideStack; refused where there is no entry):
//
//   state      Run       Finish, Abandon   Tend, after the deadline   the operations end
//   kIdle      kInside   -                 -
//   kInside    -         -                 kLeft: handed over         kIdle
//   kLeft      -         kInside           -
//
// Run and Finish return when the state is kIdle, with the operations' outcome, or kLeft.
//
// Threads: used by the driving thread; Text() by any. handed_over() also by holders of the request table's lock.
#ifndef SPARK_ESTIMATOR_ENGINE_OUTCOME_RUNNER_H_
#define SPARK_ESTIMATOR_ENGINE_OUTCOME_RUNNER_H_

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/group.h"
#include "engine/operation_runner.h"
#include "engine/operation_watch.h"
#include "engine/rounds/round_operations.h"
#include "engine/side_stack.h"

namespace spark_estimator {

class OutcomeRunner {
 public:
  // Outlives it.
  explicit OutcomeRunner(Group* group);

  // Takes the memory; before anything else.
  Status Open() { return stack_.Open(); }
  // What it runs; once the group has started. Both outlive it.
  void Attach(OperationRunner* runner, RoundOperations* operations);

  // Runs the operations of the round that was just concluded. A caller leaves them at `leave_at`.
  Status Run(Time leave_at);
  // Continues the operations that were handed over, to their end.
  Status Finish();
  // The same, but they end as soon as they wait.
  void Abandon(const Status& why);
  // Whether operations are unfinished: only the engine's thread may continue them.
  bool handed_over() const { return stack_.state() == SideStack::State::kLeft; }

  // While an operation, of a round or negotiated, waits for its peers: reports one that makes no progress, and leaves
  // the stack when it is time. An error ends the operation.
  Status Tend();
  // No operation runs any more.
  void ClearText() { watch_.SetText({}); }
  // What runs and whom it waits for; empty when nothing waits.
  std::string Text() const { return watch_.Text(); }

 private:
  Status TakeResult();
  Status Watch(Time now);

  Group* const group_;
  OperationRunner* runner_ = nullptr;
  RoundOperations* operations_ = nullptr;
  OperationWatch watch_;
  SideStack stack_;
  Status result_;                // of what ran there
  Time leave_at_ = Time::max();  // when it is to be left
  Status abandoned_;             // why unfinished operations end early
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_OUTCOME_RUNNER_H_
