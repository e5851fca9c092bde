#include "engine/membership/group_exit.h"

#include "base/contain.h"

namespace spark_estimator {
namespace {

// How long leaving waits for the peers to take in what was sent.
constexpr Seconds kGoodbyeFlush{1.0};
constexpr Seconds kGoodbyeDrain{0.1};

}  // namespace

GroupExit::GroupExit(Membership* membership, PeerLinks* links, const Status* no_memory)
    : membership_(membership),
      links_(links),
      no_memory_(no_memory),
      no_memory_abort_(Encode(Abort{membership->rank(), no_memory->message()})) {
  drained_.reserve(static_cast<size_t>(links->size()));
}

void GroupExit::AnnounceFailure(const Status& why) noexcept {
  std::string payload;
  (void)Contain(*no_memory_, [&] {
    payload = Encode(membership_->AbortFor(why));
    return Status::Ok();
  });
  for (int rank = 0; rank < links_->size(); ++rank) {
    if (!links_->exists(rank)) continue;
    const auto send = [&](const std::string& abort) {
      return Contain(*no_memory_, [&] {
        links_->Send(rank, FrameType::kAbort, abort);
        return Status::Ok();
      });
    };
    if (payload.empty() || !send(payload).ok()) (void)send(no_memory_abort_);
  }
}

void GroupExit::SendHeartbeats() {
  for (const int rank : membership_->watched()) {
    if (links_->is_open(rank) && !membership_->has_left(rank)) links_->Send(rank, FrameType::kHeartbeat, "");
  }
}

void GroupExit::TendLinks(Time now) noexcept {
  (void)Contain(*no_memory_, [&] {
    for (int rank = 0; rank < links_->size(); ++rank) {
      if (!links_->is_open(rank)) continue;
      std::deque<Frame>& inbox = links_->inbox(rank);
      const size_t before = inbox.size();
      links_->Receive(rank);
      if (inbox.size() > before) membership_->Heard(rank, now);
      for (const Frame& frame : inbox) {
        if (frame.type == FrameType::kGoodbye) membership_->RankLeft(rank, Goodbye{}, now);
        if (frame.type == FrameType::kHeartbeat) membership_->WatchedBy(rank, now);
      }
      inbox.clear();
      if (links_->is_open(rank)) continue;
      links_->StopWatching(rank);
      membership_->StopWatching(rank, now);
    }
    if (membership_->DueToSend(now)) SendHeartbeats();
    if (const auto silent = membership_->Silent(now)) membership_->StopWatching(*silent, now);
    return Status::Ok();
  });
}

void GroupExit::SayGoodbye(int64_t executed) noexcept {
  for (int rank = 0; rank < links_->size(); ++rank) {
    if (!links_->exists(rank)) continue;
    (void)Contain(*no_memory_, [&] {
      links_->Send(rank, FrameType::kGoodbye, Encode(membership_->OwnGoodbye(executed)));
      return Status::Ok();
    });
  }
  links_->FinishSending(kGoodbyeFlush);
  (void)Contain(*no_memory_, [&] {
    Drain();
    return Status::Ok();
  });
}

// Closing a socket with unread bytes resets it, and a reset may overtake what was sent: read on for a moment.
void GroupExit::Drain() {
  const Time give_up = After(kGoodbyeDrain);
  while (Clock::now() < give_up) {
    drained_.clear();
    for (int rank = 0; rank < links_->size(); ++rank) {
      if (!links_->is_open(rank) || membership_->has_left(rank)) continue;
      links_->Receive(rank);
      std::deque<Frame>& inbox = links_->inbox(rank);
      for (const Frame& frame : inbox) {
        if (frame.type == FrameType::kGoodbye) membership_->RankLeft(rank, Goodbye{}, Clock::now());
      }
      inbox.clear();
      if (links_->is_open(rank) && !membership_->has_left(rank)) {
        drained_.push_back({links_->at(rank).fd(), POLLIN, 0});
      }
    }
    if (drained_.empty()) return;
    poll(drained_.data(), drained_.size(), 10);
  }
}

}  // namespace spark_estimator
