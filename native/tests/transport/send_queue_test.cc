// What is not sent yet, and whether the peer is the reason.
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "check.h"
#include "transport/liveness.h"
#include "transport/stream_group.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

constexpr std::chrono::milliseconds kPause{300};

struct Ends {
  StreamSocket sender;
  StreamSocket receiver;
};

Ends ConnectOverTcp() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  CHECK_EQ(bind(listener.get(), generic, length), 0);
  CHECK_EQ(listen(listener.get(), 1), 0);
  CHECK_EQ(getsockname(listener.get(), generic, &length), 0);
  Ends ends{StreamSocket(UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))), StreamSocket()};
  CHECK_EQ(connect(ends.sender.fd(), generic, length), 0);
  ends.receiver = StreamSocket(UniqueFd(accept(listener.get(), nullptr, nullptr)));
  return ends;
}

void APeerThatDoesNotReadHoldsTheRest() {
  const Ends ends = ConnectOverTcp();
  const int fd = ends.sender.fd();
  CHECK(!ends.sender.ReadSendQueue().has_unsent);
  std::vector<uint8_t> data(size_t{1} << 20);
  size_t left = 0;
  // More than the buffers of both ends take.
  for (ssize_t n = 0; n >= 0; left += n > 0 ? static_cast<size_t>(n) : 0) {
    n = send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const int64_t before = ends.sender.ReadSendQueue().held_nanoseconds;
  std::this_thread::sleep_for(kPause);
  const SendQueue held = ends.sender.ReadSendQueue();
  CHECK(held.has_unsent);
  CHECK(held.held_nanoseconds - before >= std::chrono::nanoseconds(kPause / 2).count());
  while (left > 0) {
    const ssize_t n = recv(ends.receiver.fd(), data.data(), data.size(), 0);
    CHECK(n > 0);
    left -= static_cast<size_t>(n);
  }
  CHECK(!ends.sender.ReadSendQueue().has_unsent);
  const int64_t after = ends.sender.ReadSendQueue().held_nanoseconds;
  std::this_thread::sleep_for(kPause);
  CHECK_EQ(ends.sender.ReadSendQueue().held_nanoseconds, after);
}

void OtherSocketsHaveNone() {
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  StreamSocket first{UniqueFd(ends[0])};
  const StreamSocket second{UniqueFd(ends[1])};
  CHECK_EQ(first.Send("x", 1), 1);
  CHECK(!first.ReadSendQueue().has_unsent);
  CHECK(!StreamSocket().ReadSendQueue().has_unsent);
}

class AlwaysAlive : public Liveness {
 public:
  Status Check() override { return Status::Ok(); }
};

// Two ranks exchange data, and what the first one sends is slowed down. Both wait for it.
void ASlowLinkIsThatOfItsSender() {
  constexpr size_t kBytes = size_t{8} << 20;
  constexpr uint64_t kBytesPerSecond = 40'000'000;
  Ends ends = ConnectOverTcp();
  CHECK_EQ(setsockopt(ends.sender.fd(), SOL_SOCKET, SO_MAX_PACING_RATE, &kBytesPerSecond, sizeof(kBytesPerSecond)), 0);
  StreamSocket* const sockets[] = {&ends.sender, &ends.receiver};
  int64_t unsent[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      AlwaysAlive alive;
      std::vector<StripedSocket> peers(2);
      peers[static_cast<size_t>(1 - rank)] = StripedSocket(std::move(*sockets[rank]));
      SocketGroup group(rank, std::move(peers), &alive);
      const std::vector<uint8_t> data(kBytes);
      std::vector<uint8_t> received(kBytes);
      const SendPart send{1 - rank, data.data(), kBytes};
      const ReceivePart receive{1 - rank, received.data(), kBytes};
      CHECK(group.Exchange({&send, 1}, {&receive, 1}).ok());
      // A second one, in which what is left of the first delays its sender.
      CHECK(group.Exchange({&send, 1}, {&receive, 1}).ok());
      unsent[rank] = group.UnsentTime();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(unsent[0] > 2 * unsent[1]);
}

}  // namespace

int main() {
  return RunTests({{"a peer that does not read holds the rest", APeerThatDoesNotReadHoldsTheRest},
                   {"other sockets have none", OtherSocketsHaveNone},
                   {"a slow link is that of its sender", ASlowLinkIsThatOfItsSender}});
}
