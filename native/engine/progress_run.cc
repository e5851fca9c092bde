// Runs the operations on which the ranks have agreed by rounds, and monitors their progress.
//
// An operation runs on a separate stack: a caller whose deadline passes in the middle of it leaves it unfinished, and
// the engine's thread continues it. The memory of its requests belongs to the engine until they are done, as before.
#include <cmath>
#include <cstdio>
#include <utility>

#include "engine/progress.h"

namespace spark_estimator {

Status Progress::RunOutcome(Time leave_at) {
  leave_at_ = leave_at;
  outcome_stack_.Run();
  return OutcomeStatus();
}

Status Progress::FinishOutcome() {
  driver_ = Driver::kEngineThread;
  leave_at_ = Time::max();
  outcome_stack_.GoOn();
  return OutcomeStatus();
}

Status Progress::OutcomeStatus() {
  if (handed_over()) return Status::Ok();
  watch_.SetText({});
  return std::exchange(outcome_, Status::Ok());
}

// While an operation waits for its peers.
Status Progress::TendOperation() {
  const Time now = Clock::now();
  SE_RETURN_IF_ERROR(WatchOperation(now));
  // Which GPU is used is the thread's: there the caller stays. Refused to the engine's own operations.
  if (now >= leave_at_ && runner_->runs_on_host()) outcome_stack_.Leave();
  return abandoned_;
}

std::vector<int> Progress::Awaited() const {
  const int local = topology_.local ? topology_.local->AwaitedPeer() : -1;
  if (local < 0) return streams_->Awaited();
  const auto host = static_cast<size_t>(topology_.hosts.host_of[static_cast<size_t>(membership_.rank())]);
  return {topology_.hosts.members[host][static_cast<size_t>(local)]};
}

Status Progress::WatchOperation(Time now) {
  const std::vector<int> awaited = Awaited();
  if (awaited.empty()) return Status::Ok();  // it waits for a GPU
  const int64_t waits = topology_.local ? topology_.local->waits : 0;
  const OperationWatch::Finding finding = watch_.Look(runner_->executed() + waits + streams_->bytes_moved(), now);
  std::string names;
  for (const int rank : awaited) names += (names.empty() ? "" : ", ") + membership_.NameOf(rank);
  const std::string label = runner_->Label();
  watch_.SetText(label + " is running and waits for " + names);
  if (finding == OperationWatch::Finding::kNone) return Status::Ok();
  const std::string seconds = std::to_string(std::llround(watch_.stalled_seconds()));
  const int64_t moved = executor_->bytes_moved();
  const std::string so_far = moved > 0 ? ", after " + std::to_string(moved) + " bytes sent and received" : "";
  if (finding == OperationWatch::Finding::kReport) {
    std::fprintf(stderr,
                 "[spark_estimator] rank %d: %s is running and has made no progress for %s s%s: it waits for %s\n",
                 shared_.config->global_rank, label.c_str(), seconds.c_str(), so_far.c_str(), names.c_str());
    return Status::Ok();
  }
  return membership_.RankLost(awaited[0], "keeps " + label +
                                              " waiting, which is running and has made no progress for " + seconds +
                                              " s" + so_far + "; it waits for " + names +
                                              "; given up, as HOROVOD_STALL_SHUTDOWN_TIME_SECONDS has passed");
}

}  // namespace spark_estimator
