// Heartbeats on a simulated clock: which ranks watch which, which are lost and when, and which are not.
#include "engine/membership/heartbeat.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "check.h"
#include "engine/membership/overlay.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

constexpr Seconds kInterval{1.0};
constexpr Seconds kSilence{6.0};

Time At(double seconds) { return Time{} + std::chrono::duration_cast<Clock::duration>(Seconds(1000 + seconds)); }

// Ranks on one clock that moves by a tenth of a second; a stopped rank does nothing at all, a cut link delivers
// nothing, and what reaches a stopped rank waits in its socket.
class Imagined {
 public:
  explicit Imagined(int size, Seconds silence = kSilence)
      : stopped(Index(size)), left(Index(size)), cut(Index(size)), waiting_(Index(size)) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(rank, size, kInterval, silence, At(0));
  }

  Heartbeat& rank(int rank) { return ranks_[Index(rank)]; }

  // Until a rank is lost, or `seconds` have passed. True if one was: `by`, `whom` and `when` are set.
  bool Run(double seconds) {
    for (const double end = now + seconds; now < end; now += 0.1) {
      for (int from = 0; from < static_cast<int>(ranks_.size()); ++from) {
        if (stopped[Index(from)] || !rank(from).DueToSend(At(now))) continue;
        for (const int to : rank(from).watched()) {
          if (cut[Index(from)] == cut[Index(to)] && !left[Index(to)]) waiting_[Index(to)].push_back(from);
        }
      }
      for (int me = 0; me < static_cast<int>(ranks_.size()); ++me) {
        if (stopped[Index(me)]) continue;
        for (const int from : waiting_[Index(me)]) {
          rank(me).Heard(from, At(now));
          rank(me).WatchedBy(from, At(now));
        }
        waiting_[Index(me)].clear();
        if (const auto found = rank(me).Lost(At(now))) {
          by = me;
          lost = *found;
          return true;
        }
      }
    }
    return false;
  }

  // `rank` leaves in good order: each of those in `knowing` is notified.
  void Leave(int rank_that_leaves, const std::vector<int>& knowing) {
    stopped[Index(rank_that_leaves)] = left[Index(rank_that_leaves)] = true;
    for (const int one : knowing) rank(one).Forget(rank_that_leaves, At(now));
  }

  static size_t Index(int value) { return static_cast<size_t>(value); }

  std::vector<bool> stopped;
  std::vector<bool> left;
  std::vector<bool> cut;  // on which side of a cut
  double now = 0;
  int by = -1;
  int lost = -1;

 private:
  std::vector<Heartbeat> ranks_;
  std::vector<std::vector<int>> waiting_;
};

void SmallGroupsWatchEverybody() {
  for (int size = 1; size <= Heartbeat::kAllWatchAll; ++size) {
    const Heartbeat heartbeat(size - 1, size, kInterval, kSilence, At(0));
    CHECK_EQ(heartbeat.watched().size(), static_cast<size_t>(size - 1));
  }
}

void LargeGroupsWatchFewAndOneAnother() {
  for (const int size : {17, 31, 32, 100, 1000, 1024}) {
    std::vector<Heartbeat> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.emplace_back(rank, size, kInterval, kSilence, At(0));
    for (int rank = 0; rank < size; ++rank) {
      const auto watched = ranks[static_cast<size_t>(rank)].watched();
      CHECK(std::ranges::is_sorted(watched));
      CHECK(static_cast<double>(watched.size()) <= 2 * std::log2(size) + 1);
      CHECK(watched.size() >= 8);
      for (const int peer : watched) {
        CHECK(peer != rank && peer >= 0 && peer < size);
        CHECK(std::ranges::count(ranks[static_cast<size_t>(peer)].watched(), rank) == 1);
      }
    }
  }
}

void SignsAreSentOnceAnInterval() {
  Heartbeat heartbeat(0, 2, kInterval, kSilence, At(0));
  int sent = 0;
  for (int tick = 0; tick < 100; ++tick) sent += heartbeat.DueToSend(At(tick * 0.1));
  CHECK_EQ(sent, 10);
  // After a pause one sign is due, not all that were missed.
  CHECK(heartbeat.DueToSend(At(60)));
  CHECK(!heartbeat.DueToSend(At(60.5)));
}

void NobodyIsLostWhileAllAreWell() {
  for (const int size : {2, 5, 40}) {
    Imagined group(size);
    CHECK(!group.Run(120));
  }
}

void AStoppedPeerThatComesBackSurvives() {
  Imagined group(4);
  for (int round = 0; round < 20; ++round) {
    const size_t victim = Imagined::Index(round % 4);
    CHECK(!group.Run(0.37 * round));
    group.stopped[victim] = true;
    CHECK(!group.Run(3));
    group.stopped[victim] = false;
    CHECK(!group.Run(2));
  }
}

