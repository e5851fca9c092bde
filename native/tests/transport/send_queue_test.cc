// What is not sent yet, and whether the peer is the reason.
#include "transport/send_queue.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "check.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

constexpr std::chrono::milliseconds kPause{300};

struct Ends {
  UniqueFd sender;
  UniqueFd receiver;
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
  Ends ends{UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), UniqueFd()};
  CHECK_EQ(connect(ends.sender.get(), generic, length), 0);
  ends.receiver = UniqueFd(accept(listener.get(), nullptr, nullptr));
  return ends;
}

void APeerThatDoesNotReadHoldsTheRest() {
  const Ends ends = ConnectOverTcp();
  const int fd = ends.sender.get();
  CHECK(!ReadSendQueue(fd).has_unsent);
  std::vector<uint8_t> data(size_t{1} << 20);
  size_t left = 0;
  // More than the buffers of both ends take.
  for (ssize_t n = 0; n >= 0; left += n > 0 ? static_cast<size_t>(n) : 0) {
    n = send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const int64_t before = ReadSendQueue(fd).held_nanoseconds;
  std::this_thread::sleep_for(kPause);
  const SendQueue held = ReadSendQueue(fd);
  CHECK(held.has_unsent);
  CHECK(held.held_nanoseconds - before >= std::chrono::nanoseconds(kPause / 2).count());
  while (left > 0) {
    const ssize_t n = recv(ends.receiver.get(), data.data(), data.size(), 0);
    CHECK(n > 0);
    left -= static_cast<size_t>(n);
  }
  CHECK(!ReadSendQueue(fd).has_unsent);
  const int64_t after = ReadSendQueue(fd).held_nanoseconds;
  std::this_thread::sleep_for(kPause);
  CHECK_EQ(ReadSendQueue(fd).held_nanoseconds, after);
}

void OtherSocketsHaveNone() {
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd first(ends[0]);
  const UniqueFd second(ends[1]);
  CHECK_EQ(send(first.get(), "x", 1, 0), 1);
  CHECK(!ReadSendQueue(first.get()).has_unsent);
  CHECK(!ReadSendQueue(-1).has_unsent);
}

}  // namespace

int main() {
  return RunTests({{"a peer that does not read holds the rest", APeerThatDoesNotReadHoldsTheRest},
                   {"other sockets have none", OtherSocketsHaveNone}});
}
