// Sockets, and parts of a group, behind the interface of StreamGroup.
#include "transport/stream_group.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

namespace spark_estimator {
namespace {

// send() and recv() take at most 2 GiB at once, and smaller turns keep both directions of a link busy.
constexpr size_t kTurnBytes = size_t{1} << 20;
// Scratch beyond this is freed after use, so that one large collective does not hold memory for ever.
constexpr size_t kKeptScratchBytes = size_t{8} << 20;
// The longest sleep while data is not sent yet: what the time that this takes is measured by.
constexpr std::chrono::milliseconds kUnsentInterval{1};

}  // namespace

SocketGroup::SocketGroup(int rank, std::vector<StripedSocket> sockets, Liveness* liveness, LateSockets* late)
    : StreamGroup(rank, static_cast<int>(sockets.size())),
      sockets_(std::move(sockets)),
      liveness_(liveness),
      late_(late),
      asked_(late != nullptr ? sockets_.size() : 0) {
  next_check_ = Clock::now() + kLivenessInterval;
}

void SocketGroup::Moved(size_t bytes) {
  CountMoved(bytes);
  polling_.Came();
}

Status SocketGroup::Failure(const char* what, int peer, int error_number) {
  if (error_number == EBADMSG) {
    return Status(SE_PEER_LOST, std::string(what) + " " + liveness_->NameOf(peer) + " failed: " + kRefusedRecord);
  }
  // The control connection has a better reason for a lost peer than a broken pipe.
  SE_RETURN_IF_ERROR(liveness_->Check());
  return Status(SE_PEER_LOST,
                Status::System(std::string(what) + " " + liveness_->NameOf(peer) + " failed", error_number).message());
}

Status SocketGroup::Connect(int peer) {
  if (peer > rank() && !asked_[static_cast<size_t>(peer)]) {
    asked_[static_cast<size_t>(peer)] = true;
    late_->Ask(peer);
  }
  return TakeArrivals();
}

Status SocketGroup::TakeArrivals() {
  while (std::optional<LateSockets::Arrival> arrival = late_->TakeArrival()) {
    if (!arrival->refusal.empty()) {
      // The control connections have a better reason for a lost peer.
      SE_RETURN_IF_ERROR(liveness_->Check());
      return Status(SE_PEER_LOST,
                    "no data connection with " + liveness_->NameOf(arrival->peer) + ": " + arrival->refusal);
    }
    if (!IsConnected(arrival->peer)) sockets_[static_cast<size_t>(arrival->peer)] = std::move(arrival->socket);
  }
  return Status::Ok();
}

Status SocketGroup::TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved) {
  *moved = 0;
  if (bytes == 0) return Status::Ok();
  if (!IsConnected(peer)) [[unlikely]]
    return Connect(peer);
  const ssize_t n = sockets_[static_cast<size_t>(peer)].Send(data, std::min(bytes, kTurnBytes));
  if (n >= 0) {
    *moved = static_cast<size_t>(n);
    last_receiver_ = peer;
    Moved(*moved);
    return Status::Ok();
  }
  const int error_number = LastErrno();
  if (error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR) return Status::Ok();
  return Failure("sending to", peer, error_number);
}

Status SocketGroup::TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved) {
  *moved = 0;
  if (bytes == 0) return Status::Ok();
  if (!IsConnected(peer)) [[unlikely]]
    return Connect(peer);
  const ssize_t n = sockets_[static_cast<size_t>(peer)].Receive(data, std::min(bytes, kTurnBytes));
  if (n > 0) {
    *moved = static_cast<size_t>(n);
    Moved(*moved);
    return Status::Ok();
  }
  const int error_number = n == 0 ? ECONNRESET : LastErrno();
  if (error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == EINTR) return Status::Ok();
  return Failure("receiving from", peer, error_number);
}

Status SocketGroup::CheckLiveness() {
  next_check_ = Clock::now() + kLivenessInterval;
  const Status alive = liveness_->Check();
  waits_for_.clear();
  return alive;
}

void SocketGroup::WaitFor(int peer, int fd, short events) {
  waits_.push_back({fd, events, 0});
  waits_for_.push_back(peer);
}

std::vector<int> SocketGroup::Awaited() const {
  std::vector<int> peers;
  for (size_t i = 0; i < waits_for_.size(); ++i) {
    const bool known = std::ranges::find(peers, waits_for_[i]) != peers.end();
    if (waits_[i].revents == 0 && !known) peers.push_back(waits_for_[i]);
  }
  return peers;
}

