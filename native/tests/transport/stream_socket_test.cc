// Encrypted sockets transfer the same bytes as plain ones, however the stream is cut, and end at the first bad record.
#include "transport/stream_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "libcrypto.h"
#include "transport/striped_socket.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

struct Descriptors {
  int first;
  int second;
};

Descriptors Connect(int socket_buffer_bytes = 0) {
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  for (const int fd : ends) {
    if (socket_buffer_bytes > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &socket_buffer_bytes, sizeof(int));
  }
  return {ends[0], ends[1]};
}

std::vector<uint8_t> Bytes(size_t count) {
  std::mt19937 random(7);
  std::vector<uint8_t> bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
  return bytes;
}

bool MustWait() { return errno == EAGAIN || errno == EWOULDBLOCK; }

// Until the first can be written, or the second read.
void AwaitEither(int to, int from) {
  pollfd waits[2] = {{to, POLLOUT, 0}, {from, POLLIN, 0}};
  CHECK(poll(waits, 2, 20000) > 0);
}

int SendFd(const StreamSocket& socket) { return socket.fd(); }
int ReceiveFd(const StreamSocket& socket) { return socket.fd(); }
int SendFd(const StripedSocket& socket) { return socket.send_fd(); }
int ReceiveFd(const StripedSocket& socket) { return socket.receive_fd(); }

// Sends and receives `count` bytes at once, in pieces of random sizes.
template <typename Socket>
void MoveBothWays(Socket& socket, size_t count, unsigned seed) {
  const std::vector<uint8_t> data = Bytes(count);
  std::vector<uint8_t> received(count);
  std::mt19937 random(seed);
  size_t sent = 0;
  size_t arrived = 0;
  size_t offered = 0;  // the rest is passed again, or more
  while (sent < count || arrived < count) {
    bool progress = false;
    if (sent < count) {
      offered = std::min(count - sent, std::max<size_t>(offered, 1 + random() % 200000));
      const ssize_t n = socket.Send(data.data() + sent, offered);
      CHECK(n > 0 || MustWait());
      if (n > 0) sent += static_cast<size_t>(n);
      if (n > 0) offered -= static_cast<size_t>(n);
      progress |= n > 0;
    }
    if (arrived < count) {
      const ssize_t n =
          socket.Receive(received.data() + arrived, std::min(count - arrived, size_t{1 + random() % 150000}));
      CHECK(n > 0 || MustWait());
      if (n > 0) arrived += static_cast<size_t>(n);
      progress |= n > 0;
    }
    if (!progress) AwaitEither(sent < count ? SendFd(socket) : -1, arrived < count ? ReceiveFd(socket) : -1);
  }
  CHECK(received == data);
}

void TheSameBytesArrive() {
  for (const bool encrypted : {false, true}) {
    for (const int buffer_bytes : {0, 4096}) {
      const Descriptors ends = Connect(buffer_bytes);
      std::pair<StreamSocket, StreamSocket> sockets;
      if (encrypted) {
        sockets = EncryptedPair(ends.first, ends.second);
      } else {
        sockets = {UniqueFd(ends.first), UniqueFd(ends.second)};
      }
      const size_t count = buffer_bytes == 0 ? size_t{8} << 20 : size_t{1} << 20;
      std::thread other([&] { MoveBothWays(sockets.second, count, 2); });
      MoveBothWays(sockets.first, count, 1);
      other.join();
    }
  }
}

void StripesArriveInOrder() {
  for (const bool encrypted : {false, true}) {
    for (const int buffer_bytes : {0, 4096}) {
      for (const int connections : {1, 2, 5}) {
        StripedSocket first;
        StripedSocket second;
        for (int i = 0; i < connections; ++i) {
          const Descriptors ends = Connect(buffer_bytes);
          std::pair<StreamSocket, StreamSocket> pair;
          if (encrypted) {
            pair = EncryptedPair(ends.first, ends.second);
          } else {
            pair = {UniqueFd(ends.first), UniqueFd(ends.second)};
          }
          first.Add(std::move(pair.first));
          second.Add(std::move(pair.second));
        }
        const size_t count = buffer_bytes == 0 ? size_t{4} << 20 : size_t{500} << 10;
        std::thread other([&] { MoveBothWays(second, count, 2); });
        MoveBothWays(first, count, 1);
        other.join();
      }
    }
  }
}

