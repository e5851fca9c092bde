// A rank's position in the rounds: every transition of the table in round_driver.h, and those that it refuses.
#include "engine/rounds/round_driver.h"

#include <memory>
#include <utility>

#include "check.h"
#include "engine/rounds/frame_rounds.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;
using State = RoundDriver::State;
using LateAction = RoundDriver::LateAction;

// A rank alone: its proposal is the outcome. Or the first of two, whose peer sends nothing.
struct Fixture {
  explicit Fixture(int size = 1)
      : rounds(std::make_unique<FrameRounds>(
                   0, size, 8, [](int, std::string_view) {}, [](Time) { return Status::Ok(); }),
               &counters) {}
  bool Post(Time since = Clock::now()) {
    Proposal proposal;
    proposal.single = 3;
    return rounds.Post(proposal, 0, nullptr, -1, since);
  }
  bool Await() {
    bool concluded = false;
    CHECK(rounds.Await(Clock::now(), &concluded).ok());
    return concluded;
  }

  Counters counters;
  RoundDriver rounds;
};

void RoundsAreConcludedOneByOne() {
  Fixture fixture;
  RoundDriver& rounds = fixture.rounds;
  CHECK(rounds.state() == State::kOpen && rounds.in_rounds() && !rounds.posted());
  CHECK(!rounds.Conclude());  // nothing is posted
  for (uint32_t position = 0; position < 3; ++position) {
    CHECK_EQ(rounds.round().position, position);
    CHECK(fixture.Post() && rounds.state() == State::kPosted && rounds.posted());
    CHECK(!fixture.Post());  // twice
    CHECK(!rounds.Leave());  // with a proposal posted
    CHECK(!rounds.Resume(7, false));
    CHECK(fixture.Await() && rounds.Conclude());
    CHECK(rounds.state() == State::kOpen);
    CHECK_EQ(rounds.rounds().outcome().single, 3);
  }
  CHECK_EQ(fixture.counters.rounds.load(), 3);
  CHECK_EQ(fixture.counters.wait_nanoseconds.load(), 0);  // short waits are not counted
}

void AWaitWakesPeersAndThenReportsAStall() {
  Fixture fixture(2);
  RoundDriver& rounds = fixture.rounds;
  const Time start = Clock::now();
  const auto at = [&](double seconds) { return start + std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); };
  CHECK(rounds.NextLateAction(at(99)) == LateAction::kNone);  // nothing is posted
  CHECK(fixture.Post(start) && !fixture.Await());
  CHECK(rounds.NextLateAction(at(0.0005)) == LateAction::kNone);
  CHECK(rounds.NextLateAction(at(0.002)) == LateAction::kWakePeers);
  CHECK(rounds.state() == State::kPeersWoken && rounds.posted());
  CHECK(rounds.NextLateAction(at(0.9)) == LateAction::kNone);
  CHECK_EQ(fixture.counters.stalled_rounds.load(), 0);
  CHECK(rounds.NextLateAction(at(1.1)) == LateAction::kReportStall);
  CHECK_EQ(fixture.counters.stalled_rounds.load(), 1);
  CHECK(rounds.state() == State::kStallReported && rounds.posted());
  CHECK(rounds.NextLateAction(at(99)) == LateAction::kNone);
}

// A rank that was stopped for long owes both at once.
void BothActionsMayBeDueAtOnce() {
  Fixture fixture(2);
  const Time start = Clock::now();
  CHECK(fixture.Post(start));
  CHECK(fixture.rounds.NextLateAction(start + std::chrono::seconds(5)) == LateAction::kWakePeers);
  CHECK(fixture.rounds.NextLateAction(start + std::chrono::seconds(5)) == LateAction::kReportStall);
}

