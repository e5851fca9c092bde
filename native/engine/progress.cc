#include "engine/progress.h"

#include <algorithm>
#include <utility>

#include "engine/rounds/shared_rounds.h"

namespace spark_estimator {
namespace {

// How long the engine's thread continues by rounds before it checks for other work.
constexpr Seconds kDriveAtOnce{0.2};
constexpr Seconds kUnsentRetry{0.001};

}  // namespace

// --- creation

Progress::Progress(Group* group, Shared shared) : group_(*group), shared_(shared), outcome_(group) {}

Status Progress::Start(std::vector<PeerConfig> peers) {
  SE_RETURN_IF_ERROR(outcome_.Open());
  SE_RETURN_IF_ERROR(group_.Start(std::move(peers), this));
  Assemble();
  return shared_.waker->WatchLinks(group_.links().poll_fd());
}

void Progress::Assemble() {
  const Topology& topology = group_.topology();
  cache_.emplace(group_.cache_capacity());
  pending_.emplace(&*cache_, shared_.counters);
  rounds_.emplace(MakeRounds(), shared_.counters);
  runner_.emplace(OperationRunner::Parts{&group_.executor(), &group_.gpu(), shared_.requests, shared_.counters,
                                         shared_.recorder, shared_.timeline});
  operations_.emplace(RoundOperations::Parts{&*rounds_, &*pending_, &*cache_, &*runner_, &group_.executor(),
                                             &group_.membership(), &group_.parameters(),
                                             topology.all_share() ? topology.arena.get() : nullptr});
  outcome_.Attach(&*runner_, &*operations_);
  negotiation_.emplace(NegotiationDriver::Parts{&*rounds_, &*pending_, &*cache_, &*runner_, shared_.requests,
                                                shared_.turn, &group_.parameters(), &group_.membership(),
                                                &group_.links(), shared_.questions, shared_.counters});
  frames_.emplace(PeerFrames::Parts{&group_, &*rounds_, frame_rounds_, &*negotiation_, &*runner_, shared_.requests,
                                    shared_.questions, shared_.counters});
  const EngineConfig& config = group_.config();
  if (config.rank != 0) return;
  negotiation_->Lead(NegotiationLeader(group_.membership().global_ranks(), group_.parameters().fusion_threshold_bytes),
                     StallReporter(config.stall_warning_seconds, config.stall_shutdown_seconds, Clock::now()));
}

std::unique_ptr<Rounds> Progress::MakeRounds() {
  const Topology& topology = group_.topology();
  if (topology.all_share()) return std::make_unique<SharedRounds>(topology.local.get(), group_.cache_capacity());
  auto rounds = std::make_unique<FrameRounds>(
      group_.config().rank, group_.config().size, group_.cache_capacity(),
      [this](int rank, std::string_view payload) { group_.links().Send(rank, FrameType::kRound, payload); },
      [this](Time deadline) { return AwaitFrames(deadline); });
  frame_rounds_ = rounds.get();
  return rounds;
}

// --- driving

Status Progress::Drive(Driver driver, const Request* until, Time deadline) {
  driver_ = driver;
  while (rounds_->in_rounds()) {
    if (!rounds_->posted()) {
      if (group_.membership().any_left()) SE_RETURN_IF_ERROR(frames_->CheckDepartures());
      if (shared_.requests->is_stopping()) return Status(SE_SHUT_DOWN, "this rank has shut down");
      if (rounds_->MustLeave() || pending_->has_uncached()) {
        rounds_->Leave();
        LeaveRounds();
        break;
      }
      if (!pending_->has_cached()) break;
      operations_->Post();
    }
    bool concluded = false;
    SE_RETURN_IF_ERROR(rounds_->Await(deadline, &concluded));
    if (!concluded) {
      if (Clock::now() >= deadline) return Status::Ok();
      ActOnDelay();
      continue;
    }
    if (rounds_->Conclude()) {
      if (rounds_->rounds().outcome().carries_data) {  // it waits for no rank
        SE_RETURN_IF_ERROR(operations_->RunOutcome());
      } else {
        SE_RETURN_IF_ERROR(outcome_.Run(driver == Driver::kCaller ? deadline : Time::max()));
        if (handed_over()) return Status::Ok();
      }
    } else {
      LeaveRounds();
    }
    if (until != nullptr && until->done) break;
    const RequestTable::Lock lock = shared_.requests->lock();
    if (rounds_->in_rounds() && !shared_.requests->submitted().empty()) pending_->Add(shared_.requests->submitted());
  }
  return Status::Ok();
}

// From here until the rounds continue the coordinator decides what is run.
void Progress::LeaveRounds() {
  negotiation_->Begin();
  shared_.waker->Wake();
}

// The message to the others when they keep this rank waiting.
void Progress::ActOnDelay() {
  while (true) {
    switch (rounds_->NextLateAction(Clock::now())) {
      case RoundDriver::LateAction::kNone:
        return;
      case RoundDriver::LateAction::kWakePeers:
        group_.links().SendToAll(FrameType::kWakePeer, Encode(rounds_->round()));
        break;
      case RoundDriver::LateAction::kReportStall:
        if (group_.membership().rank() == 0) {
          group_.links().SendToAll(FrameType::kEnterFullNegotiation, Encode(rounds_->round()));
        } else {
          group_.links().Send(0, FrameType::kRoundStalled, Encode(rounds_->round()));
        }
        break;
    }
  }
}

Status Progress::Cycle(bool others_wait) {
  if (handed_over()) SE_RETURN_IF_ERROR(outcome_.Finish());
  SE_RETURN_IF_ERROR(Check());
  negotiation_->TendQuestions();
  // Waiting callers continue by rounds themselves; operations that no caller waits for are run here.
  if (!others_wait && HasWork()) SE_RETURN_IF_ERROR(Drive(Driver::kEngineThread, nullptr, After(kDriveAtOnce)));
  if (!rounds_->in_rounds()) {
    const Status advanced = negotiation_->Advance();
    outcome_.ClearText();
    if (!advanced.ok()) return advanced;
  }
  frames_->Flush();
  // Operations that a peer had executed when it left may still be in flight to this rank; later ones never will be.
  if (group_.membership().any_left() && !negotiation_->has_responses() && !rounds_->posted())
    return frames_->CheckDepartures();
  return Status::Ok();
}

bool Progress::CanWait() const {
  if (pending_->has_uncached() || !rounds_->in_rounds()) return false;
  if (!pending_->has_cached()) return true;
  return !rounds_->peers_wait() && pending_->AllDeferred();
}

Time Progress::NextWake() const {
  const Time next = std::min(group_.membership().NextWake(), negotiation_->NextWake());
  return group_.links().HasUnsent() ? std::min(next, After(kUnsentRetry)) : next;
}

void Progress::Break(const Status& error) noexcept {
  Status why = error;
  (void)group_.Contained([&] {
    why = frames_->Explain(error);
    why = group_.membership().WithOwnName(why);
    return Status::Ok();
  });
  // The memory of the unfinished operation belongs to its callers again from here on.
  if (handed_over()) outcome_.Abandon(why);
  const Time now = Clock::now();
  if (!shared_.requests->Break(why,
                               [&](const Request& request) { runner_->RecordFailure(request, why.code(), now); })) {
    return;
  }
  pending_->Clear();
  negotiation_->Clear();
  (void)group_.Contained([&] {
    // Operations that were enqueued on the GPU end without the ranks that have left, if those have enqueued theirs.
    const bool ends = why.code() == SE_SHUT_DOWN && group_.membership().LeaversTookPartIn(runner_->executed());
    if (!ends) group_.gpu().Abort(why);
    return Status::Ok();
  });
  shared_.waker->Wake();
}

// --- between and inside operations

Status Progress::Check() {
  SE_RETURN_IF_ERROR(frames_->Read(0));
  frames_->Flush();
  SE_RETURN_IF_ERROR(frames_->TickHeartbeat());
  if (runner_->state() == OperationRunner::State::kIdle && !rounds_->posted()) return Status::Ok();
  // No rank continues it once this one, or a peer that has not finished it, leaves.
  if (shared_.requests->is_stopping()) return Status(SE_SHUT_DOWN, "this rank has shut down");
  if (group_.membership().any_left()) SE_RETURN_IF_ERROR(frames_->CheckDepartures());
  return runner_->state() == OperationRunner::State::kRunning ? outcome_.Tend() : Status::Ok();
}

// Waiting for frames; for the rounds.
Status Progress::AwaitFrames(Time deadline) {
  if (driver_ == Driver::kCaller) shared_.waker->ClaimLinks();
  do {
    SE_RETURN_IF_ERROR(frames_->Read(0));
    if (frame_rounds_->done()) {
      polling_.Came();
      return Status::Ok();
    }
  } while (polling_.Again());
  const double left = Seconds(deadline - Clock::now()).count();
  if (left > 0) {
    const double limit = Seconds(kLivenessInterval).count();
    SE_RETURN_IF_ERROR(frames_->Read(std::max(1, static_cast<int>(std::min(left, limit) * 1000))));
  }
  if (!frame_rounds_->done()) return Check();
  polling_.Came();
  return Status::Ok();
}

}  // namespace spark_estimator