void EachConnectionCarriesItsStripes() {
  StripedSocket sender;
  std::vector<UniqueFd> ends;
  for (int i = 0; i < 3; ++i) {
    const Descriptors pair = Connect();
    sender.Add(UniqueFd(pair.first));
    ends.emplace_back(pair.second);
  }
  const std::vector<uint8_t> data = Bytes(StripedSocket::kStripeBytes / 2);
  for (int i = 0; i < 7; ++i) CHECK_EQ(sender.Send(data.data(), data.size()), static_cast<ssize_t>(data.size()));
  const size_t halves[] = {3, 2, 2};  // the fourth stripe, which is half full, is the first connection's again
  for (size_t i = 0; i < ends.size(); ++i) {
    std::vector<uint8_t> arrived(8 * data.size());
    CHECK_EQ(recv(ends[i].get(), arrived.data(), arrived.size(), MSG_DONTWAIT),
             static_cast<ssize_t>(halves[i] * data.size()));
  }
  CHECK_EQ(sender.send_fd(), sender.sockets()[0].fd());
}

void TheEndOfAConnectionIsTheEnd() {
  StripedSocket receiver;
  std::vector<UniqueFd> ends;
  for (int i = 0; i < 2; ++i) {
    const Descriptors pair = Connect();
    receiver.Add(UniqueFd(pair.first));
    ends.emplace_back(pair.second);
  }
  const std::vector<uint8_t> data = Bytes(StripedSocket::kStripeBytes);
  CHECK_EQ(send(ends[0].get(), data.data(), data.size(), 0), static_cast<ssize_t>(data.size()));
  ends[1].Reset(-1);
  std::vector<uint8_t> received(2 * data.size());
  CHECK_EQ(receiver.Receive(received.data(), received.size()), static_cast<ssize_t>(data.size()));
  CHECK_EQ(receiver.Receive(received.data(), received.size()), ssize_t{0});
}

void NothingShowsInClear() {
  const Descriptors ends = Connect();
  const std::string canary(4096, 'C');
  for (const bool encrypted : {false, true}) {
    int wire[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wire), 0);
    StreamSocket sender = encrypted ? EncryptedPair(wire[0], dup(wire[0])).first : StreamSocket(UniqueFd(wire[0]));
    CHECK_EQ(sender.Send(canary.data(), canary.size()), static_cast<ssize_t>(canary.size()));
    const UniqueFd tap(wire[1]);
    std::string seen(8192, '\0');
    seen.resize(static_cast<size_t>(recv(tap.get(), seen.data(), seen.size(), MSG_DONTWAIT)));
    CHECK_EQ(seen.find("CCCC") == std::string::npos, encrypted);
  }
  const UniqueFd first(ends.first);
  const UniqueFd second(ends.second);
}

void WhatALongRecordLeavesComesWithoutTheDescriptor() {
  const Descriptors ends = Connect();
  auto sockets = EncryptedPair(ends.first, ends.second);
  const std::vector<uint8_t> data = Bytes(1000);
  CHECK_EQ(sockets.first.Send(data.data(), data.size()), ssize_t{1000});
  std::vector<uint8_t> received(1000);
  for (size_t i = 0; i < 1000; i += 100) CHECK_EQ(sockets.second.Receive(received.data() + i, 100), ssize_t{100});
  CHECK(received == data);
  CHECK_EQ(sockets.second.Receive(received.data(), 1), ssize_t{-1});
  CHECK(MustWait());
}

