// The peers as an engine hears of them: frames, signs of life, departures, and its own.
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/dtype.h"
#include "engine/engine.h"
#include "engine/frame_rounds.h"
#include "engine/validity.h"

namespace spark_estimator {
namespace {

// How long leaving waits for the peers to take in what was sent.
constexpr Seconds kGoodbyeFlush{1.0};
constexpr Seconds kGoodbyeDrain{0.1};
// How long a broken data link waits for the control link's account of it.
constexpr Seconds kExplanation{0.2};

}  // namespace

std::string LabelOf(const Signature& signature, int64_t number) {
  return OpName(signature.op) + " '" + FullName(signature.name, number) + "'";
}

std::string Engine::NameOf(int rank) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  return "rank " + std::to_string(peer.global_rank) + (peer.name.empty() ? "" : " on " + peer.name);
}

// --- taking in

Status Engine::Check() {
  SE_RETURN_IF_ERROR(ReadReady(0));
  FlushControl();
  SE_RETURN_IF_ERROR(TickHeartbeat());
  if (!executing_ && !posted_) return Status::Ok();
  // Nobody comes back for it once this rank, or a peer that has not finished it, leaves.
  if (stopping_) return Status(SE_SHUT_DOWN, "this rank has shut down");
  return any_goodbye_ ? CheckDepartures(executed_ + 1) : Status::Ok();
}

Status Engine::ReadReady(int timeout_milliseconds) {
  std::array<epoll_event, 64> events;
  const int ready =
      epoll_wait(control_poll_.get(), events.data(), static_cast<int>(events.size()), timeout_milliseconds);
  for (int i = 0; i < ready; ++i)
    SE_RETURN_IF_ERROR(ReadPeer(static_cast<int>(events[static_cast<size_t>(i)].data.u32)));
  return Status::Ok();
}

// The frames' way of waiting; for the rounds.
Status Engine::AwaitFrames(Time deadline) {
  if (std::this_thread::get_id() != thread_.get_id()) ClaimControl(true);
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

// While a caller waits for frames, they do not wake the engine's thread.
void Engine::ClaimControl(bool claim) {
  if (claim == control_claimed_) return;
  control_claimed_ = claim;
  epoll_event event{};
  event.events = claim ? 0u : static_cast<uint32_t>(EPOLLIN);
  event.data.fd = control_poll_.get();
  epoll_ctl(thread_poll_.get(), EPOLL_CTL_MOD, control_poll_.get(), &event);
}

Status Engine::ReadPeer(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!peer.control) return Status::Ok();
  if (peer.control->open()) {
    peer.control->Receive(&peer.inbox);
    // An ended link is "readable" for ever.
    if (heartbeat_) heartbeat_->Heard(rank, Clock::now());
    if (!peer.control->open()) LinkEnded(rank);
  }
  SE_RETURN_IF_ERROR(HandleInbox(rank));
  return peer.control->open() || peer.goodbye ? Status::Ok() : PeerGone(rank);
}

// An ended link is "readable" for ever, and whoever was at its other end gives no more signs of life.
void Engine::LinkEnded(int rank) {
  // It is not there yet while the engine is created; then there is nothing to remove.
  epoll_ctl(control_poll_.get(), EPOLL_CTL_DEL, peers_[static_cast<size_t>(rank)].control->fd(), nullptr);
  if (heartbeat_) heartbeat_->Forget(rank, Clock::now());
}

// `rank` has left in good order: nothing is to be expected from it any more.
void Engine::NoteDeparture(int rank, const Goodbye& goodbye) {
  peers_[static_cast<size_t>(rank)].goodbye = goodbye;
  any_goodbye_ = true;
  if (heartbeat_) heartbeat_->Forget(rank, Clock::now());
  // Its process does not answer questions any more.
  std::erase_if(open_questions_, [&](const auto& entry) { return entry.second.rank == rank; });
}

Status Engine::HandleInbox(int rank) {
  std::deque<Frame>& inbox = peers_[static_cast<size_t>(rank)].inbox;
  while (!inbox.empty()) {
    const Frame frame = std::move(inbox.front());
    inbox.pop_front();
    SE_RETURN_IF_ERROR(HandleFrame(rank, frame));
  }
  return Status::Ok();
}

Status Engine::TakeEarlyFrames() {
  for (int rank = 0; rank < config_.size; ++rank) {
    SE_RETURN_IF_ERROR(HandleInbox(rank));
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    // The end of a link may have been read with the hello as well.
    if (!peer.control || peer.control->open()) continue;
    LinkEnded(rank);
    if (!peer.goodbye) return PeerGone(rank);
  }
  return Status::Ok();
}

Status Engine::PeerGone(int rank) {
  lost_rank_ = rank;
  return Status(SE_PEER_LOST, NameOf(rank) + " is lost: " + peers_[static_cast<size_t>(rank)].control->closed_reason());
}

