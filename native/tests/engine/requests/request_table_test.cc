// A rank's requests: names, numbers and handles from submission to their end, and what is refused.
#include "engine/requests/request_table.h"

#include <string>
#include <vector>

#include "check.h"
#include "requests.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::Named;
using spark_estimator::testing::RequestOf;
using spark_estimator::testing::RunTests;
using spark_estimator::testing::SignatureOf;

struct Fixture {
  Status Enqueue(const RequestPtr& request, bool wants_handle = false) {
    const RequestTable::Lock lock = table.lock();
    return table.Enqueue(request, wants_handle);
  }

  Counters counters;
  DriveTurn turn;
  RequestTable table{&turn, &counters};
};

RequestPtr UnnamedOf() { return RequestOf(SignatureOf("kind", {4}, SE_ALLREDUCE, 0)); }

void ANameInFlightIsRefused() {
  Fixture fixture;
  const RequestPtr first = Named("x");
  CHECK(fixture.Enqueue(first).ok());
  CHECK_EQ(fixture.Enqueue(Named("x")).code(), SE_DUPLICATE_NAME);
  CHECK(fixture.Enqueue(Named("y")).ok());
  CHECK_EQ(fixture.table.submitted().size(), 2u);
  fixture.table.Complete({first}, Status::Ok());
  CHECK(first->done && first->outcome.ok());
  CHECK(fixture.Enqueue(Named("x")).ok());
  CHECK_EQ(fixture.counters.requests.load(), 3);
}

void PlansAreNamesToo() {
  Fixture fixture;
  Plan plan;
  plan.signature = std::make_shared<const Signature>(SignatureOf("x"));
  plan.output_bytes = {0};
  plan.residues = {nullptr};
  const void* input = &plan;
  CHECK(!RequestTable::IsInFlight(plan));
  const RequestPtr request = fixture.table.NextOf(plan, &input, nullptr, true);
  CHECK(request->deferred && request->memory[0].input == input);
  CHECK(fixture.Enqueue(request).ok() && RequestTable::IsInFlight(plan));
  CHECK_EQ(fixture.Enqueue(Named("x")).code(), SE_DUPLICATE_NAME);
  fixture.table.Retire(plan);  // in flight: its name stays taken
  CHECK(request->plan == nullptr && !RequestTable::IsInFlight(plan));
  CHECK_EQ(fixture.Enqueue(Named("x")).code(), SE_DUPLICATE_NAME);
  fixture.table.Complete(*request, Status::Ok());
  CHECK(fixture.Enqueue(Named("x")).ok());
}

void APlanUsesItsRequestAgainWhenOnlyItHoldsIt() {
  Fixture fixture;
  Plan plan;
  plan.signature = std::make_shared<const Signature>(SignatureOf("x"));
  plan.output_bytes = {0};
  plan.residues = {nullptr};
  const void* input = &plan;
  RequestPtr held = fixture.table.NextOf(plan, &input, nullptr, false);
  const Request* first = held.get();
  CHECK(fixture.table.NextOf(plan, &input, nullptr, false).get() != first);
  held.reset();
  const Request* second = plan.request.get();
  CHECK(fixture.table.NextOf(plan, &input, nullptr, false).get() == second);
}

void UnnamedRequestsAreNumbered() {
  Fixture fixture;
  const RequestPtr first = UnnamedOf(), second = UnnamedOf();
  CHECK(fixture.Enqueue(first).ok() && fixture.Enqueue(second).ok());
  CHECK(first->number == 0 && second->number == 1);
  fixture.table.RestartNumbers();
  const RequestPtr again = UnnamedOf();
  CHECK(fixture.Enqueue(again).ok());
  CHECK_EQ(again->number, 0);
}

void AnUnnamedRequestMayHaveFailedBeforeItsSubmission() {
  Fixture fixture;
  fixture.table.FailUnnamed("kind", 1, "given up");
  const RequestPtr first = UnnamedOf(), second = UnnamedOf(), third = UnnamedOf();
  for (const RequestPtr& request : {first, second, third}) CHECK(fixture.Enqueue(request).ok());
  CHECK(first->done && second->done && !third->done);
  CHECK_EQ(second->outcome.code(), SE_MISMATCH);
  CHECK_CONTAINS(second->outcome.message(), "'kind.1' failed before this rank submitted it: given up");
  CHECK_EQ(fixture.table.submitted().size(), 1u);
  fixture.table.FailUnnamed("kind", 2, "given up, too");  // submitted, and not taken by the driving thread
  CHECK(third->done && fixture.table.submitted().empty());
  fixture.table.FailUnnamed("kind", 2, "again");  // refused: it is not here any more
  CHECK_CONTAINS(third->outcome.message(), "too");
}

