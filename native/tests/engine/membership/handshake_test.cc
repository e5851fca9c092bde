// The ranks' first frames: their agreement, and which hellos are refused.
#include "engine/membership/handshake.h"

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "engine/wire/message.h"
#include "spark_estimator/engine.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

// Rank 1 of two; the test is rank 0.
struct Fixture {
  Fixture() : links(1, 2), peer(0, 1), members(1, 2) {
    config.rank = 1;
    config.size = 2;
    config.cores = 4;
    config.start_timeout_seconds = 0.2;
    for (int rank = 0; rank < 2; ++rank) members.Describe(rank, rank, "somewhere");
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    links.Connect(0, UniqueFd(ends[0]));
    peer.Connect(0, UniqueFd(ends[1]));
  }
  Status Exchange() { return ExchangeHellos(config, {}, members, links, &settings); }
  Status ExchangeWith(const Hello& hello) {
    peer.Send(0, FrameType::kHello, Encode(hello));
    return Exchange();
  }

  EngineConfig config;
  PeerLinks links;
  PeerLinks peer;
  Membership members;
  GroupSettings settings;
};

Hello Honest() { return Hello{SE_ABI_VERSION, 0, 2, {0, 1}, {1 << 20, 64, -1, 2}, "host (pid 5)"}; }

void SettingsAreRankZerosOrTheSmallest() {
  Fixture fixture;
  fixture.config.fusion_threshold_bytes = 5;
  CHECK(fixture.ExchangeWith(Honest()).ok());
  CHECK_EQ(fixture.settings.parameters.fusion_threshold_bytes, 1 << 20);
  CHECK_EQ(fixture.settings.cache_capacity, 64);
  CHECK_EQ(fixture.settings.cores, 2);
  CHECK(fixture.settings.visible_of == (std::vector<std::vector<int>>{{0, 1}, {}}));
  CHECK_EQ(fixture.members.NameOf(0), std::string("rank 0 on host (pid 5)"));
  fixture.peer.Receive(0);
  Hello sent;
  CHECK(Decode(fixture.peer.inbox(0)[0].payload, &sent));
  CHECK(sent.rank == 1 && sent.size == 2);
}

void FramesBehindTheHelloStay() {
  Fixture fixture;
  fixture.peer.Send(0, FrameType::kHello, Encode(Honest()));
  fixture.peer.Send(0, FrameType::kHeartbeat, "");
  CHECK(fixture.Exchange().ok());
  CHECK_EQ(fixture.links.inbox(0).size(), 1u);
}

