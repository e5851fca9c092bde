// Rank 0's part of full negotiation: which requests count, and when the rounds continue.
#include "engine/negotiation/negotiation_leader.h"

#include <vector>

#include "check.h"
#include "requests.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;
using spark_estimator::testing::SignatureOf;
using Receipt = NegotiationLeader::Receipt;

const Time kNow = Time() + std::chrono::hours(1);

Requests RequestsOf(uint32_t epoch, std::vector<Signature> signatures) { return {epoch, 0, std::move(signatures)}; }

void TheRoundsGoOnWhenAllNegotiateAndNothingWaits() {
  NegotiationLeader leader({0, 1}, 0);
  CHECK(leader.TakeResponses(true, 5).empty());  // no rank has left the rounds
  leader.RankLeftRounds(0);
  leader.Add(0, SignatureOf("a"), kNow);
  CHECK(leader.TakeResponses(true, 5).empty());
  CHECK(leader.Receive(1, RequestsOf(0, {SignatureOf("b")}), 0, false, kNow) == Receipt::kTaken);
  CHECK(leader.TakeResponses(true, 5).empty());  // all negotiate, but two requests wait
  CHECK(leader.Receive(1, RequestsOf(0, {SignatureOf("a")}), 0, false, kNow) == Receipt::kTaken);
  leader.Add(0, SignatureOf("b"), kNow);
  CHECK(leader.coordinator().has_ready());
  const std::vector<Response> responses = leader.TakeResponses(true, 5);
  CHECK_EQ(responses.size(), 3u);
  CHECK(responses[0].kind == Response::Kind::kRun && responses[1].kind == Response::Kind::kRun);
  CHECK(responses[2].kind == Response::Kind::kResume);
  CHECK_EQ(responses[2].position, 5 + NegotiationLeader::kResumeDistance);
  CHECK(leader.TakeResponses(true, 5).empty());  // all are in the rounds again
}

void TheRoundsDoNotGoOnBeforeEarlierResponsesAreObeyed() {
  NegotiationLeader leader({0}, 0);
  leader.RankLeftRounds(0);
  CHECK(leader.TakeResponses(false, 0).empty());
  CHECK_EQ(leader.TakeResponses(true, 0).size(), 1u);
}

void RequestsOfAnotherEpochAreDroppedOrKept() {
  NegotiationLeader leader({0, 1}, 0);
  CHECK(leader.Receive(1, RequestsOf(2, {SignatureOf("old")}), 3, false, kNow) == Receipt::kStale);
  CHECK(leader.Receive(1, RequestsOf(3, {SignatureOf("ended")}), 3, true, kNow) == Receipt::kStale);
  CHECK(leader.Receive(1, RequestsOf(4, {SignatureOf("next")}), 3, true, kNow) == Receipt::kEarly);
  CHECK(!leader.coordinator().has_waiting());
  leader.RankLeftRounds(0);
  CHECK(leader.TakeResponses(true, 0).empty());  // rank 1 still counts as in the rounds
  auto early = leader.TakeEarly();
  CHECK_EQ(early.size(), 1u);
  CHECK(leader.TakeEarly().empty());
  CHECK(leader.Receive(early[0].first, std::move(early[0].second), 4, false, kNow) == Receipt::kTaken);
  CHECK(leader.coordinator().has_waiting());
}

}  // namespace

int main() {
  return RunTests(
      {{"the rounds go on when all negotiate and nothing waits", TheRoundsGoOnWhenAllNegotiateAndNothingWaits},
       {"the rounds do not go on before earlier responses are obeyed",
        TheRoundsDoNotGoOnBeforeEarlierResponsesAreObeyed},
       {"requests of another epoch are dropped or kept", RequestsOfAnotherEpochAreDroppedOrKept}});
}
