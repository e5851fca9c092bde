// The control connections to the peers: sends frames, receives frames, and knows which connections have something.
//
// What a frame means is not known here. A connection is open until its end or an error is read; it is then closed
// permanently, with a reason. Sending on a closed connection does nothing.
//
// Threads: used by the driving thread. poll_fd() may be waited on by any.
#ifndef SPARK_ESTIMATOR_ENGINE_PEER_LINKS_H_
#define SPARK_ESTIMATOR_ENGINE_PEER_LINKS_H_

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/frame.h"

namespace spark_estimator {

class PeerLinks {
 public:
  explicit PeerLinks(int size) : links_(static_cast<size_t>(size)) {}

  // Makes the descriptor that reports which connections have data.
  Status Open();
  void Connect(int rank, StreamSocket control);
  // From now on Ready() gives `rank` when it has sent something, or its connection has ended.
  Status Watch(int rank);
  void StopWatching(int rank);
  // Readable while a watched connection has something.
  int poll_fd() const { return poll_.get(); }

  int size() const { return static_cast<int>(links_.size()); }
  // Whether there is a connection, open or closed; none to the rank itself.
  bool exists(int rank) const { return links_[static_cast<size_t>(rank)].control != nullptr; }
  bool is_open(int rank) const { return exists(rank) && links_[static_cast<size_t>(rank)].control->open(); }
  const ControlLink& at(int rank) const { return *links_[static_cast<size_t>(rank)].control; }

  // Frames to one peer, which must exist; to all peers.
  void Send(int rank, FrameType type, std::string_view payload) {
    links_[static_cast<size_t>(rank)].control->Send(type, payload);
  }
  void SendToAll(FrameType type, std::string_view payload);
  // Sends what is queued as far as the sockets take it. The bytes sent to all peers so far.
  int64_t Flush();
  bool HasUnsent() const;

  // The ranks whose connections have data, after waiting at most this time; some may be left for the next call. Valid
  // until that.
  std::span<const int> Ready(int timeout_milliseconds);
  // Takes in what `rank` has sent; inbox() then has its whole frames.
  void Receive(int rank);
  std::deque<Frame>& inbox(int rank) { return links_[static_cast<size_t>(rank)].inbox; }

  // Waits for the peers to take in what is queued, and ends this side of the connections.
  void FinishSending(Seconds timeout) noexcept;
  // For a forked child: closes the descriptors and changes nothing else.
  void AbandonAfterFork();

 private:
  struct Link {
    std::unique_ptr<ControlLink> control;  // null for oneself
    std::deque<Frame> inbox;
  };
  static constexpr size_t kMostReady = 64;

  std::vector<Link> links_;  // [size], by rank
  UniqueFd poll_;
  std::array<int, kMostReady> ready_{};
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_PEER_LINKS_H_