void APeerStoppedForGoodIsNamedInTime() {
  for (const int size : {2, 4, 33}) {
    Imagined group(size);
    CHECK(!group.Run(10));
    group.stopped[1] = true;
    const double start = group.now;
    CHECK(group.Run(20));
    CHECK_EQ(group.lost, 1);
    CHECK(group.now - start > 5 && group.now - start < 8);
  }
}

void BothSidesOfACutNoticeIt() {
  for (const bool first_side : {false, true}) {
    Imagined group(4);
    CHECK(!group.Run(10));
    group.cut[2] = group.cut[3] = true;
    // One side would end the test: keep it running for the other.
    const double start = group.now;
    if (!first_side) {
      group.stopped[0] = group.stopped[1] = true;
    }
    CHECK(group.Run(20));
    CHECK((group.by < 2) == first_side);
    CHECK((group.lost < 2) != first_side);
    CHECK(group.now - start < 8);
  }
}

// Stopped for longer than the silence: on waking, the clocks of all peers have run out, and it is not they who were
// away.
void OurOwnPauseIsNotThePeersSilence() {
  Heartbeat heartbeat(0, 3, kInterval, kSilence, At(0));
  for (int tick = 1; tick <= 100; ++tick) {
    heartbeat.Heard(1, At(tick * 0.1));
    heartbeat.Heard(2, At(tick * 0.1));
    CHECK(!heartbeat.Lost(At(tick * 0.1)));
  }
  CHECK(!heartbeat.Lost(At(100)));
  CHECK_EQ(heartbeat.SilentSeconds(1, At(100)), 0.0);
  // From then on silence counts as ever.
  for (int tick = 0; tick < 62; ++tick) {
    heartbeat.Heard(1, At(100 + tick * 0.1));
    CHECK_EQ(heartbeat.Lost(At(100 + tick * 0.1)).value_or(-1), tick > 60 ? 2 : -1);
  }
  // The first call after a pause may as well be Heard().
  heartbeat.Heard(1, At(200));
  CHECK(!heartbeat.Lost(At(200)));
}

void TheQuietestIsNamed() {
  Heartbeat heartbeat(0, 4, kInterval, kSilence, At(0));
  for (int tick = 0; tick < 90; ++tick) {
    const double now = tick * 0.1;
    if (tick < 20) heartbeat.Heard(1, At(now));
    if (tick < 10) heartbeat.Heard(3, At(now));
    heartbeat.Heard(2, At(now));
    if (const auto lost = heartbeat.Lost(At(now))) {
      CHECK_EQ(*lost, 3);
      CHECK(heartbeat.SilentSeconds(3, At(now)) > heartbeat.SilentSeconds(1, At(now)));
      return;
    }
  }
  CHECK(false);
}

void WhoLeftIsNotMissed() {
  Heartbeat heartbeat(0, 3, kInterval, kSilence, At(0));
  heartbeat.Forget(2, At(0));
  CHECK_EQ(heartbeat.watched().size(), size_t{1});
  for (int tick = 0; tick < 200; ++tick) {
    heartbeat.Heard(1, At(tick * 0.1));
    CHECK(!heartbeat.Lost(At(tick * 0.1)));
  }
  heartbeat.Heard(2, At(20));  // its last bytes
  CHECK_EQ(heartbeat.SilentSeconds(2, At(30)), 0.0);
  heartbeat.Forget(1, At(20));
  CHECK(!heartbeat.Lost(At(50)));
  CHECK(heartbeat.NextWake() == Time::max());
}

