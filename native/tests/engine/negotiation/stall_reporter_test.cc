// Reports of requests that some ranks never submit, on a clock that the test moves.
#include "engine/negotiation/stall_reporter.h"

#include <string>
#include <vector>

#include "check.h"
#include "spark_estimator/engine.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

const Time kStart = Time() + std::chrono::hours(1);

Time At(double seconds) { return kStart + std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); }

Signature Allreduce(const std::string& name) {
  Signature signature;
  signature.name = name;
  signature.op = SE_ALLREDUCE;
  signature.reduce_op = SE_SUM;
  signature.parts = {Part{SE_FLOAT32, {4}}};
  return signature;
}

// Rank 0 of three has asked for 'x'.
Coordinator Waiting() {
  Coordinator coordinator({10, 11, 12}, 0);
  coordinator.Add(0, Allreduce("x"), kStart);
  return coordinator;
}

void AStallIsReportedOnceAndTheMissingRanksAreAsked() {
  Coordinator coordinator = Waiting();
  StallReporter reporter(5, 0, kStart);
  CHECK(reporter.enabled());
  std::vector<std::string> lines;
  CHECK(reporter.Check(coordinator, At(0.5), &lines).empty());  // a check is not due yet
  CHECK(reporter.Check(coordinator, At(2), &lines).empty() && lines.empty());
  CHECK(reporter.next_check() == At(3));
  const auto questions = reporter.Check(coordinator, At(6), &lines);
  CHECK_EQ(lines.size(), 1u);
  CHECK_CONTAINS(lines[0], "allreduce 'x' has waited 6 s for ranks 11, 12");
  CHECK_EQ(questions.size(), 2u);
  CHECK(questions[0].rank == 1 && questions[1].rank == 2 && questions[0].number != questions[1].number);
  CHECK_EQ(questions[0].about, lines[0]);
  CHECK(reporter.Check(coordinator, At(8), &lines).empty());
  CHECK_EQ(lines.size(), 1u);
}

void AQuestionIsAnsweredOnce() {
  Coordinator coordinator = Waiting();
  StallReporter reporter(5, 0, kStart);
  CHECK(!reporter.Answered(1));  // nothing was asked
  std::vector<std::string> lines;
  const auto questions = reporter.Check(coordinator, At(6), &lines);
  CHECK(reporter.has_open_questions());
  CHECK(reporter.next_deadline() == At(9));
  CHECK(reporter.Answered(questions[0].number));
  CHECK(!reporter.Answered(questions[0].number));
  CHECK(reporter.TakeOverdue(At(8.9)).empty());
  CHECK(reporter.TakeOverdue(At(9)) == std::vector<int>{2});
  CHECK(!reporter.Answered(questions[1].number));  // too late
  CHECK(!reporter.has_open_questions() && reporter.TakeOverdue(At(99)).empty());
  CHECK(reporter.next_deadline() == Time::max());
}

void ARankThatLeavesAnswersNothing() {
  Coordinator coordinator = Waiting();
  StallReporter reporter(5, 0, kStart);
  std::vector<std::string> lines;
  const auto questions = reporter.Check(coordinator, At(6), &lines);
  reporter.RankLeft(2);
  CHECK(!reporter.Answered(questions[1].number));
  CHECK(reporter.TakeOverdue(At(20)) == std::vector<int>{1});
}

void AStallFailsAfterTheSecondLimit() {
  Coordinator coordinator = Waiting();
  StallReporter reporter(0, 7, kStart);
  std::vector<std::string> lines;
  CHECK(reporter.enabled() && reporter.Check(coordinator, At(6), &lines).empty());
  CHECK(!coordinator.has_ready());
  CHECK(reporter.Check(coordinator, At(8), &lines).empty() && lines.empty());
  const std::vector<Response> responses = coordinator.TakeReady();
  CHECK_EQ(responses.size(), 1u);
  CHECK(responses[0].kind == Response::Kind::kFail);
  CHECK(!StallReporter(0, 0, kStart).enabled());
}

}  // namespace

int main() {
  return RunTests(
      {{"a stall is reported once and the missing ranks are asked", AStallIsReportedOnceAndTheMissingRanksAreAsked},
       {"a question is answered once", AQuestionIsAnsweredOnce},
       {"a rank that leaves answers nothing", ARankThatLeavesAnswersNothing},
       {"a stall fails after the second limit", AStallFailsAfterTheSecondLimit}});
}
