// Data connections on first use: what is asked for, what arrives, and the end of both.
#include "transport/late_sockets.h"

#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

LateSockets::Arrival ArrivalOf(int peer, UniqueFd* other_end) {
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  other_end->Reset(ends[1]);
  return {peer, UniqueFd(ends[0]), ""};
}

bool IsReadable(int fd) {
  pollfd waits{fd, POLLIN, 0};
  return poll(&waits, 1, 0) == 1;
}

bool IsAtItsEnd(const UniqueFd& fd) {
  char byte = 0;
  return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0;
}

void PeersAreAskedForInOrder() {
  LateSockets late;
  int peer = -1;
  CHECK_EQ(late.AwaitAsked(Seconds(0), &peer).code(), SE_IN_PROGRESS);
  late.Ask(3);
  late.Ask(1);
  CHECK(late.AwaitAsked(Seconds(0), &peer).ok() && peer == 3);
  CHECK(late.AwaitAsked(Seconds(0), &peer).ok() && peer == 1);
  CHECK_EQ(late.AwaitAsked(Seconds(0), &peer).code(), SE_IN_PROGRESS);
}

void ArrivalsMakeTheDescriptorReadable() {
  LateSockets late;
  CHECK(late.Open().ok());
  CHECK(!IsReadable(late.arrival_fd()) && !late.TakeArrival());
  UniqueFd other_end;
  late.Deliver(ArrivalOf(2, &other_end));
  late.Deliver({4, {}, "no route"});
  CHECK(IsReadable(late.arrival_fd()));
  const auto first = late.TakeArrival();
  CHECK(first && first->peer == 2 && first->refusal.empty() && first->socket.sockets().size() == 1);
  const auto second = late.TakeArrival();
  CHECK(second && second->peer == 4 && second->refusal == "no route");
  CHECK(!late.TakeArrival() && !IsReadable(late.arrival_fd()));
}

void CloseEndsTheWaitAndWhatIsDelivered() {
  LateSockets late;
  CHECK(late.Open().ok());
  UniqueFd before;
  late.Deliver(ArrivalOf(1, &before));
  std::thread waits([&] {
    int peer = -1;
    CHECK_EQ(late.AwaitAsked(Seconds(60), &peer).code(), SE_SHUT_DOWN);
  });
  late.Close();
  waits.join();
  UniqueFd after;
  late.Deliver(ArrivalOf(1, &after));
  CHECK(IsAtItsEnd(before) && IsAtItsEnd(after) && !late.TakeArrival());
}

}  // namespace

int main() {
  return RunTests({{"peers are asked for in order", PeersAreAskedForInOrder},
                   {"arrivals make the descriptor readable", ArrivalsMakeTheDescriptorReadable},
                   {"close ends the wait and what is delivered", CloseEndsTheWaitAndWhatIsDelivered}});
}
