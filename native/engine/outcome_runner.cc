#include "engine/outcome_runner.h"

#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

namespace spark_estimator {

OutcomeRunner::OutcomeRunner(Group* group)
    : group_(group),
      watch_(group->config().stall_warning_seconds, group->config().stall_shutdown_seconds),
      stack_([this] { result_ = group_->Contained([this] { return operations_->RunOutcome(); }); }) {}

void OutcomeRunner::Attach(OperationRunner* runner, RoundOperations* operations) {
  runner_ = runner;
  operations_ = operations;
}

Status OutcomeRunner::Run(Time leave_at) {
  leave_at_ = leave_at;
  stack_.Run();
  return TakeResult();
}

Status OutcomeRunner::Finish() {
  leave_at_ = Time::max();
  stack_.GoOn();
  return TakeResult();
}

void OutcomeRunner::Abandon(const Status& why) {
  abandoned_ = why;
  (void)Finish();
}

Status OutcomeRunner::TakeResult() {
  if (handed_over()) return Status::Ok();
  ClearText();
  return std::exchange(result_, Status::Ok());
}

Status OutcomeRunner::Tend() {
  const Time now = Clock::now();
  SE_RETURN_IF_ERROR(Watch(now));
  // Which GPU is used is the thread's: there the caller stays. Refused to negotiated operations, which run elsewhere.
  if (now >= leave_at_ && runner_->runs_on_host()) stack_.Leave();
  return abandoned_;
}

Status OutcomeRunner::Watch(Time now) {
  const std::vector<int> awaited = group_->Awaited();
  if (awaited.empty()) return Status::Ok();  // it waits for a GPU
  const OperationWatch::Finding finding = watch_.Look(runner_->executed() + group_->StepsDone(), now);
  Membership& membership = group_->membership();
  std::string names;
  for (const int rank : awaited) names += (names.empty() ? "" : ", ") + membership.NameOf(rank);
  const std::string label = runner_->Label();
  watch_.SetText(label + " is running and waits for " + names);
  if (finding == OperationWatch::Finding::kNone) return Status::Ok();
  const std::string seconds = std::to_string(std::llround(watch_.stalled_seconds()));
  const int64_t moved = group_->executor().bytes_moved();
  const std::string so_far = moved > 0 ? ", after " + std::to_string(moved) + " bytes sent and received" : "";
  if (finding == OperationWatch::Finding::kReport) {
    std::fprintf(stderr,
                 "[spark_estimator] rank %d: %s is running and has made no progress for %s s%s: it waits for %s\n",
                 group_->config().global_rank, label.c_str(), seconds.c_str(), so_far.c_str(), names.c_str());
    return Status::Ok();
  }
  return membership.RankLost(awaited[0], "keeps " + label + " waiting, which is running and has made no progress for " +
                                             seconds + " s" + so_far + "; it waits for " + names +
                                             "; given up, as HOROVOD_STALL_SHUTDOWN_TIME_SECONDS has passed");
}

}  // namespace spark_estimator
