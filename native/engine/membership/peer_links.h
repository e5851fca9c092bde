// The control connections to the peers: sends frames, receives frames, and knows which connections have something.
//
// What a frame means is not known here. A connection is open until its end or an error is read; it is then closed
// permanently, with a reason. Sending on a closed connection does nothing.
//
// In a large group (`overlay`) not every two ranks are connected, see overlay.h: this class then passes frames on, also
// those of others, each time that it receives. What holds in both cases:
//
//   - Frames from one rank to another arrive in the order in which they were sent, by Send or SendToAll.
//   - What a rank sends after a flood does not arrive before it; a flood may overtake what was sent before it.
//   - A frame whose path leads through a rank that has ended is lost; a flood arrives as long as any path is left.
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
  PeerLinks(int rank, int size, bool overlay = false);

  // Makes the descriptor that reports which connections have data.
  Status Open();
  void Connect(int rank, StreamSocket control);
  // From now on Ready() gives `rank` when it has sent something, or its connection has ended.
  Status Watch(int rank);
  void StopWatching(int rank);
  // Readable while a watched connection has something.
  int poll_fd() const { return poll_.get(); }

  int size() const { return static_cast<int>(links_.size()); }
  bool overlay() const { return overlay_; }
  // Whether there is a connection, open or closed; none to the rank itself.
  bool exists(int rank) const { return links_[static_cast<size_t>(rank)].control != nullptr; }
  bool is_open(int rank) const { return exists(rank) && links_[static_cast<size_t>(rank)].control->open(); }
  const ControlLink& at(int rank) const { return *links_[static_cast<size_t>(rank)].control; }

  // Frames to one other rank; to all others.
  void Send(int rank, FrameType type, std::string_view payload);
  void SendToAll(FrameType type, std::string_view payload);
  // A frame over the connection to `rank`, which must exist, before those that other ranks pass on.
  void SendOver(int rank, FrameType type, std::string_view payload) {
    links_[static_cast<size_t>(rank)].control->Send(type, payload);
  }
  // The frame that reaches all others once it is sent over every connection. Each call begins a new flood.
  Frame Flood(FrameType type, std::string payload);
  // Sends what is queued as far as the sockets take it. The bytes sent to all peers so far.
  int64_t Flush();
  bool HasUnsent() const;

  // The ranks whose connections have data, after waiting at most this time; some may be left for the next call. Valid
  // until that.
  std::span<const int> Ready(int timeout_milliseconds);
  // Takes in what has arrived over the connection to `rank`, and passes on what is for others. Gives the ranks with
  // frames in their inboxes because of that; valid until the next call.
  std::span<const int> Receive(int rank);
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

  void Deliver(int source, Frame frame);
  // False for a frame that no rank sends.
  bool PassOn(int from, Frame frame);
  void SendToChildren(int source, std::string_view relayed);

  int rank_;
  bool overlay_;
  std::vector<Link> links_;  // [size], by rank
  UniqueFd poll_;
  std::array<int, kMostReady> ready_{};
  std::vector<int> received_;   // the sources of what Receive has taken in
  std::deque<Frame> incoming_;  // of Receive
  // With an overlay only.
  uint32_t floods_ = 0;                  // of this rank
  std::vector<uint32_t> floods_passed_;  // [size], the last flood of each other rank that this one has passed on
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_PEER_LINKS_H_