std::vector<int> Ranks(int size) {
  std::vector<int> ranks(Imagined::Index(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// A large group watches few: when all that have watched a rank leave, others take their place.
void WhoStaysIsWatchedByOthersThatStay() {
  for (const int size : {17, 20, 33, 100}) {
    Imagined group(size);
    CHECK(!group.Run(10));
    const auto watched = group.rank(1).watched();
    const std::vector<int> watchers(watched.begin(), watched.end());
    for (const int leaver : watchers) group.Leave(leaver, Ranks(size));
    CHECK(!group.Run(20));  // no rank is missed, none is treated as lost
    for (int rank = 0; rank < size; ++rank) {
      if (group.left[Imagined::Index(rank)]) continue;
      for (const int peer : group.rank(rank).watched()) {
        CHECK(!group.left[Imagined::Index(peer)]);
        CHECK(std::ranges::count(group.rank(peer).watched(), rank) == 1);
      }
    }
    group.stopped[1] = true;
    const double start = group.now;
    CHECK(group.Run(20));
    CHECK_EQ(group.lost, 1);
    CHECK(group.now - start < 8);
  }
}

// Half of the ranks learn late of departures: meanwhile the two halves disagree about which rank watches which.
void DisagreementAboutDeparturesLosesNobody() {
  for (const int size : {17, 40, 100}) {
    Imagined group(size);
    std::vector<int> even;
    std::vector<int> odd;
    for (int rank = 0; rank < size; ++rank) (rank % 2 == 0 ? even : odd).push_back(rank);
    for (int leaver = 3; leaver < size; leaver += 7) group.Leave(leaver, even);
    CHECK(!group.Run(4));
    for (int leaver = 3; leaver < size; leaver += 7) {
      for (const int one : odd) group.rank(one).Forget(leaver, At(group.now));
    }
    CHECK(!group.Run(60));
  }
}

// The clocks of those that stay continue: a departure gives a silent peer no more time.
void ADepartureDoesNotExcuseTheSilent() {
  Heartbeat heartbeat(0, 4, kInterval, kSilence, At(0));
  for (int tick = 0; tick <= 65; ++tick) {
    const Time now = At(tick * 0.1);
    heartbeat.Heard(1, now);
    if (tick == 30) heartbeat.Forget(3, now);
    CHECK_EQ(heartbeat.Lost(now).value_or(-1), tick > 60 ? 2 : -1);
  }
}

void SwitchedOffItDoesNothing() {
  Heartbeat off(0, 2, Seconds(0), kSilence, At(0));
  CHECK(!off.DueToSend(At(1)));
  CHECK(!off.Lost(At(1000)));
  CHECK(off.NextWake() == Time::max());
  Heartbeat never_lost(0, 2, kInterval, Seconds(0), At(0));
  CHECK(never_lost.DueToSend(At(0)));
  for (int tick = 0; tick < 1000; ++tick) CHECK(!never_lost.Lost(At(tick * 0.1)));
}

// Called exactly when it requests it, it still finds lost ranks in time, and never treats its own sleep as a pause.
void SleepingUntilNextWakeIsOftenEnough() {
  for (const double interval : {0.2, 1.0, 2.0}) {
    Heartbeat heartbeat(0, 2, Seconds(interval), kSilence, At(0));
    Time now = At(0);
    int calls = 0;
    while (!heartbeat.Lost(now)) {
      (void)heartbeat.DueToSend(now);
      CHECK(heartbeat.NextWake() > now);
      now = heartbeat.NextWake();
      CHECK(++calls < 100);
    }
    CHECK(Seconds(now - At(0)).count() < 6.1);
  }
}

void ATooShortSilenceIsThreeIntervals() {
  Heartbeat heartbeat(0, 2, Seconds(2.0), Seconds(1.0), At(0));
  double now = 0;
  while (!heartbeat.Lost(At(now))) now += 0.1;
  CHECK(now > 6 && now < 6.3);
}

// With an overlay no other connections exist: a departure takes a watch away and deals none out.
void InAnOverlayOnlyNeighboursWatch() {
  for (const int size : {6, 20, 100}) {
    for (int rank = 0; rank < size; ++rank) {
      Heartbeat heartbeat(rank, size, kInterval, kSilence, At(0), true);
      std::vector<int> expected(heartbeat.watched().begin(), heartbeat.watched().end());
      const std::vector<int> neighbours = overlay::Neighbours(rank, size);
      CHECK(!expected.empty());
      CHECK(std::ranges::includes(neighbours, expected));
      for (const int leaver : {neighbours.front(), (rank + size / 2 + 1) % size}) {
        heartbeat.Forget(leaver, At(1));
        std::erase(expected, leaver);
        CHECK(std::ranges::equal(heartbeat.watched(), expected));
      }
    }
  }
}

}  // namespace

int main() {
  return RunTests({{"small groups watch everybody", SmallGroupsWatchEverybody},
                   {"large groups watch few, and one another", LargeGroupsWatchFewAndOneAnother},
                   {"signs are sent once an interval", SignsAreSentOnceAnInterval},
                   {"nobody is lost while all are well", NobodyIsLostWhileAllAreWell},
                   {"a stopped peer that comes back survives", AStoppedPeerThatComesBackSurvives},
                   {"a peer stopped for good is named in time", APeerStoppedForGoodIsNamedInTime},
                   {"both sides of a cut notice it", BothSidesOfACutNoticeIt},
                   {"our own pause is not the peers' silence", OurOwnPauseIsNotThePeersSilence},
                   {"the quietest is named", TheQuietestIsNamed},
                   {"who left is not missed", WhoLeftIsNotMissed},
                   {"who stays is watched by others that stay", WhoStaysIsWatchedByOthersThatStay},
                   {"disagreement about departures loses nobody", DisagreementAboutDeparturesLosesNobody},
                   {"a departure does not excuse the silent", ADepartureDoesNotExcuseTheSilent},
                   {"in an overlay only neighbours watch", InAnOverlayOnlyNeighboursWatch},
                   {"switched off it does nothing", SwitchedOffItDoesNothing},
                   {"sleeping until NextWake is often enough", SleepingUntilNextWakeIsOftenEnough},
                   {"a too short silence is three intervals", ATooShortSilenceIsThreeIntervals}});
}