Status SocketGroup::AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from) {
  if (polling_.Again()) return Status::Ok();
  waits_.clear();
  waits_for_.clear();
  for (const int peer : senders_to) {
    if (peer < 0) continue;
    if (!IsConnected(peer)) {
      WaitFor(peer, late_->arrival_fd(), POLLIN);
    } else {
      WaitFor(peer, sockets_[static_cast<size_t>(peer)].send_fd(), POLLOUT);
    }
  }
  for (const int peer : receivers_from) {
    if (peer < 0) continue;
    const bool is_connected = IsConnected(peer);
    WaitFor(peer, is_connected ? sockets_[static_cast<size_t>(peer)].receive_fd() : late_->arrival_fd(), POLLIN);
  }
  const SendQueue before = ReadLastQueue();
  const Time began = Clock::now();
  const std::chrono::milliseconds timeout = before.has_unsent ? kUnsentInterval : kLivenessInterval;
  const int ready = poll(waits_.data(), waits_.size(), static_cast<int>(timeout.count()));
  const int error_number = ready < 0 ? LastErrno() : 0;
  const Time ended = Clock::now();
  if (before.has_unsent) {
    const int64_t held = ReadLastQueue().held_nanoseconds - before.held_nanoseconds;
    const int64_t slept = std::chrono::nanoseconds(ended - began).count();
    unsent_time_.fetch_add(std::max(slept - held, int64_t{0}), std::memory_order_relaxed);
  }
  if (error_number != 0 && error_number != EINTR) {
    return Status::System("waiting for peers failed (poll)", error_number);
  }
  // Also when something is ready: a transfer may take long, and others die while it runs.
  return (ready > 0 || before.has_unsent) && ended < next_check_ ? Status::Ok() : CheckLiveness();
}

SendQueue SocketGroup::ReadLastQueue() const {
  if (last_receiver_ < 0) return {};
  return sockets_[static_cast<size_t>(last_receiver_)].sockets()[0].ReadSendQueue();
}

void SocketGroup::AbandonAfterFork() {
  // Numbers only: nothing is freed, since another thread may have held the allocator's lock when the process forked.
  for (const StripedSocket& peer : sockets_) {
    for (const StreamSocket& socket : peer.sockets()) {
      if (socket.valid()) ::close(socket.fd());
    }
  }
}

SubGroup::SubGroup(StreamGroup* parent, std::vector<int> members)
    : StreamGroup(static_cast<int>(std::find(members.begin(), members.end(), parent->rank()) - members.begin()),
                  static_cast<int>(members.size())),
      parent_(parent),
      members_(std::move(members)) {
  OrderRing(parent->ring_order().Of(members_));
}

Status SubGroup::TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved) {
  SE_RETURN_IF_ERROR(parent_->TrySend(members_[static_cast<size_t>(peer)], data, bytes, moved));
  CountMoved(*moved);
  return Status::Ok();
}

Status SubGroup::TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved) {
  SE_RETURN_IF_ERROR(parent_->TryReceive(members_[static_cast<size_t>(peer)], data, bytes, moved));
  CountMoved(*moved);
  return Status::Ok();
}

Status SubGroup::AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from) {
  const auto translate = [&](std::span<const int> peers, std::vector<int>* translated) {
    translated->clear();
    for (const int peer : peers) translated->push_back(peer < 0 ? -1 : members_[static_cast<size_t>(peer)]);
  };
  translate(senders_to, &senders_);
  translate(receivers_from, &receivers_);
  return parent_->AwaitReady(senders_, receivers_);
}

Status StreamGroup::Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives) {
  sends_.assign(sends.begin(), sends.end());
  receives_.assign(receives.begin(), receives.end());
  while (true) {
    bool progress = false;
    senders_to_.clear();
    receivers_from_.clear();
    for (SendPart& part : sends_) {
      size_t moved = 0;
      if (part.bytes > 0) SE_RETURN_IF_ERROR(TrySend(part.peer, part.data, part.bytes, &moved));
      part.data += moved;
      part.bytes -= moved;
      progress |= moved > 0;
      if (part.bytes > 0) senders_to_.push_back(part.peer);
    }
    for (ReceivePart& part : receives_) {
      size_t moved = 0;
      if (part.bytes > 0) SE_RETURN_IF_ERROR(TryReceive(part.peer, part.data, part.bytes, &moved));
      part.data += moved;
      part.bytes -= moved;
      progress |= moved > 0;
      if (part.bytes > 0) receivers_from_.push_back(part.peer);
    }
    if (senders_to_.empty() && receivers_from_.empty()) return Status::Ok();
    if (!progress) SE_RETURN_IF_ERROR(AwaitReady(senders_to_, receivers_from_));
  }
}

Status StreamGroup::Scratch(size_t bytes, uint8_t** memory) {
  if (bytes > scratch_bytes_ || scratch_bytes_ > kKeptScratchBytes) {
    constexpr size_t kAlignment = 64;
    scratch_.reset();
    scratch_bytes_ = std::max(bytes + kAlignment - 1, kAlignment) / kAlignment * kAlignment;
    scratch_.reset(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, scratch_bytes_)));
    if (!scratch_) {
      scratch_bytes_ = 0;
      return Status(SE_NO_MEMORY, "could not allocate " + std::to_string(bytes) + " bytes of memory for a collective");
    }
  }
  *memory = scratch_.get();
  return Status::Ok();
}

}  // namespace spark_estimator
