#include "engine/membership/peer_links.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace spark_estimator {

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

void PeerLinks::SendToAll(FrameType type, std::string_view payload) {
  for (Link& link : links_) {
    if (link.control) link.control->Send(type, payload);
  }
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

void PeerLinks::Receive(int rank) {
  Link& link = links_[static_cast<size_t>(rank)];
  link.control->Receive(&link.inbox);
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
