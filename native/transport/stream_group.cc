#include "transport/stream_group.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace spark_estimator {
namespace {

// send() and recv() take at most 2 GiB at once, and smaller turns keep both directions of a link busy.
constexpr size_t kTurnBytes = size_t{1} << 20;

}  // namespace

Status StreamGroup::TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved) {
  *moved = 0;
  if (bytes == 0) return Status::Ok();
  const int fd = sockets[static_cast<size_t>(peer)].get();
  const ssize_t n = send(fd, data, std::min(bytes, kTurnBytes), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) {
    *moved = static_cast<size_t>(n);
    bytes_moved += n;
    return Status::Ok();
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return Status::Ok();
  const int error_number = errno;
  // The control connection tells better why a peer is gone than a broken pipe does.
  SE_RETURN_IF_ERROR(liveness->Check());
  return Status(SE_PEER_LOST,
                Status::System("sending to rank " + std::to_string(peer) + " failed", error_number).message());
}

Status StreamGroup::TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved) {
  *moved = 0;
  if (bytes == 0) return Status::Ok();
  const int fd = sockets[static_cast<size_t>(peer)].get();
  const ssize_t n = recv(fd, data, std::min(bytes, kTurnBytes), MSG_DONTWAIT);
  if (n > 0) {
    *moved = static_cast<size_t>(n);
    bytes_moved += n;
    return Status::Ok();
  }
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return Status::Ok();
  const int error_number = n == 0 ? ECONNRESET : errno;
  SE_RETURN_IF_ERROR(liveness->Check());
  return Status(SE_PEER_LOST,
                Status::System("receiving from rank " + std::to_string(peer) + " failed", error_number).message());
}

Status StreamGroup::AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from) {
  std::vector<pollfd> waits;
  waits.reserve(senders_to.size() + receivers_from.size());
  for (const int peer : senders_to) {
    if (peer >= 0) waits.push_back({sockets[static_cast<size_t>(peer)].get(), POLLOUT, 0});
  }
  for (const int peer : receivers_from) {
    if (peer >= 0) waits.push_back({sockets[static_cast<size_t>(peer)].get(), POLLIN, 0});
  }
  const int ready = poll(waits.data(), waits.size(), static_cast<int>(kLivenessInterval.count()));
  if (ready < 0 && errno != EINTR) return Status::System("waiting for peers failed (poll)", errno);
  return ready > 0 ? Status::Ok() : liveness->Check();
}

Status StreamGroup::Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives) {
  std::vector<SendPart> to_send(sends.begin(), sends.end());
  std::vector<ReceivePart> to_receive(receives.begin(), receives.end());
  std::vector<int> senders_to;
  std::vector<int> receivers_from;
  while (true) {
    bool progress = false;
    senders_to.clear();
    receivers_from.clear();
    for (SendPart& part : to_send) {
      size_t moved = 0;
      SE_RETURN_IF_ERROR(TrySend(part.peer, part.data, part.bytes, &moved));
      part.data += moved;
      part.bytes -= moved;
      progress |= moved > 0;
      if (part.bytes > 0) senders_to.push_back(part.peer);
    }
    for (ReceivePart& part : to_receive) {
      size_t moved = 0;
      SE_RETURN_IF_ERROR(TryReceive(part.peer, part.data, part.bytes, &moved));
      part.data += moved;
      part.bytes -= moved;
      progress |= moved > 0;
      if (part.bytes > 0) receivers_from.push_back(part.peer);
    }
    if (senders_to.empty() && receivers_from.empty()) return Status::Ok();
    if (!progress) SE_RETURN_IF_ERROR(AwaitReady(senders_to, receivers_from));
  }
}

}  // namespace spark_estimator