void HandlesLeadToResultsUntilTheirRelease() {
  Fixture fixture;
  const RequestPtr request = Named("x");
  CHECK(fixture.Enqueue(request, true).ok());
  const int64_t handle = request->handle;
  CHECK(handle > 0 && fixture.table.Find(handle) == request && fixture.table.Find(handle + 1) == nullptr);
  se_result result{};
  void* data = nullptr;
  CHECK_CONTAINS(fixture.table.GetResult(handle, 0, &result).message(), "has no result (yet)");
  CHECK_EQ(fixture.table.TakeResultData(handle, 0, &data).code(), SE_INVALID_ARGUMENT);
  request->gathered.resize(1);
  request->gathered[0].bytes = 12;
  fixture.table.Complete(*request, Status::Ok());
  CHECK(fixture.table.GetResult(handle, 0, &result).ok());
  CHECK_EQ(result.bytes, 12);
  CHECK_CONTAINS(fixture.table.GetResult(handle, 1, &result).message(), "has no tensor 1");
  CHECK(fixture.table.TakeResultData(handle, 0, &data).ok());
  RequestPtr found;
  CHECK_CONTAINS(fixture.table.FindDoneOnGpu(handle, &found).message(), "has no results on a GPU");
  fixture.table.Release(handle);
  fixture.table.Release(handle);
  CHECK(fixture.table.Find(handle) == nullptr);
  CHECK_CONTAINS(fixture.table.FindDoneOnGpu(handle, &found).message(), "is unknown or was released");
}

void ABrokenTableFailsEverything() {
  Fixture fixture;
  const RequestPtr waiting = Named("x"), taken = UnnamedOf();
  CHECK(fixture.Enqueue(waiting).ok() && fixture.Enqueue(taken).ok());
  fixture.table.submitted().pop_back();
  taken->recorded = true;
  std::vector<const Request*> recorded;
  const Status why(SE_PEER_LOST, "rank 1 is lost");
  CHECK(fixture.table.Break(why, [&](const Request& request) {
    recorded.push_back(&request);
    throw std::bad_alloc();
  }));
  CHECK(recorded == std::vector<const Request*>{waiting.get()});
  CHECK(fixture.table.is_broken() && waiting->done && taken->done && fixture.table.submitted().empty());
  CHECK_CONTAINS(waiting->outcome.message(), "allreduce 'x' failed");
  CHECK(!fixture.table.Break(Status(SE_INTERNAL, "another"), [](const Request&) {}));
  CHECK_EQ(fixture.table.broken().message(), why.message());
  const Status refused = fixture.Enqueue(Named("y"));
  CHECK_EQ(refused.code(), SE_PEER_LOST);
  CHECK_CONTAINS(refused.message(), "rank 1 is lost");
}

void AStoppedTableRefusesRequests() {
  Fixture fixture;
  const RequestPtr waiting = Named("x");
  CHECK(fixture.Enqueue(waiting).ok());
  CHECK(!fixture.table.is_stopping());
  fixture.table.Stop();
  CHECK(fixture.table.is_stopping() && !waiting->done);
  CHECK_EQ(fixture.Enqueue(Named("y")).code(), SE_SHUT_DOWN);
}

}  // namespace

int main() {
  return RunTests(
      {{"a name in flight is refused", ANameInFlightIsRefused},
       {"plans are names, too", PlansAreNamesToo},
       {"a plan uses its request again when only it holds it", APlanUsesItsRequestAgainWhenOnlyItHoldsIt},
       {"unnamed requests are numbered", UnnamedRequestsAreNumbered},
       {"an unnamed request may have failed before its submission", AnUnnamedRequestMayHaveFailedBeforeItsSubmission},
       {"handles lead to results until their release", HandlesLeadToResultsUntilTheirRelease},
       {"a broken table fails everything", ABrokenTableFailsEverything},
       {"a stopped table refuses requests", AStoppedTableRefusesRequests}});
}
