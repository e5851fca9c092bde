// Control connections: frames in and out, which ones have something, and their ends. And how a rank leaves by them.
#include "engine/membership/peer_links.h"

#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "engine/membership/group_exit.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

// Ranks 0 and 1 of two, connected.
struct Fixture {
  Fixture() {
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    for (int rank = 0; rank < 2; ++rank) {
      links.push_back(std::make_unique<PeerLinks>(rank, 2));
      CHECK(links.back()->Open().ok());
      links.back()->Connect(1 - rank, UniqueFd(ends[rank]));
      CHECK(links.back()->Watch(1 - rank).ok());
      members.push_back(std::make_unique<Membership>(rank, 2));
      for (int member = 0; member < 2; ++member) members.back()->Describe(member, member, "host");
      exits.push_back(std::make_unique<GroupExit>(members.back().get(), links.back().get(), &no_memory));
    }
  }
  std::vector<FrameType> TypesAt(int rank) {
    links[static_cast<size_t>(rank)]->Receive(1 - rank);
    std::vector<FrameType> types;
    for (const Frame& frame : links[static_cast<size_t>(rank)]->inbox(1 - rank)) types.push_back(frame.type);
    return types;
  }

  const Status no_memory{SE_NO_MEMORY, "no memory"};
  std::vector<std::unique_ptr<PeerLinks>> links;
  std::vector<std::unique_ptr<Membership>> members;
  std::vector<std::unique_ptr<GroupExit>> exits;
};

void FramesArriveWhereTheyAreSent() {
  Fixture fixture;
  PeerLinks& sender = *fixture.links[0];
  PeerLinks& receiver = *fixture.links[1];
  CHECK(!sender.exists(0) && !sender.is_open(0) && sender.is_open(1));
  CHECK(receiver.Ready(0).empty());
  sender.Send(1, FrameType::kNotice, "one");
  sender.SendToAll(FrameType::kNotice, "all");
  CHECK(!sender.HasUnsent() && sender.Flush() > 0);
  CHECK_EQ(receiver.Ready(1000).size(), 1u);
  CHECK_EQ(receiver.Ready(1000)[0], 0);
  receiver.Receive(0);
  CHECK_EQ(receiver.inbox(0).size(), 2u);
  CHECK_EQ(receiver.inbox(0)[1].payload, std::string("all"));
  CHECK(receiver.Ready(0).empty());
}

void AnEndedLinkStaysEnded() {
  Fixture fixture;
  PeerLinks& receiver = *fixture.links[1];
  fixture.exits[0].reset();
  fixture.links[0].reset();
  CHECK_EQ(receiver.Ready(1000).size(), 1u);
  receiver.Receive(0);
  CHECK(receiver.exists(0) && !receiver.is_open(0) && !receiver.at(0).closed_reason().empty());
  receiver.Send(0, FrameType::kNotice, "nobody");  // does nothing
  receiver.Receive(0);
  CHECK(receiver.inbox(0).empty() && !receiver.is_open(0));
  CHECK_EQ(receiver.Ready(0).size(), 1u);  // "readable" for ever
  receiver.StopWatching(0);
  CHECK(receiver.Ready(0).empty());
}

void UnsentBytesWait() {
  Fixture fixture;
  PeerLinks& sender = *fixture.links[0];
  const std::string large(8 << 20, 'x');
  sender.Send(1, FrameType::kNotice, large);
  CHECK(sender.HasUnsent());
  while (sender.HasUnsent()) {
    fixture.links[1]->Receive(0);
    sender.Flush();
  }
  fixture.links[1]->Receive(0);
  CHECK(fixture.links[1]->inbox(0).size() == 1 && fixture.links[1]->inbox(0)[0].payload == large);
}

void AFailureIsAnnouncedWithItsCulprit() {
  Fixture fixture;
  fixture.exits[0]->AnnounceFailure(Status(SE_SYSTEM_ERROR, "disk"));
  CHECK(fixture.TypesAt(1) == std::vector<FrameType>{FrameType::kAbort});
  Abort abort;
  CHECK(Decode(fixture.links[1]->inbox(0)[0].payload, &abort));
  CHECK_EQ(abort.lost_rank, 0);
  CHECK_CONTAINS(abort.reason, "rank 0 on host failed");
}

void AGoodbyeIsTheLastFrame() {
  Fixture fixture;
  fixture.exits[0]->SayGoodbye(41);
  CHECK(fixture.TypesAt(1) == std::vector<FrameType>{FrameType::kGoodbye});
  Goodbye goodbye;
  CHECK(Decode(fixture.links[1]->inbox(0)[0].payload, &goodbye));
  CHECK_EQ(goodbye.executed, 41);
  CHECK_EQ(goodbye.first_leaver, 0);
  CHECK(!fixture.links[1]->is_open(0));
}

void LinksAreTendedUntilTheEnd() {
  Fixture fixture;
  Membership& members = *fixture.members[1];
  members.StartHeartbeat(Seconds(1), Seconds(6), Clock::now());
  fixture.links[0]->Send(1, FrameType::kNotice, "what");
  fixture.exits[1]->TendLinks(Clock::now() + std::chrono::seconds(2));
  CHECK(fixture.links[1]->inbox(0).empty());
  CHECK(fixture.TypesAt(0) == std::vector<FrameType>{FrameType::kHeartbeat});
  fixture.links[0]->Send(1, FrameType::kGoodbye, Encode(Goodbye{1, 0}));
  fixture.exits[1]->TendLinks(Clock::now() + std::chrono::seconds(2));
  CHECK(members.has_left(0) && members.watched().empty());
  fixture.exits[0].reset();
  fixture.links[0].reset();
  fixture.exits[1]->TendLinks(Clock::now() + std::chrono::seconds(2));
  CHECK(!fixture.links[1]->is_open(0) && fixture.links[1]->Ready(0).empty());
}

}  // namespace

int main() {
  return RunTests({{"frames arrive where they are sent", FramesArriveWhereTheyAreSent},
                   {"an ended link stays ended", AnEndedLinkStaysEnded},
                   {"unsent bytes wait", UnsentBytesWait},
                   {"a failure is announced with its culprit", AFailureIsAnnouncedWithItsCulprit},
                   {"a goodbye is the last frame", AGoodbyeIsTheLastFrame},
                   {"links are tended until the end", LinksAreTendedUntilTheEnd}});
}
