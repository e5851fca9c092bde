#include "transport/late_sockets.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace spark_estimator {

Status LateSockets::Open() {
  arrived_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return arrived_.valid() ? Status::Ok() : Status::System("cannot make an event descriptor", errno);
}

void LateSockets::Ask(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  asked_.push_back(peer);
  changed_.notify_one();
}

std::optional<LateSockets::Arrival> LateSockets::TakeArrival() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (arrivals_.empty()) {
    eventfd_t count = 0;
    (void)eventfd_read(arrived_.get(), &count);
    return std::nullopt;
  }
  Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  return arrival;
}

void LateSockets::AbandonAfterFork() {
  for (const Arrival& arrival : arrivals_) {
    for (const StreamSocket& socket : arrival.socket.sockets()) ::close(socket.fd());
  }
  if (arrived_.valid()) ::close(arrived_.get());
}

Status LateSockets::AwaitAsked(Seconds timeout, int* peer) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, After(timeout), [&] { return closed_ || !asked_.empty(); });
  if (closed_) return Status(SE_SHUT_DOWN, "this rank has shut down");
  if (asked_.empty()) return Status(SE_IN_PROGRESS, "");
  *peer = asked_.front();
  asked_.pop_front();
  return Status::Ok();
}

void LateSockets::Deliver(Arrival arrival) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  arrivals_.push_back(std::move(arrival));
  (void)eventfd_write(arrived_.get(), 1);
}

void LateSockets::Close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  arrivals_.clear();
  changed_.notify_all();
}

}  // namespace spark_estimator
