// Who is in the group: presence and its transitions, departures, who broke the job, and silence.
#include "engine/membership/membership.h"

#include <string>

#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;
using Presence = Membership::Presence;

const Time kStart = Time() + std::chrono::hours(1);

Membership Three() {
  Membership membership(0, 3);
  for (int rank = 0; rank < 3; ++rank) membership.Describe(rank, 10 + rank, rank == 2 ? "" : "host (pid 5)");
  return membership;
}

void RanksHaveNames() {
  Membership membership = Three();
  CHECK_EQ(membership.NameOf(1), std::string("rank 11 on host (pid 5)"));
  CHECK_EQ(membership.NameOf(2), std::string("rank 12"));
  membership.Rename(2, "there");
  CHECK_EQ(membership.NameOf(2), std::string("rank 12 on there"));
  CHECK(membership.global_ranks() == (std::vector<int>{10, 11, 12}));
}

void EveryTransitionOfPresence() {
  for (const Presence from : {Presence::kPresent, Presence::kLeft, Presence::kLost}) {
    for (const bool leaves : {true, false}) {
      Membership membership = Three();
      if (from == Presence::kLeft) membership.RankLeft(1, Goodbye{5, 1}, kStart);
      if (from == Presence::kLost) (void)membership.RankLost(1, "is lost");
      CHECK(membership.presence(1) == from);
      if (leaves) {
        membership.RankLeft(1, Goodbye{7, 1}, kStart);
      } else {
        const Status status = membership.RankLost(1, "is lost: why");
        CHECK_EQ(status.code(), SE_PEER_LOST);
        CHECK_EQ(status.message(), std::string("rank 11 on host (pid 5) is lost: why"));
        CHECK_EQ(membership.lost_rank(), 1);  // after any state
      }
      const Presence to = leaves || from == Presence::kLeft ? Presence::kLeft : Presence::kLost;
      CHECK(membership.presence(1) == to);
      CHECK_EQ(membership.any_left(), to == Presence::kLeft);
      CHECK(membership.presence(0) == Presence::kPresent && membership.presence(2) == Presence::kPresent);
    }
  }
}

void DeparturesConcernWhatComesAfterThem() {
  Membership membership = Three();
  CHECK(membership.CheckDepartures(1'000'000).ok());
  CHECK_EQ(membership.OwnGoodbye(4).first_leaver, 0);
  membership.RankLeft(2, Goodbye{5, 1}, kStart);  // because of rank 1, whose goodbye is still in flight
  CHECK(membership.CheckDepartures(5).ok());
  CHECK(membership.LeaversTookPartIn(5) && !membership.LeaversTookPartIn(6));
  const Status status = membership.CheckDepartures(6);
  CHECK_EQ(status.code(), SE_SHUT_DOWN);
  CHECK_CONTAINS(status.message(), "rank 11 on host (pid 5) has left the job");
  CHECK_CONTAINS(status.message(), "give all ranks the same number, or call hvd.join()");
  CHECK_EQ(membership.OwnGoodbye(5).first_leaver, 1);
  CHECK_EQ(membership.OwnGoodbye(5).executed, 5);
  membership.RankLeft(2, Goodbye{9, 2}, kStart);  // a second goodbye counts
  CHECK(membership.CheckDepartures(9).ok());
}

void AFailureNamesWhoBrokeTheJob() {
  Membership membership = Three();
  const Status own(SE_NO_MEMORY, "no memory");
  CHECK_EQ(membership.AbortFor(own).lost_rank, 0);
  CHECK_CONTAINS(membership.AbortFor(own).reason, "rank 10 on host (pid 5) failed");
  CHECK_EQ(membership.WithOwnName(Status(SE_SHUT_DOWN, "left")).message(), std::string("left"));
  const Status named(SE_NO_MEMORY, "rank 10 on host (pid 5) could not");
  CHECK_EQ(membership.WithOwnName(named).message(), named.message());
  const Status aborted = membership.Aborted(Abort{2, "rank 12 is lost"}, 1);
  CHECK_EQ(aborted.message(), std::string("rank 12 is lost (reported by rank 11)"));
  CHECK_EQ(membership.lost_rank(), 2);
  CHECK_EQ(membership.AbortFor(aborted).lost_rank, 2);
  CHECK_EQ(membership.AbortFor(aborted).reason, aborted.message());
}

void SilenceIsNoticedWithAHeartbeatOnly() {
  const auto at = [](double seconds) { return kStart + std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); };
  Membership without = Three();
  without.Heard(1, kStart);
  CHECK(!without.has_heartbeat() && !without.DueToSend(at(99)) && !without.Silent(at(99)));
  CHECK(without.watched().empty() && without.NextWake() == Time::max());
  Membership membership = Three();
  membership.StartHeartbeat(Seconds(1), Seconds(6), kStart);
  CHECK_EQ(membership.watched().size(), 2u);
  CHECK(membership.DueToSend(at(1.1)) && !membership.DueToSend(at(1.2)));
  for (int second = 1; second < 7; ++second) {
    membership.Heard(1, at(second));
    CHECK(!membership.Silent(at(second - 0.5)));
  }
  CHECK(membership.Silent(at(6.5)) == std::optional<int>(2));
  const Status status = membership.RankSilent(2, at(6.5));
  CHECK_CONTAINS(status.message(), "rank 12 is lost: it has sent no heartbeat for 6.5 s");
  membership.RankLeft(2, Goodbye{}, at(6.5));  // the silence of a rank that has left means nothing
  CHECK(!membership.Silent(at(6.6)));
  membership.StopWatching(1, at(6.6));
  CHECK(membership.watched().empty());
}

}  // namespace

int main() {
  return RunTests({{"ranks have names", RanksHaveNames},
                   {"every transition of presence", EveryTransitionOfPresence},
                   {"departures concern what comes after them", DeparturesConcernWhatComesAfterThem},
                   {"a failure names who broke the job", AFailureNamesWhoBrokeTheJob},
                   {"silence is noticed with a heartbeat only", SilenceIsNoticedWithAHeartbeatOnly}});
}