void ALongWaitIsCounted() {
  Fixture fixture;
  CHECK(fixture.Post(Clock::now() - std::chrono::seconds(2)));
  CHECK(fixture.rounds.NextLateAction(Clock::now()) == LateAction::kWakePeers);
  CHECK(fixture.Await() && fixture.rounds.Conclude());
  CHECK(fixture.counters.wait_nanoseconds.load() >= 2'000'000'000);
}

void LeavingAndComingBack() {
  Fixture fixture;
  RoundDriver& rounds = fixture.rounds;
  CHECK(!rounds.Resume(9, false));  // it has not left
  CHECK(rounds.Leave());
  CHECK(rounds.state() == State::kNegotiating && !rounds.in_rounds() && !rounds.posted());
  CHECK(!rounds.Leave() && !fixture.Post() && !rounds.Conclude());
  CHECK(rounds.NextLateAction(Clock::now()) == LateAction::kNone);
  CHECK(rounds.Resume(9, false) && rounds.state() == State::kOpen);
  CHECK(rounds.round().epoch == 1 && rounds.round().position == 9);
  CHECK_EQ(fixture.counters.slow_phases.load(), 1);
  CHECK(!rounds.MustLeave());
}

void AnOutcomeMayEndTheRounds() {
  Fixture fixture;
  const IdSet nothing(8);
  Proposal proposal;
  proposal.ids = &nothing;  // nothing in common
  CHECK(fixture.rounds.Post(proposal, 0, nullptr, -1, Clock::now()));
  CHECK(fixture.Await() && !fixture.rounds.Conclude());
  CHECK(fixture.rounds.state() == State::kNegotiating);
  CHECK_EQ(fixture.rounds.round().position, 0u);
}

void LeaveNextStandsAboveLeaveAt() {
  Fixture fixture;
  RoundDriver& rounds = fixture.rounds;
  rounds.LeaveAt({0, 1});
  CHECK(!rounds.MustLeave());
  CHECK(fixture.Post() && fixture.Await() && rounds.Conclude() && rounds.MustLeave());
  rounds.LeaveAt({0, 5});  // replaces it
  CHECK(!rounds.MustLeave());
  rounds.LeaveNext();
  CHECK(rounds.MustLeave());
  rounds.LeaveAt({0, 5});  // refused
  CHECK(rounds.MustLeave() && rounds.Leave() && !rounds.MustLeave());
}

void ExitsAcrossEpochs() {
  Fixture fixture;
  RoundDriver& rounds = fixture.rounds;
  CHECK(rounds.Leave());
  rounds.LeaveNext();  // refused while negotiating
  CHECK(rounds.Resume(4, false) && !rounds.MustLeave() && rounds.Leave());
  rounds.LeaveAt({2, 8});  // of the next epoch
  CHECK(rounds.Resume(8, false) && rounds.MustLeave() && rounds.Leave());
  rounds.LeaveAt({2, 12});  // of the previous one
  CHECK(rounds.Resume(12, false) && !rounds.MustLeave() && rounds.Leave());
  CHECK(rounds.Resume(16, true) && rounds.MustLeave());
}

void PeersThatWaitAreServedOnce() {
  Fixture fixture;
  RoundDriver& rounds = fixture.rounds;
  rounds.PeerWaits({1, 0});  // of another epoch
  CHECK(!rounds.peers_wait());
  rounds.PeerWaits({0, 1});  // a peer is ahead by one
  CHECK(rounds.peers_wait());
  CHECK(fixture.Post() && fixture.Await() && rounds.Conclude() && rounds.peers_wait());
  CHECK(fixture.Post() && fixture.Await() && rounds.Conclude() && !rounds.peers_wait());
  rounds.PeerWaits({0, 1});  // of a round that is over
  CHECK(!rounds.peers_wait());
}

void AStalledPeerEndsTheRoundsOfThisEpochOnly() {
  Fixture fixture;
  RoundDriver& rounds = fixture.rounds;
  CHECK(!rounds.PeerStalled({1, 0}) && !rounds.MustLeave());
  CHECK(rounds.PeerStalled({0, 0}) && rounds.MustLeave());
  CHECK(rounds.Leave() && !rounds.PeerStalled({0, 0}));
}

}  // namespace

int main() {
  return RunTests({{"rounds are concluded one by one", RoundsAreConcludedOneByOne},
                   {"a wait wakes peers and then reports a stall", AWaitWakesPeersAndThenReportsAStall},
                   {"both actions may be due at once", BothActionsMayBeDueAtOnce},
                   {"a long wait is counted", ALongWaitIsCounted},
                   {"leaving and coming back", LeavingAndComingBack},
                   {"an outcome may end the rounds", AnOutcomeMayEndTheRounds},
                   {"leave next stands above leave at", LeaveNextStandsAboveLeaveAt},
                   {"exits across epochs", ExitsAcrossEpochs},
                   {"peers that wait are served once", PeersThatWaitAreServedOnce},
                   {"a stalled peer ends the rounds of this epoch only", AStalledPeerEndsTheRoundsOfThisEpochOnly}});
}
