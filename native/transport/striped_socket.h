// A stream of bytes to one peer over one socket, or over several in turns: some networks limit what a connection
// carries.
#ifndef SPARK_ESTIMATOR_TRANSPORT_STRIPED_SOCKET_H_
#define SPARK_ESTIMATOR_TRANSPORT_STRIPED_SOCKET_H_

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "transport/stream_socket.h"

namespace spark_estimator {

// The first kStripeBytes go through the first socket, the following through the second, ..., and then through the first
// again. A full socket holds up those after it, but the kernel sends what they have been given: its buffers hold
// many stripes, so that all connections are busy. Both ends have the same sockets in the same order.
class StripedSocket {
 public:
  static constexpr size_t kStripeBytes = size_t{64} << 10;

  StripedSocket() = default;
  StripedSocket(StreamSocket socket) { sockets_.push_back(std::move(socket)); }  // NOLINT: a stream over one socket
  StripedSocket(UniqueFd fd) : StripedSocket(StreamSocket(std::move(fd))) {}     // NOLINT

  // Memory for this number of sockets: adding them then needs none.
  void Reserve(size_t sockets) { sockets_.reserve(sockets); }
  // Adds a socket; before the first byte.
  void Add(StreamSocket socket) { sockets_.push_back(std::move(socket)); }
  std::span<StreamSocket> sockets() { return sockets_; }
  std::span<const StreamSocket> sockets() const { return sockets_; }

  // The sockets that the next byte goes to and comes from; there is one.
  int send_fd() const { return sockets_[sending_.socket].fd(); }
  int receive_fd() const { return sockets_[receiving_.socket].fd(); }

  // As StreamSocket's.
  ssize_t Send(const uint8_t* data, size_t bytes) {
    return Move(sending_, bytes,
                [&](StreamSocket& socket, size_t start, size_t part) { return socket.Send(data + start, part); });
  }
  ssize_t Receive(uint8_t* data, size_t bytes) {
    return Move(receiving_, bytes,
                [&](StreamSocket& socket, size_t start, size_t part) { return socket.Receive(data + start, part); });
  }

 private:
  struct Position {
    size_t socket = 0;
    size_t in_stripe = 0;
  };

  template <typename MovePart>
  ssize_t Move(Position& position, size_t bytes, MovePart move_part) {
    if (sockets_.size() == 1) return move_part(sockets_[0], 0, bytes);
    size_t moved = 0;
    while (moved < bytes) {
      const size_t part = std::min(bytes - moved, kStripeBytes - position.in_stripe);
      const ssize_t n = move_part(sockets_[position.socket], moved, part);
      if (n <= 0) return moved > 0 ? static_cast<ssize_t>(moved) : n;
      moved += static_cast<size_t>(n);
      position.in_stripe += static_cast<size_t>(n);
      if (position.in_stripe == kStripeBytes) position = {(position.socket + 1) % sockets_.size(), 0};
      if (static_cast<size_t>(n) < part) break;
    }
    return static_cast<ssize_t>(moved);
  }

  std::vector<StreamSocket> sockets_;
  Position sending_;
  Position receiving_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_STRIPED_SOCKET_H_
