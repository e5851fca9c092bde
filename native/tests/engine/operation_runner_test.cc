// One operation: run, recorded, counted and completed; on a group of one, without an engine.
#include "engine/operation_runner.h"

#include <memory>
#include <string>
#include <vector>

#include "algorithms/hosts.h"
#include "check.h"
#include "engine/rounds/frame_rounds.h"
#include "engine/rounds/inline_data.h"
#include "requests.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RequestOf;
using spark_estimator::testing::RunTests;
using spark_estimator::testing::SignatureOf;

struct Alone : Liveness {
  Status Check() override { return Status::Ok(); }
};

struct Fixture {
  Fixture()
      : streams(0, std::vector<StripedSocket>(1), &liveness),
        hosts(HostsOf({{}})),
        executor(&streams, nullptr, &hosts, &tuning, 1, &counters),
        table(&turn, &counters),
        runner({&executor, nullptr, &table, &counters, &recorder, &timeline}) {}
  RequestPtr Submit(const std::string& name, float* input, float* output) {
    RequestPtr request = RequestOf(SignatureOf(name, {1}));
    request->memory[0] = {input, output, 0};
    const RequestTable::Lock lock = table.lock();
    CHECK(table.Enqueue(request, false).ok());
    return request;
  }

  Alone liveness;
  SocketGroup streams;
  Hosts hosts;
  Tuning tuning;
  Counters counters;
  Executor executor;
  DriveTurn turn;
  RequestTable table;
  FlightRecorder recorder;
  Timeline timeline;
  OperationRunner runner;
};

void AnOperationRunsAndIsRecorded() {
  Fixture fixture;
  float input = 3, output = 0;
  const RequestPtr request = fixture.Submit("x", &input, &output);
  CHECK(fixture.runner.state() == OperationRunner::State::kIdle);
  CHECK(fixture.runner.Run({request}, {}, OperationRunner::AgreedBy::kRounds).ok());
  CHECK(fixture.runner.state() == OperationRunner::State::kIdle);
  CHECK(request->done && request->outcome.ok());
  CHECK_EQ(output, 3.0f);
  CHECK_EQ(fixture.runner.executed(), 1);
  CHECK_CONTAINS(fixture.recorder.Text(), "  x");
  fixture.Submit("x", &input, &output);  // its name is free
}

void AnInlineOperationIsCompleted() {
  Fixture fixture;
  float value = 1;
  const RequestPtr request = fixture.Submit("inline one", &value, &value);
  fixture.runner.CompleteInline(request);
  CHECK(request->done);
  CHECK_EQ(fixture.runner.executed(), 1);
  CHECK_EQ(fixture.counters.inline_operations.load(), 1);
  CHECK_CONTAINS(fixture.recorder.Text(), "inline one");
}

void FailuresCountAndAreRecorded() {
  Fixture fixture;
  float value = 1;
  const RequestPtr request = fixture.Submit("refused", &value, &value);
  fixture.runner.RecordFailure(*request, SE_MISMATCH, Clock::now());
  fixture.runner.CountWithoutRun();
  CHECK_EQ(fixture.runner.executed(), 1);
  CHECK_CONTAINS(fixture.recorder.Text(), "mismatch");
  CHECK(!request->done);
}

void InlineDataHasTheAgreedLengthOrNone() {
  const GroupRank self{0, 2};
  ResponseCache cache(4);
  const RequestPtr sum = RequestOf(SignatureOf("x", {3}));
  CHECK_EQ(InlineBytes(*sum, cache, self), 12u);
  CHECK_EQ(InlineBytes(*sum, cache, {0, 1}), SIZE_MAX);  // alone: nothing is sent
  Signature adasum = SignatureOf("x", {3});
  adasum.reduce_op = SE_ADASUM;
  CHECK_EQ(InlineBytes(*RequestOf(adasum), cache, self), SIZE_MAX);
  CHECK_EQ(InlineBytes(*RequestOf(SignatureOf("x", {3}, SE_ALLTOALL)), cache, self), SIZE_MAX);
  const RequestPtr gather = RequestOf(SignatureOf("gather", {1, 5}, SE_ALLGATHER));
  cache.Insert(gather->signature, {1, 4});
  gather->cache_id = cache.Find(*gather->signature)->id;
  CHECK_EQ(InlineBytes(*gather, cache, self), 80u);  // as many as the longest share
  Signature on_gpu = SignatureOf("x", {3});
  on_gpu.place = SE_GPU;
  CHECK_EQ(InlineBytes(*RequestOf(on_gpu), cache, self), SIZE_MAX);
  Signature broadcast = SignatureOf("x", {3}, SE_BROADCAST);
  broadcast.root_rank = 1;
  CHECK_EQ(OwnInlineBytes(*RequestOf(broadcast), self), 0u);
  CHECK_EQ(OwnInlineBytes(*RequestOf(broadcast), {1, 2}), 12u);
}

void InlineDataOfAnotherLengthIsNoticed() {
  FrameRounds rounds(0, 1, 8, [](int, std::string_view) {}, [](Time) { return Status::Ok(); });
  Proposal proposal;
  proposal.single = 0;
  proposal.carries_data = true;
  float value = 5, result = 0;
  const RequestPtr request = RequestOf(SignatureOf("x", {1}));
  request->memory[0] = {&value, &result, 0};
  const GroupRank self{0, 1};
  size_t agreed = 99;
  rounds.Post({0, 0}, proposal, 4, [&](uint8_t* target) { WriteInline(*request, target); }, -1);
  CHECK_EQ(FindWrongInlineBytes(*request, {}, rounds, self, &agreed), -1);
  CHECK_EQ(agreed, 99u);
  Fixture fixture;
  CHECK(RunInline(*request, {}, rounds, fixture.executor, self).ok());
  CHECK_EQ(result, 5.0f);
  rounds.Post({0, 1}, proposal, 3, [](uint8_t*) {}, -1);
  CHECK_EQ(FindWrongInlineBytes(*request, {}, rounds, self, &agreed), 0);
  CHECK_EQ(agreed, 4u);
}

}  // namespace

int main() {
  return RunTests({{"an operation runs and is recorded", AnOperationRunsAndIsRecorded},
                   {"an inline operation is completed", AnInlineOperationIsCompleted},
                   {"failures count and are recorded", FailuresCountAndAreRecorded},
                   {"inline data has the agreed length or none", InlineDataHasTheAgreedLengthOrNone},
                   {"inline data of another length is noticed", InlineDataOfAnotherLengthIsNoticed}});
}
