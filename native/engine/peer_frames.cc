#include "engine/peer_frames.h"

#include <cstdio>
#include <string>
#include <utility>

namespace spark_estimator {
namespace {

// How often who leaves looks at its GPU, in milliseconds.
constexpr int kGpuLook = 1;
// How long a broken data link waits for the control link's account of it.
constexpr Seconds kExplanation{0.2};
constexpr Seconds kRelayedExplanation{2};  // by ranks that look for frames every 50 ms

}  // namespace

Status PeerFrames::TakeEarly() {
  for (int rank = 0; rank < links_.size(); ++rank) {
    SE_RETURN_IF_ERROR(HandleInbox(rank));
    // The end of a link may have been read with the hello as well.
    if (!links_.exists(rank) || links_.is_open(rank)) continue;
    LinkEnded(rank);
    SE_RETURN_IF_ERROR(ReadPeer(rank));
  }
  return Status::Ok();
}

Status PeerFrames::Read(int timeout_milliseconds) {
  for (const int rank : links_.Ready(timeout_milliseconds)) SE_RETURN_IF_ERROR(ReadPeer(rank));
  return Status::Ok();
}

Status PeerFrames::ReadPeer(int rank) {
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
void PeerFrames::LinkEnded(int rank) {
  links_.StopWatching(rank);
  membership_.StopWatching(rank, Clock::now());
}

Status PeerFrames::HandleInbox(int rank) {
  std::deque<Frame>& inbox = links_.inbox(rank);
  while (!inbox.empty()) {
    const Frame frame = std::move(inbox.front());
    inbox.pop_front();
    SE_RETURN_IF_ERROR(HandleFrame(rank, frame));
  }
  return Status::Ok();
}

Status PeerFrames::HandleFrame(int rank, const Frame& frame) {
  Status outcome;
  if (Take(rank, frame, &outcome)) return outcome;
  if (frame.type == FrameType::kRequests) return membership_.RankLost(rank, "sent requests that cannot be read");
  return membership_.RankLost(rank, "sent a control message that cannot be read (type " +
                                        std::to_string(static_cast<int>(frame.type)) + ", " +
                                        std::to_string(frame.payload.size()) + " bytes)");
}

// False for a frame that cannot be read, or that this rank cannot send. *outcome: an error that ends the job.
bool PeerFrames::Take(int rank, const Frame& frame, Status* outcome) {
  RoundId round;
  switch (frame.type) {
    case FrameType::kRound:
      return parts_.frame_rounds != nullptr && parts_.frame_rounds->Take(rank, frame.payload);
    case FrameType::kRequests:
      return parts_.negotiation->ReceiveRequests(rank, frame.payload);
    case FrameType::kResponses:
      return parts_.negotiation->ReceiveResponses(rank, frame.payload);
    case FrameType::kRoundStalled:
      return parts_.negotiation->ReceiveStall(frame.payload);
    case FrameType::kEnterFullNegotiation:
      if (rank != 0 || !Decode(frame.payload, &round)) return false;
      parts_.rounds->LeaveAt(round);
      return true;
    case FrameType::kWakePeer:
      if (!Decode(frame.payload, &round)) return false;
      parts_.rounds->PeerWaits(round);
      return true;
    case FrameType::kHeartbeat:
      membership_.WatchedBy(rank, Clock::now());
      return true;
    case FrameType::kGoodbye: {
      Goodbye goodbye;
      if (!Decode(frame.payload, &goodbye)) return false;
      if (goodbye.first_leaver < 0 || goodbye.first_leaver >= membership_.size()) return false;
      membership_.RankLeft(rank, goodbye, Clock::now());
      parts_.negotiation->RankLeft(rank);
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
                   parts_.group->config().global_rank, frame.payload.c_str());
      return true;
    case FrameType::kAsk: {
      QuestionMessage question;
      if (rank != 0 || !Decode(frame.payload, &question)) return false;
      parts_.questions->Ask(question.number);
      return true;
    }
    case FrameType::kAnswer:
      return parts_.negotiation->ReceiveAnswer(rank, frame.payload);
    default:
      return false;
  }
}

Status PeerFrames::TickHeartbeat() {
  if (!membership_.has_heartbeat()) return Status::Ok();
  const Time now = Clock::now();
  if (membership_.DueToSend(now)) {
    // No thread polls a GPU that runs on its own.
    if (!parts_.requests->is_broken()) SE_RETURN_IF_ERROR(parts_.group->gpu().Check());
    parts_.group->group_exit().SendHeartbeats();
  }
  const std::optional<int> silent = membership_.Silent(now);
  return silent ? membership_.RankSilent(*silent, now) : Status::Ok();
}

Status PeerFrames::CheckDepartures() const { return membership_.CheckDepartures(parts_.runner->executed() + 1); }

// Looks a moment longer for a better explanation of a broken data link than "connection reset".
Status PeerFrames::Explain(Status status) {
  if (status.code() != SE_PEER_LOST || membership_.lost_rank() >= 0) return status;
  const Time deadline = After(links_.overlay() ? kRelayedExplanation : kExplanation);
  while (Clock::now() < deadline) {
    if (Status better = Read(10); !better.ok()) return better;
    if (!membership_.any_left()) continue;
    if (Status better = CheckDepartures(); !better.ok()) return better;
  }
  return status;
}

void PeerFrames::Flush() { parts_.counters->control_bytes_sent.store(links_.Flush(), std::memory_order_relaxed); }

Status PeerFrames::WatchPeers() {
  SE_RETURN_IF_ERROR(Read(kGpuLook));
  Flush();
  SE_RETURN_IF_ERROR(TickHeartbeat());
  SE_RETURN_IF_ERROR(parts_.group->gpu().Check());
  return membership_.any_left() ? membership_.CheckDepartures(parts_.runner->executed()) : Status::Ok();
}

}  // namespace spark_estimator
