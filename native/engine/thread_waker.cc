#include "engine/thread_waker.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace spark_estimator {
namespace {

// A caller that has driven this short a time ago most likely returns, and receives what peers have sent meanwhile.
constexpr std::chrono::microseconds kCallerReturns{500};

Status Watch(int poll_fd, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint64_t>(fd);
  if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event) == 0) return Status::Ok();
  return Status::System("cannot watch a connection (epoll_ctl)", errno);
}

}  // namespace

Status ThreadWaker::Open() {
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  poll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_.valid() || !poll_.valid()) return Status::System("cannot make an event descriptor", errno);
  return Watch(poll_.get(), wake_.get());
}

Status ThreadWaker::WatchLinks(int links_fd) {
  links_fd_ = links_fd;
  return Watch(poll_.get(), links_fd);
}

void ThreadWaker::Wake() {
  if (wake_pending_.exchange(true)) return;  // an earlier wake-up has not been seen yet: it counts for this one, too
  const uint64_t count = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &count, sizeof(count));
}

void ThreadWaker::Sleep(Time until) {
  std::array<epoll_event, 2> events;
  int timeout = -1;
  if (wake_pending_) {
    timeout = 0;
  } else if (until != Time::max()) {
    const double left = Seconds(until - Clock::now()).count();
    timeout = left <= 0 ? 0 : static_cast<int>(std::min(left, 3600.0) * 1000) + 1;
  }
  int ready = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), timeout);
  if (ready == 1 && events[0].data.fd != wake_.get() && Clock::now() - last_released_.load() < kCallerReturns) {
    // A peer that is ahead. Receiving its frames instead of a caller that calls repeatedly would cost more than it
    // gains.
    pollfd wake{wake_.get(), POLLIN, 0};
    const timespec pause{0, std::chrono::nanoseconds(kCallerReturns).count()};
    ppoll(&wake, 1, &pause, nullptr);
    ready = epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), 0);
  }
  // Cleared before the queue is looked at: what is submitted from here on wakes the thread again.
  wake_pending_ = false;
  for (int i = 0; i < ready; ++i) {
    if (events[static_cast<size_t>(i)].data.fd != wake_.get()) continue;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
  }
}

void ThreadWaker::ReleaseLinks(bool returns_soon) {
  if (returns_soon) last_released_ = Clock::now();
  SetLinksClaimed(false);
}

void ThreadWaker::SetLinksClaimed(bool claimed) {
  if (claimed == links_claimed_) return;
  links_claimed_ = claimed;
  epoll_event event{};
  event.events = claimed ? 0u : static_cast<uint32_t>(EPOLLIN);
  event.data.fd = links_fd_;
  epoll_ctl(poll_.get(), EPOLL_CTL_MOD, links_fd_, &event);
}

void ThreadWaker::AbandonAfterFork() {
  for (const int fd : {wake_.get(), poll_.get()}) {
    if (fd >= 0) ::close(fd);
  }
}

}  // namespace spark_estimator