Status Engine::TickHeartbeat() {
  if (!heartbeat_) return Status::Ok();
  const Time now = Clock::now();
  if (heartbeat_->DueToSend(now)) {
    // Nobody asks a GPU that works by itself.
    if (!is_broken_) SE_RETURN_IF_ERROR(gpu_->Check());
    for (const int rank : heartbeat_->watched()) {
      Peer& peer = peers_[static_cast<size_t>(rank)];
      if (peer.control && peer.control->open() && !peer.goodbye) peer.control->Send(FrameType::kHeartbeat, "");
    }
  }
  const std::optional<int> lost = heartbeat_->Lost(now);
  if (!lost) return Status::Ok();
  lost_rank_ = *lost;
  char silence[32];
  std::snprintf(silence, sizeof(silence), "%.1f", heartbeat_->SilentSeconds(*lost, now));
  return Status(SE_PEER_LOST, NameOf(*lost) + " is lost: it has given no sign of life for " + silence +
                                  " s (its process is frozen, or its machine or the network to it is gone)");
}

Status Engine::HandleRequests(int rank, const Frame& frame) {
  Requests requests;
  const auto possible = [&](const Signature& signature) { return IsPossible(signature, config_.size); };
  if (!coordinator_ || !Decode(frame.payload, &requests) || !std::ranges::all_of(requests.signatures, possible)) {
    lost_rank_ = rank;
    return Status(SE_PEER_LOST, NameOf(rank) + " sent requests that cannot be read");
  }
  TakeRequests(rank, std::move(requests));
  return Status::Ok();
}

void Engine::TakeRequests(int rank, Requests requests) {
  // Of an older epoch: its rank will propose them anew.
  if (requests.epoch < place_.epoch) return;
  // Sent before its rank has heard that the rounds go on, which ends this epoch: there too it will propose them anew.
  if (requests.epoch == place_.epoch && !agreed_.empty() && agreed_.back().kind == Response::Kind::kResume) return;
  // Of the next one: its rank was faster than this one in doing what the coordinator said last.
  if (requests.epoch > place_.epoch) {
    early_requests_.push_back({rank, std::move(requests)});
    return;
  }
  left_rounds_[static_cast<size_t>(rank)] = true;
  for (Signature& request : requests.signatures) coordinator_->Add(rank, std::move(request), Clock::now());
  if (fast_) slow_for_certain_ = true;
}

Status Engine::HandleFrame(int rank, const Frame& frame) {
  const auto garbled = [&] {
    lost_rank_ = rank;
    return Status(SE_PEER_LOST, NameOf(rank) + " sent a control message that cannot be read (type " +
                                    std::to_string(static_cast<int>(frame.type)) + ", " +
                                    std::to_string(frame.payload.size()) + " bytes)");
  };
  Peer& peer = peers_[static_cast<size_t>(rank)];
  switch (frame.type) {
    case FrameType::kRequests:
      return HandleRequests(rank, frame);
    case FrameType::kResponses: {
      std::vector<Response> responses;
      const auto possible = [&](const Response& response) { return IsPossible(response, config_.size); };
      if (rank != 0 || !Decode(frame.payload, &responses) || !std::ranges::all_of(responses, possible))
        return garbled();
      for (Response& response : responses) agreed_.push_back(std::move(response));
      if (fast_) slow_for_certain_ = true;
      return Status::Ok();
    }
    case FrameType::kRound:
      if (frame_rounds_ == nullptr || !frame_rounds_->Take(rank, frame.payload)) return garbled();
      return Status::Ok();
    case FrameType::kStuck: {
      Place place;
      if (!coordinator_ || !Decode(frame.payload, &place)) return garbled();
      if (place.epoch != place_.epoch || !fast_) return Status::Ok();
      asked_to_go_slow_ = place;
      SendToAll(FrameType::kGoSlow, frame.payload);
      return Status::Ok();
    }
    case FrameType::kGoSlow: {
      Place place;
      if (rank != 0 || !Decode(frame.payload, &place)) return garbled();
      asked_to_go_slow_ = place;
      return Status::Ok();
    }
    case FrameType::kNudge: {
      Place place;
      if (!Decode(frame.payload, &place)) return garbled();
      // A peer that has already concluded the position which this rank has posted for is ahead by one.
      if (place.epoch == place_.epoch && static_cast<int32_t>(place.position - place_.position) >= 0) {
        nudged_at_ = place.position;
        nudged_ = true;
      }
      return Status::Ok();
    }
    case FrameType::kHeartbeat:
      if (heartbeat_) heartbeat_->WatchedBy(rank, Clock::now());
      return Status::Ok();
    case FrameType::kGoodbye: {
      Goodbye goodbye;
      if (!Decode(frame.payload, &goodbye) || goodbye.first_leaver < 0 || goodbye.first_leaver >= config_.size) {
        return garbled();
      }
      NoteDeparture(rank, goodbye);
      return Status::Ok();
    }
    case FrameType::kAbort: {
      Abort abort;
      if (!Decode(frame.payload, &abort)) return garbled();
      lost_rank_ = abort.lost_rank;
      return Status(SE_PEER_LOST, abort.reason + " (told by rank " + std::to_string(peer.global_rank) + ")");
    }
    case FrameType::kNotice:
      std::fprintf(stderr, "[spark_estimator] rank %d is waited for: %s\n", config_.global_rank, frame.payload.c_str());
      return Status::Ok();
    case FrameType::kAsk: {
      Talk question;
      if (rank != 0 || !Decode(frame.payload, &question)) return garbled();
      Lock lock(mutex_);
      questions_.push_back(question.number);
      asked_.notify_all();
      return Status::Ok();
    }
    case FrameType::kAnswer: {
      Talk answer;
      if (!coordinator_ || !Decode(frame.payload, &answer)) return garbled();
      if (open_questions_.erase(answer.number) > 0) TellAnswer(rank, answer.text);
      return Status::Ok();
    }
    default:
      return garbled();
  }
}

