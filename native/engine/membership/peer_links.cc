#include "engine/membership/peer_links.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/membership/overlay.h"
#include "engine/membership/relayed_frame.h"

namespace spark_estimator {

PeerLinks::PeerLinks(int rank, int size, bool overlay)
    : rank_(rank), overlay_(overlay), links_(static_cast<size_t>(size)) {
  if (overlay) floods_passed_.resize(static_cast<size_t>(size));
}

Status PeerLinks::Open() {
  poll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  return poll_.valid() ? Status::Ok() : Status::System("cannot make an event descriptor", errno);
}

void PeerLinks::Connect(int rank, StreamSocket control) {
  links_[static_cast<size_t>(rank)].control = std::make_unique<ControlLink>(std::move(control));
}

Status PeerLinks::Watch(int rank) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(rank);
  if (epoll_ctl(poll_.get(), EPOLL_CTL_ADD, at(rank).fd(), &event) == 0) return Status::Ok();
  return Status::System("cannot watch a connection (epoll_ctl)", errno);
}

void PeerLinks::StopWatching(int rank) { epoll_ctl(poll_.get(), EPOLL_CTL_DEL, at(rank).fd(), nullptr); }

void PeerLinks::Send(int rank, FrameType type, std::string_view payload) {
  const int next = overlay_ ? overlay::NextHop(rank_, rank, size()) : rank;
  if (next == rank) return SendOver(rank, type, payload);
  SendOver(next, FrameType::kRelayed, Encode(RelayedFrame{rank_, rank, 0, type, payload}));
}

void PeerLinks::SendToAll(FrameType type, std::string_view payload) {
  if (overlay_) {
    return SendToChildren(rank_, Encode(RelayedFrame{rank_, RelayedFrame::kToAll, 0, type, payload}));
  }
  for (Link& link : links_) {
    if (link.control) link.control->Send(type, payload);
  }
}

void PeerLinks::SendToChildren(int source, std::string_view relayed) {
  overlay::ForEachChild(source, rank_, size(), [&](int child) { SendOver(child, FrameType::kRelayed, relayed); });
}

Frame PeerLinks::Flood(FrameType type, std::string payload) {
  if (!overlay_) return {type, std::move(payload)};
  return {FrameType::kRelayed, Encode(RelayedFrame{rank_, RelayedFrame::kFlood, ++floods_, type, payload})};
}

int64_t PeerLinks::Flush() {
  int64_t sent = 0;
  for (Link& link : links_) {
    if (!link.control) continue;
    link.control->Flush();
    sent += link.control->bytes_sent();
  }
  return sent;
}

bool PeerLinks::HasUnsent() const {
  return std::ranges::any_of(links_, [](const Link& link) { return link.control && link.control->has_unsent(); });
}

std::span<const int> PeerLinks::Ready(int timeout_milliseconds) {
  std::array<epoll_event, kMostReady> events;
  const int count = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), timeout_milliseconds);
  const auto ready = static_cast<size_t>(std::max(count, 0));
  for (size_t i = 0; i < ready; ++i) ready_[i] = static_cast<int>(events[i].data.u32);
  return {ready_.data(), ready};
}

std::span<const int> PeerLinks::Receive(int rank) {
  ControlLink& control = *links_[static_cast<size_t>(rank)].control;
  received_.clear();
  if (!overlay_) {
    std::deque<Frame>& frames = inbox(rank);
    control.Receive(&frames);
    if (!frames.empty()) received_.push_back(rank);
    return received_;
  }
  incoming_.clear();  // of another link, when there was no memory
  control.Receive(&incoming_);
  while (!incoming_.empty()) {
    Frame frame = std::move(incoming_.front());
    incoming_.pop_front();
    if (frame.type != FrameType::kRelayed) {
      Deliver(rank, std::move(frame));
    } else if (!PassOn(rank, std::move(frame))) {
      control.Refuse("it sent a control frame that cannot be passed on");
      incoming_.clear();
    }
  }
  return received_;
}

void PeerLinks::Deliver(int source, Frame frame) {
  inbox(source).push_back(std::move(frame));
  if (std::ranges::find(received_, source) == received_.end()) received_.push_back(source);
}

bool PeerLinks::PassOn(int from, Frame frame) {
  RelayedFrame relayed;
  if (!Decode(frame.payload, size(), &relayed)) return false;
  if (relayed.destination == RelayedFrame::kFlood) {
    if (relayed.source == rank_) return true;
    uint32_t& passed = floods_passed_[static_cast<size_t>(relayed.source)];
    if (relayed.number <= passed) return true;
    passed = relayed.number;
    for (int peer = 0; peer < size(); ++peer) {
      if (exists(peer) && peer != from && peer != relayed.source) SendOver(peer, FrameType::kRelayed, frame.payload);
    }
  } else if (relayed.source == rank_) {
    return false;  // no path leads back
  } else if (relayed.destination == RelayedFrame::kToAll) {
    SendToChildren(relayed.source, frame.payload);
  } else if (relayed.destination != rank_) {
    SendOver(overlay::NextHop(rank_, relayed.destination, size()), FrameType::kRelayed, frame.payload);
    return true;
  }
  Deliver(relayed.source, Frame{relayed.type, std::string(relayed.payload)});
  return true;
}

void PeerLinks::FinishSending(Seconds timeout) noexcept {
  const Time give_up = After(timeout);
  while (HasUnsent() && Clock::now() < give_up) {
    Flush();
    poll(nullptr, 0, 1);
  }
  for (Link& link : links_) {
    if (link.control) link.control->FinishSending();
  }
}

void PeerLinks::AbandonAfterFork() {
  // Plain closes of numbers: freeing could wait for a lock that a thread holds which does not exist here.
  for (const Link& link : links_) {
    if (link.control) ::close(link.control->fd());
  }
  if (poll_.valid()) ::close(poll_.get());
}

}  // namespace spark_estimator
