// Driving: rounds, negotiation and control frames.
#include "engine/progress.h"

#include <algorithm>
#include <cstdio>

namespace spark_estimator {
namespace {

// How long the engine's thread continues by rounds before it checks for other work.
constexpr Seconds kDriveAtOnce{0.2};
constexpr Seconds kUnsentRetry{0.001};
// How often who leaves looks at its GPU, in milliseconds.
constexpr int kGpuLook = 1;
// How long a broken data link waits for the control link's account of it.
constexpr Seconds kExplanation{0.2};
constexpr Seconds kRelayedExplanation{2};  // by ranks that look for frames every 50 ms

}  // namespace

// --- driving

Status Progress::Drive(Driver driver, const Request* until, Time deadline) {
  driver_ = driver;
  while (rounds_->in_rounds()) {
    if (!rounds_->posted()) {
      if (membership_.any_left()) SE_RETURN_IF_ERROR(CheckDepartures());
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
        SE_RETURN_IF_ERROR(RunOutcome(driver == Driver::kCaller ? deadline : Time::max()));
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
        links_.SendToAll(FrameType::kWakePeer, Encode(rounds_->round()));
        break;
      case RoundDriver::LateAction::kReportStall:
        if (membership_.rank() == 0) {
          links_.SendToAll(FrameType::kEnterFullNegotiation, Encode(rounds_->round()));
        } else {
          links_.Send(0, FrameType::kRoundStalled, Encode(rounds_->round()));
        }
        break;
    }
  }
}

Status Progress::Cycle(bool others_wait) {
  if (handed_over()) SE_RETURN_IF_ERROR(FinishOutcome());
  SE_RETURN_IF_ERROR(Check());
  negotiation_->TendQuestions();
  // Waiting callers continue by rounds themselves; operations that no caller waits for are run here.
  if (!others_wait && HasWork()) SE_RETURN_IF_ERROR(Drive(Driver::kEngineThread, nullptr, After(kDriveAtOnce)));
  if (!rounds_->in_rounds()) {
    const Status advanced = negotiation_->Advance();
    watch_.SetText({});
    if (!advanced.ok()) return advanced;
  }
  Flush();
  // Operations that a peer had executed when it left may still be in flight to this rank; later ones never will be.
  if (membership_.any_left() && !negotiation_->has_responses() && !rounds_->posted()) return CheckDepartures();
  return Status::Ok();
}

bool Progress::CanWait() const {
  if (pending_->has_uncached() || !rounds_->in_rounds()) return false;
  if (!pending_->has_cached()) return true;
  return !rounds_->peers_wait() && pending_->AllDeferred();
}

Time Progress::NextWake() const {
  const Time next = std::min(membership_.NextWake(), negotiation_->NextWake());
  return HasUnsent() ? std::min(next, After(kUnsentRetry)) : next;
}

void Progress::Break(const Status& error) noexcept {
  Status why = error;
  (void)Contained([&] {
    why = Explain(error);
    why = membership_.WithOwnName(why);
    return Status::Ok();
  });
  // The memory of the unfinished operation belongs to its callers again from here on.
  if (handed_over()) {
    abandoned_ = why;
    (void)FinishOutcome();
  }
  const Time now = Clock::now();
  if (!shared_.requests->Break(why,
                               [&](const Request& request) { runner_->RecordFailure(request, why.code(), now); })) {
    return;
  }
  pending_->Clear();
  negotiation_->Clear();
  (void)Contained([&] {
    // Operations that were enqueued on the GPU end without the ranks that have left, if those have enqueued theirs.
    const bool ends = why.code() == SE_SHUT_DOWN && membership_.LeaversTookPartIn(runner_->executed());
    if (!ends) gpu_->Abort(why);
    return Status::Ok();
  });
  shared_.waker->Wake();
}

// --- peers

Status Progress::Check() {
  SE_RETURN_IF_ERROR(ReadReady(0));
  Flush();
  SE_RETURN_IF_ERROR(TickHeartbeat());
  if (runner_->state() == OperationRunner::State::kIdle && !rounds_->posted()) return Status::Ok();
  // No rank continues it once this one, or a peer that has not finished it, leaves.
  if (shared_.requests->is_stopping()) return Status(SE_SHUT_DOWN, "this rank has shut down");
  if (membership_.any_left()) SE_RETURN_IF_ERROR(CheckDepartures());
  return runner_->state() == OperationRunner::State::kRunning ? TendOperation() : Status::Ok();
}

// Waiting for frames; for the rounds.
Status Progress::AwaitFrames(Time deadline) {
  if (driver_ == Driver::kCaller) shared_.waker->ClaimLinks();
  do {
    SE_RETURN_IF_ERROR(ReadReady(0));
    if (frame_rounds_->done()) {
      polling_.Came();
      return Status::Ok();
    }
  } while (polling_.Again());
  const double left = Seconds(deadline - Clock::now()).count();
  if (left > 0) {
    const double limit = Seconds(kLivenessInterval).count();
    SE_RETURN_IF_ERROR(ReadReady(std::max(1, static_cast<int>(std::min(left, limit) * 1000))));
  }
  if (!frame_rounds_->done()) return Check();
  polling_.Came();
  return Status::Ok();
}

Status Progress::ReadReady(int timeout_milliseconds) {
  for (const int rank : links_.Ready(timeout_milliseconds)) SE_RETURN_IF_ERROR(ReadPeer(rank));
  return Status::Ok();
}

Status Progress::ReadPeer(int rank) {
  if (!links_.exists(rank)) return Status::Ok();
  if (links_.is_open(rank)) {
    const std::span<const int> sources = links_.Receive(rank);
    membership_.Heard(rank, Clock::now());
    if (!links_.is_open(rank)) LinkEnded(rank);
    for (const int source : sources) SE_RETURN_IF_ERROR(HandleInbox(source));
  }
  SE_RETURN_IF_ERROR(HandleInbox(rank));
  if (links_.is_open(rank) || membership_.has_left(rank)) return Status::Ok();
  return membership_.RankLost(rank, "is lost: " + links_.at(rank).closed_reason());
}

// An ended link is "readable" for ever, and its peer sends no more heartbeats.
void Progress::LinkEnded(int rank) {
  links_.StopWatching(rank);
  membership_.StopWatching(rank, Clock::now());
}

Status Progress::HandleInbox(int rank) {
  std::deque<Frame>& inbox = links_.inbox(rank);
  while (!inbox.empty()) {
    const Frame frame = std::move(inbox.front());
    inbox.pop_front();
    SE_RETURN_IF_ERROR(HandleFrame(rank, frame));
  }
  return Status::Ok();
}

Status Progress::HandleFrame(int rank, const Frame& frame) {
  Status outcome;
  if (Take(rank, frame, &outcome)) return outcome;
  if (frame.type == FrameType::kRequests) return membership_.RankLost(rank, "sent requests that cannot be read");
  return membership_.RankLost(rank, "sent a control message that cannot be read (type " +
                                        std::to_string(static_cast<int>(frame.type)) + ", " +
                                        std::to_string(frame.payload.size()) + " bytes)");
}

// False for a frame that cannot be read, or that this rank cannot send. *outcome: an error that ends the job.
bool Progress::Take(int rank, const Frame& frame, Status* outcome) {
  RoundId round;
  switch (frame.type) {
    case FrameType::kRound:
      return frame_rounds_ != nullptr && frame_rounds_->Take(rank, frame.payload);
    case FrameType::kRequests:
      return negotiation_->ReceiveRequests(rank, frame.payload);
    case FrameType::kResponses:
      return negotiation_->ReceiveResponses(rank, frame.payload);
    case FrameType::kRoundStalled:
      return negotiation_->ReceiveStall(frame.payload);
    case FrameType::kEnterFullNegotiation:
      if (rank != 0 || !Decode(frame.payload, &round)) return false;
      rounds_->LeaveAt(round);
      return true;
    case FrameType::kWakePeer:
      if (!Decode(frame.payload, &round)) return false;
      rounds_->PeerWaits(round);
      return true;
    case FrameType::kHeartbeat:
      membership_.WatchedBy(rank, Clock::now());
      return true;
    case FrameType::kGoodbye: {
      Goodbye goodbye;
      if (!Decode(frame.payload, &goodbye)) return false;
      if (goodbye.first_leaver < 0 || goodbye.first_leaver >= membership_.size()) return false;
      membership_.RankLeft(rank, goodbye, Clock::now());
      negotiation_->RankLeft(rank);
      return true;
    }
    case FrameType::kAbort: {
      Abort abort;
      if (!Decode(frame.payload, &abort)) return false;
      *outcome = membership_.Aborted(abort, rank);
      return true;
    }
    case FrameType::kNotice:
      std::fprintf(stderr, "[spark_estimator] rank %d: other ranks are waiting for this rank: %s\n",
                   shared_.config->global_rank, frame.payload.c_str());
      return true;
    case FrameType::kAsk: {
      QuestionMessage question;
      if (rank != 0 || !Decode(frame.payload, &question)) return false;
      shared_.questions->Ask(question.number);
      return true;
    }
    case FrameType::kAnswer:
      return negotiation_->ReceiveAnswer(rank, frame.payload);
    default:
      return false;
  }
}

Status Progress::TickHeartbeat() {
  if (!membership_.has_heartbeat()) return Status::Ok();
  const Time now = Clock::now();
  if (membership_.DueToSend(now)) {
    // No thread polls a GPU that runs on its own.
    if (!shared_.requests->is_broken()) SE_RETURN_IF_ERROR(gpu_->Check());
    exit_.SendHeartbeats();
  }
  const std::optional<int> silent = membership_.Silent(now);
  return silent ? membership_.RankSilent(*silent, now) : Status::Ok();
}

Status Progress::CheckDepartures() { return membership_.CheckDepartures(runner_->executed() + 1); }

// Looks a moment longer for a better explanation of a broken data link than "connection reset".
Status Progress::Explain(Status status) {
  if (status.code() != SE_PEER_LOST || membership_.lost_rank() >= 0) return status;
  const Time deadline = After(links_.overlay() ? kRelayedExplanation : kExplanation);
  while (Clock::now() < deadline) {
    if (Status better = ReadReady(10); !better.ok()) return better;
    if (!membership_.any_left()) continue;
    if (Status better = CheckDepartures(); !better.ok()) return better;
  }
  return status;
}

void Progress::Flush() { shared_.counters->control_bytes_sent.store(links_.Flush(), std::memory_order_relaxed); }

Status Progress::WatchPeers() {
  SE_RETURN_IF_ERROR(ReadReady(kGpuLook));
  Flush();
  SE_RETURN_IF_ERROR(TickHeartbeat());
  SE_RETURN_IF_ERROR(gpu_->Check());
  return membership_.any_left() ? membership_.CheckDepartures(runner_->executed()) : Status::Ok();
}

void Progress::AbandonAfterFork() {
  links_.AbandonAfterFork();
  if (streams_) streams_->AbandonAfterFork();
  late_sockets_.AbandonAfterFork();
  topology_.arena->AbandonAfterFork();
}

}  // namespace spark_estimator