// --- sending

void Engine::FlushControl() {
  int64_t sent = 0;
  for (Peer& peer : peers_) {
    if (!peer.control) continue;
    peer.control->Flush();
    sent += peer.control->bytes_sent();
  }
  counters_.control_bytes_sent.store(sent, std::memory_order_relaxed);
}

bool Engine::HasUnsent() const {
  return std::ranges::any_of(peers_, [](const Peer& peer) { return peer.control && peer.control->has_unsent(); });
}

void Engine::SendToAll(FrameType type, const std::string& payload) {
  for (Peer& peer : peers_) {
    if (peer.control) peer.control->Send(type, payload);
  }
}

// --- the end

Status Engine::CheckDepartures(int64_t number) {
  for (const Peer& peer : peers_) {
    if (!peer.goodbye || peer.goodbye->executed >= number) continue;
    first_leaver_ = peer.goodbye->first_leaver;
    return Status(SE_SHUT_DOWN,
                  NameOf(first_leaver_) + " has left the job: it shut down, or its function returned or raised");
  }
  return Status::Ok();
}

Status Engine::Explain(Status status) {
  if (status.code() != SE_PEER_LOST || lost_rank_ >= 0) return status;
  const Time deadline = After(kExplanation);
  while (Clock::now() < deadline) {
    if (Status better = ReadReady(10); !better.ok()) return better;
    if (any_goodbye_) {
      if (Status better = CheckDepartures(executed_ + 1); !better.ok()) return better;
    }
  }
  return status;
}

// A failure of this rank itself names it.
Status Engine::WithOwnName(const Status& why) const {
  const std::string own = NameOf(config_.rank);
  if (lost_rank_ >= 0 || why.code() == SE_SHUT_DOWN || why.message().starts_with(own)) return why;
  return why.Within(own + " failed");
}

// Whatever happens, each peer is sent something, if its connection takes it: without an abort it would take this rank,
// which lives, for lost.
void Engine::TellPeers(const Status& why) noexcept {
  std::string payload;
  (void)Contained([&] {
    Abort abort;
    abort.lost_rank = lost_rank_ >= 0 ? lost_rank_ : config_.rank;
    abort.reason = WithOwnName(why).message();
    payload = Encode(abort);
    return Status::Ok();
  });
  for (Peer& peer : peers_) {
    if (!peer.control) continue;
    const auto send = [&](const std::string& reason) {
      return Contained([&] {
        peer.control->Send(FrameType::kAbort, reason);
        return Status::Ok();
      });
    };
    if (payload.empty() || !send(payload).ok()) (void)send(no_memory_abort_);
  }
}

void Engine::SayGoodbye() noexcept {
  for (Peer& peer : peers_) {
    if (!peer.control) continue;
    (void)Contained([&] {
      peer.control->Send(FrameType::kGoodbye,
                         Encode(Goodbye{executed_, first_leaver_ >= 0 ? first_leaver_ : config_.rank}));
      return Status::Ok();
    });
  }
  const Time flush_until = After(kGoodbyeFlush);
  while (HasUnsent() && Clock::now() < flush_until) {
    FlushControl();
    poll(nullptr, 0, 1);
  }
  for (Peer& peer : peers_) {
    if (peer.control) peer.control->FinishSending();
  }
  (void)Contained([&] {
    DrainLinks();
    return Status::Ok();
  });
}

// Closing a socket with unread bytes resets it, and a reset may overtake what was sent: read on for a moment.
void Engine::DrainLinks() {
  const Time drain_until = After(kGoodbyeDrain);
  while (Clock::now() < drain_until) {
    drained_.clear();
    for (Peer& peer : peers_) {
      if (!peer.control || !peer.control->open() || peer.goodbye) continue;
      peer.control->Receive(&peer.inbox);
      for (const Frame& frame : peer.inbox) {
        if (frame.type == FrameType::kGoodbye) peer.goodbye = Goodbye{};
      }
      peer.inbox.clear();
      if (peer.control->open() && !peer.goodbye) drained_.push_back({peer.control->fd(), POLLIN, 0});
    }
    if (drained_.empty()) return;
    poll(drained_.data(), drained_.size(), 10);
  }
}

}  // namespace spark_estimator