// The records of a message, as they would be on the wire.
std::vector<uint8_t> WireBytes(const std::vector<std::string>& messages) {
  const Descriptors ends = Connect();
  auto sockets = EncryptedPair(ends.first, dup(ends.first));
  for (const std::string& message : messages)
    CHECK_EQ(sockets.first.Send(message.data(), message.size()), static_cast<ssize_t>(message.size()));
  std::vector<uint8_t> wire(1 << 20);
  wire.resize(static_cast<size_t>(recv(ends.second, wire.data(), wire.size(), MSG_DONTWAIT)));
  close(ends.second);
  return wire;
}

// What the receiver gets of these bytes: the data up to the end, and how it ended (0 or an errno).
std::pair<std::string, int> ReceivedOf(const std::vector<uint8_t>& wire) {
  const Descriptors ends = Connect();
  auto sockets = EncryptedPair(dup(ends.first), ends.second);
  CHECK_EQ(send(ends.first, wire.data(), wire.size(), 0), static_cast<ssize_t>(wire.size()));
  shutdown(ends.first, SHUT_WR);
  close(ends.first);
  std::string data;
  char buffer[64];
  while (true) {
    const ssize_t n = sockets.second.Receive(buffer, sizeof buffer);
    if (n > 0) {
      data.append(buffer, static_cast<size_t>(n));
      continue;
    }
    const int ended = n == 0 ? 0 : errno;
    CHECK_EQ(sockets.second.Receive(buffer, sizeof buffer), n);  // permanently
    return {data, ended};
  }
}

void BadRecordsEndTheConnection() {
  const std::vector<std::string> messages = {"first message", "second message"};
  const std::vector<uint8_t> wire = WireBytes(messages);
  const size_t first_bytes = kRecordHeaderBytes + messages[0].size() + kTagBytes;
  CHECK(ReceivedOf(wire) == std::make_pair(messages[0] + messages[1], 0));

  std::vector<uint8_t> flipped = wire;
  flipped[first_bytes + 10] ^= 1;
  CHECK(ReceivedOf(flipped) == std::make_pair(messages[0], EBADMSG));
  std::vector<uint8_t> repeated(wire.begin(), wire.begin() + static_cast<long>(first_bytes));
  repeated.insert(repeated.end(), wire.begin(), wire.end());
  CHECK(ReceivedOf(repeated) == std::make_pair(messages[0], EBADMSG));
  std::vector<uint8_t> reordered(wire.begin() + static_cast<long>(first_bytes), wire.end());
  reordered.insert(reordered.end(), wire.begin(), wire.begin() + static_cast<long>(first_bytes));
  CHECK(ReceivedOf(reordered) == std::make_pair(std::string(), EBADMSG));
  const std::vector<uint8_t> truncated(wire.begin(), wire.end() - 1);
  CHECK(ReceivedOf(truncated) == std::make_pair(messages[0], ECONNRESET));
  const std::vector<uint8_t> clear(100, 'x');
  CHECK(ReceivedOf(clear) == std::make_pair(std::string(), EBADMSG));
}

void OtherDataThanBeforeIsRefused() {
  const Descriptors ends = Connect(4096);
  auto sockets = EncryptedPair(ends.first, ends.second);
  const std::vector<uint8_t> data = Bytes(1 << 20);
  size_t sent = 0;
  while (true) {
    const ssize_t n = sockets.first.Send(data.data() + sent, data.size() - sent);
    if (n < 0) break;
    sent += static_cast<size_t>(n);
  }
  CHECK(MustWait());
  CHECK_EQ(sockets.first.Send(data.data() + sent, 1), ssize_t{-1});
  CHECK_EQ(errno, EINVAL);
}

}  // namespace

int main() {
  return RunTests(
      {{"the same bytes arrive", TheSameBytesArrive},
       {"stripes arrive in order", StripesArriveInOrder},
       {"each connection carries its stripes", EachConnectionCarriesItsStripes},
       {"the end of a connection is the end", TheEndOfAConnectionIsTheEnd},
       {"nothing shows in clear", NothingShowsInClear},
       {"what a long record leaves comes without the descriptor", WhatALongRecordLeavesComesWithoutTheDescriptor},
       {"bad records end the connection", BadRecordsEndTheConnection},
       {"other data than before is refused", OtherDataThanBeforeIsRefused}});
}