void OtherHellosAreRefused() {
  const auto refused = [](void (*change)(Hello&)) {
    Fixture fixture;
    Hello hello = Honest();
    change(hello);
    const Status status = fixture.ExchangeWith(hello);
    CHECK_EQ(status.code(), SE_INVALID_ARGUMENT);
    return status.message();
  };
  CHECK_CONTAINS(refused([](Hello& hello) { hello.abi_version += 1; }), "install the same spark-estimator everywhere");
  CHECK_CONTAINS(refused([](Hello& hello) { hello.rank = 1; }), "claims to be rank 1 of 2");
  CHECK_CONTAINS(refused([](Hello& hello) { hello.size = 3; }), "of 3 in a group of 2");
  CHECK_CONTAINS(refused([](Hello& hello) { hello.name = std::string(10'000, 'x'); }), "name has 10000 bytes");
}

// What the ranks compute with, and by which they index, is what a rank of this group could have sent.
void WhatIsComputedWithIsChecked() {
  const auto refused = [](void (*change)(Hello&), const std::string& field) {
    Fixture fixture;
    Hello hello = Honest();
    change(hello);
    const Status status = fixture.ExchangeWith(hello);
    CHECK_EQ(status.code(), SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(status.message(), "rank 0 on somewhere sent a hello");
    CHECK_CONTAINS(status.message(), field);
  };
  refused([](Hello& hello) { hello.visible_ranks = {0, 2}; }, "visible ranks has 2");
  refused([](Hello& hello) { hello.visible_ranks = {-1}; }, "visible ranks has -1");
  refused([](Hello& hello) { hello.visible_ranks = {0, INT64_MAX}; }, "visible ranks has 9223372036854775807");
  refused([](Hello& hello) { hello.visible_ranks = {int64_t{1} << 32}; }, "visible ranks has 4294967296");
  refused([](Hello& hello) { hello.visible_ranks = {0, 1, 1}; }, "visible ranks has 1");
  refused([](Hello& hello) { hello.visible_ranks.assign(1000, 0); }, "visible ranks has 0");
  refused([](Hello& hello) { hello.settings.pop_back(); }, "3 settings instead of 4");
  refused([](Hello& hello) { hello.settings.clear(); }, "0 settings instead of 4");
  refused([](Hello& hello) { hello.settings.push_back(1); }, "5 settings instead of 4");
  refused([](Hello& hello) { hello.settings[0] = -1; }, "the fusion threshold is -1");
  refused([](Hello& hello) { hello.settings[1] = -1; }, "the cache capacity is -1");
  refused([](Hello& hello) { hello.settings[1] = 8193; }, "the cache capacity is 8193");
  refused([](Hello& hello) { hello.settings[2] = 2; }, "hierarchical is 2");
  refused([](Hello& hello) { hello.settings[2] = (int64_t{1} << 32) + 1; }, "hierarchical is 4294967297");
  refused([](Hello& hello) { hello.settings[3] = 0; }, "the number of cores is 0");
  refused([](Hello& hello) { hello.settings[3] = INT64_MIN; }, "the number of cores is -9223372036854775808");
}

// The others accept this rank's hello for every configuration of the caller.
void OwnSettingsAreMadePossible() {
  Fixture fixture;
  fixture.config.fusion_threshold_bytes = -7;
  fixture.config.cache_capacity = 1'000'000;
  fixture.config.hierarchical = 9;
  fixture.config.cores = 0;
  CHECK(fixture.ExchangeWith(Honest()).ok());
  fixture.peer.Receive(0);
  Hello sent;
  CHECK(Decode(fixture.peer.inbox(0)[0].payload, &sent));
  CHECK_EQ(WhyImpossible(sent, 1, 2), std::string());
  CHECK_EQ(fixture.settings.cores, 1);
}

void APeerMaySendSomethingElse() {
  Fixture other;
  other.peer.Send(0, FrameType::kHeartbeat, "");
  CHECK_CONTAINS(other.Exchange().message(), "did not begin with a hello");
  Fixture aborts;
  aborts.peer.Send(0, FrameType::kAbort, Encode(Abort{0, "rank 0 failed"}));
  CHECK_EQ(aborts.Exchange().message(), std::string("rank 0 failed (reported by rank 0)"));
  Fixture garbled;
  garbled.peer.Send(0, FrameType::kAbort, "?");
  CHECK_CONTAINS(garbled.Exchange().message(), "sent a control message that cannot be read");
}

// Rank 1 of six in an overlay; the test is its neighbour 0.
struct LargeFixture {
  LargeFixture() : links(1, 6, true), peer(0, 6, true), members(1, 6) {
    config.rank = 1;
    config.size = 6;
    config.overlay = true;
    config.start_timeout_seconds = 5;
    for (int rank = 0; rank < 6; ++rank) members.Describe(rank, rank, "somewhere");
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    links.Connect(0, UniqueFd(ends[0]));
    peer.Connect(1, UniqueFd(ends[1]));
    for (const int other : {2, 3, 5}) {  // who do not say anything
      CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
      links.Connect(other, UniqueFd(ends[0]));
      others.emplace_back(ends[1]);
    }
  }
  Status Exchange() { return ExchangeHellos(config, {}, members, links, &settings); }
  void SayHello() {
    Hello hello = Honest();
    hello.size = 6;
    peer.SendOver(1, FrameType::kHello, Encode(hello));
  }

  EngineConfig config;
  PeerLinks links;
  PeerLinks peer;
  std::vector<UniqueFd> others;
  Membership members;
  GroupSettings settings;
};

void WhoFailsAfterItsHelloNamesTheCulprit() {
  LargeFixture fixture;
  fixture.SayHello();
  const Frame abort = fixture.peer.Flood(FrameType::kAbort, Encode(Abort{4, "rank 4 on somewhere is lost"}));
  fixture.peer.SendOver(1, abort.type, abort.payload);
  fixture.peer = PeerLinks(0, 6, true);
  CHECK_EQ(fixture.Exchange().message(), std::string("rank 4 on somewhere is lost (reported by rank 0)"));
}

void WhoEndsAfterItsHelloIsLost() {
  LargeFixture fixture;
  fixture.SayHello();
  fixture.peer = PeerLinks(0, 6, true);
  CHECK_CONTAINS(fixture.Exchange().message(), "rank 0 on host (pid 5) was lost while the job was starting");
}

// Its goodbye came by a shorter path than others' hellos.
void WhoLeavesInGoodOrderIsNotLost() {
  LargeFixture fixture;
  fixture.config.start_timeout_seconds = 0.2;
  const Frame goodbye = fixture.peer.Flood(FrameType::kGoodbye, Encode(Goodbye{0, 0}));
  fixture.peer.SendOver(1, goodbye.type, goodbye.payload);
  fixture.SayHello();
  fixture.peer = PeerLinks(0, 6, true);
  const Status late = fixture.Exchange();
  CHECK_EQ(late.code(), SE_TIMED_OUT);
  CHECK_CONTAINS(late.message(), "rank 2 on somewhere, rank 3 on somewhere");
  CHECK_EQ(fixture.links.inbox(0).size(), 1u);
}

void APeerMaySendNothing() {
  Fixture silent;
  const Status late = silent.Exchange();
  CHECK_EQ(late.code(), SE_TIMED_OUT);
  CHECK_CONTAINS(late.message(), "rank 0 on somewhere");
  Fixture gone;
  gone.peer = PeerLinks(1, 2);
  const Status lost = gone.Exchange();
  CHECK_EQ(lost.code(), SE_PEER_LOST);
  CHECK_CONTAINS(lost.message(), "was lost while the job was starting");
}

}  // namespace

int main() {
  return RunTests({{"settings are rank 0's or the smallest", SettingsAreRankZerosOrTheSmallest},
                   {"frames behind the hello stay", FramesBehindTheHelloStay},
                   {"other hellos are refused", OtherHellosAreRefused},
                   {"what is computed with is checked", WhatIsComputedWithIsChecked},
                   {"own settings are made possible", OwnSettingsAreMadePossible},
                   {"a peer may send something else", APeerMaySendSomethingElse},
                   {"who fails after its hello names the culprit", WhoFailsAfterItsHelloNamesTheCulprit},
                   {"who ends after its hello is lost", WhoEndsAfterItsHelloIsLost},
                   {"who leaves in good order is not lost", WhoLeavesInGoodOrderIsNotLost},
                   {"a peer may send nothing", APeerMaySendNothing}});
}
