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
  Frame abort{FrameType::kAbort, ""};
  (void)Contain(*no_memory_, [&] {
    abort = links_->Flood(FrameType::kAbort, Encode(membership_->AbortFor(why)));
    return Status::Ok();
  });
  for (int rank = 0; rank < links_->size(); ++rank) {
    if (!links_->exists(rank)) continue;
    const auto send = [&](FrameType type, const std::string& payload) {
      return Contain(*no_memory_, [&] {
        links_->SendOver(rank, type, payload);
        return Status::Ok();
      });
    };
    // Who gets the second one announces it to the others.
    if (abort.payload.empty() || !send(abort.type, abort.payload).ok()) (void)send(FrameType::kAbort, no_memory_abort_);
  }
}

void GroupExit::SendHeartbeats() {
  for (const int rank : membership_->watched()) {
    if (links_->is_open(rank) && !membership_->has_left(rank)) links_->SendOver(rank, FrameType::kHeartbeat, "");
  }
}

void GroupExit::TendLinks(Time now) noexcept {
  (void)Contain(*no_memory_, [&] {
    for (int rank = 0; rank < links_->size(); ++rank) {
      if (!links_->is_open(rank)) continue;
      const int64_t before = links_->at(rank).bytes_received();
      for (const int source : links_->Receive(rank)) TakeIn(source, now);
      if (links_->at(rank).bytes_received() > before) membership_->Heard(rank, now);
      if (links_->is_open(rank)) continue;
      links_->StopWatching(rank);
      membership_->StopWatching(rank, now);
    }
    if (membership_->DueToSend(now)) SendHeartbeats();
    if (const auto silent = membership_->Silent(now)) membership_->StopWatching(*silent, now);
    return Status::Ok();
  });
}

// Of frames, only who leaves and who is alive matter any more.
void GroupExit::TakeIn(int source, Time now) {
  std::deque<Frame>& inbox = links_->inbox(source);
  for (const Frame& frame : inbox) {
    if (frame.type == FrameType::kGoodbye) membership_->RankLeft(source, Goodbye{}, now);
    if (frame.type == FrameType::kHeartbeat) membership_->WatchedBy(source, now);
  }
  inbox.clear();
}

void GroupExit::SayGoodbye(int64_t executed) noexcept {
  Frame goodbye{FrameType::kGoodbye, ""};
  for (int rank = 0; rank < links_->size(); ++rank) {
    if (!links_->exists(rank)) continue;
    (void)Contain(*no_memory_, [&] {
      if (goodbye.payload.empty()) {
        goodbye = links_->Flood(FrameType::kGoodbye, Encode(membership_->OwnGoodbye(executed)));
      }
      links_->SendOver(rank, goodbye.type, goodbye.payload);
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
      for (const int source : links_->Receive(rank)) TakeIn(source, Clock::now());
      if (links_->is_open(rank) && !membership_->has_left(rank)) {
        drained_.push_back({links_->at(rank).fd(), POLLIN, 0});
      }
    }
    if (drained_.empty()) return;
    poll(drained_.data(), drained_.size(), 10);
  }
}

}  // namespace spark_estimator
