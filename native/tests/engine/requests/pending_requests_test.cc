// What a rank proposes: cached, queued and uncached requests, and how they move between these.
#include "engine/requests/pending_requests.h"

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
  explicit Fixture(size_t capacity = 8) : cache(capacity), pending(&cache, &counters) {}
  void Remember(Signature signature) { cache.Insert(std::make_shared<const Signature>(std::move(signature)), {}); }
  void Add(std::vector<RequestPtr> requests) {
    pending.Add(requests);
    CHECK(requests.empty());
  }

  ResponseCache cache;
  Counters counters;
  PendingRequests pending;
};

RequestPtr UnnamedOf(Unnamed& kind, int64_t number) {
  RequestPtr request = RequestOf(SignatureOf("kind", {4}, SE_ALLREDUCE, number));
  request->unnamed = &kind;
  return request;
}

void CachedAndUncached() {
  Fixture fixture;
  PendingRequests& pending = fixture.pending;
  CHECK(!pending.has_cached() && !pending.has_uncached() && pending.single() == nullptr && pending.AllDeferred());
  fixture.Remember(SignatureOf("a"));
  fixture.Remember(SignatureOf("b"));
  const RequestPtr a = Named("a");
  fixture.Add({a});
  CHECK(pending.has_cached() && pending.single() == a.get());
  fixture.Add({Named("b"), Named("new"), RequestOf(SignatureOf("join", {}, SE_JOIN))});
  CHECK(pending.single() == nullptr && pending.has_uncached());
  CHECK_EQ(fixture.counters.cache_hits.load(), 2);
  CHECK_EQ(fixture.counters.cache_misses.load(), 2);
  CHECK(pending.Take(a->cache_id) == a);
  CHECK(pending.single() != nullptr && pending.single()->signature->name == "b");
  CHECK_EQ(pending.ids().First(), pending.single()->cache_id);
}

void UnnamedRequestsQueueBehindTheOldest() {
  Fixture fixture;
  Unnamed kind;
  fixture.Remember(SignatureOf("kind", {4}, SE_ALLREDUCE, 0));
  const RequestPtr first = UnnamedOf(kind, 0), second = UnnamedOf(kind, 1), third = UnnamedOf(kind, 2);
  fixture.Add({first, second, third});
  CHECK(kind.is_proposed && fixture.pending.has_queued() && second->had_to_queue && !first->had_to_queue);
  CHECK(fixture.pending.single() == nullptr);  // one id, but a line behind it
  const int32_t id = first->cache_id;
  CHECK(fixture.pending.MakeLines() == (Lines{{id, id, id}}));
  CHECK(fixture.pending.Take(id) == first);
  CHECK(&fixture.pending.At(id) == second.get());
  CHECK(fixture.pending.Take(id) == second);
  CHECK(!fixture.pending.has_queued() && fixture.pending.single() == third.get());
  CHECK(fixture.pending.Take(id) == third);
  CHECK(!kind.is_proposed && !fixture.pending.has_cached());
}

void LinesAreNoLongerThanAProposalHolds() {
  Fixture fixture;
  Unnamed kind;
  fixture.Remember(SignatureOf("kind", {4}, SE_ALLREDUCE, 0));
  std::vector<RequestPtr> many;
  for (int64_t number = 0; number < 1000; ++number) many.push_back(UnnamedOf(kind, number));
  fixture.Add(many);
  CHECK(Pack(fixture.pending.MakeLines()).size() <= kMostInLines);
}

void AllAreTakenInOneOrder() {
  Fixture fixture;
  Unnamed kind;
  fixture.Remember(SignatureOf("kind", {4}, SE_ALLREDUCE, 0));
  fixture.Remember(SignatureOf("a"));
  const RequestPtr a = Named("a"), first = UnnamedOf(kind, 0), second = UnnamedOf(kind, 1), unknown = Named("new");
  fixture.Add({first, second, a, unknown});
  const std::vector<RequestPtr> all = fixture.pending.TakeAll();
  CHECK_EQ(all.size(), 4u);
  CHECK(all.back() == unknown);
  CHECK(!kind.is_proposed && kind.younger.empty());
  CHECK(!fixture.pending.has_cached() && !fixture.pending.has_queued() && !fixture.pending.has_uncached());
  fixture.Add(all);
  CHECK(fixture.pending.has_cached() && fixture.pending.has_queued() && fixture.pending.has_uncached());
  fixture.pending.Clear();
  CHECK(!kind.is_proposed && kind.younger.empty() && fixture.pending.TakeAll().empty());
}

void DeferredMeansAllOfThem() {
  Fixture fixture;
  Unnamed kind;
  fixture.Remember(SignatureOf("kind", {4}, SE_ALLREDUCE, 0));
  const RequestPtr first = UnnamedOf(kind, 0), second = UnnamedOf(kind, 1);
  first->deferred = true;
  fixture.Add({first});
  CHECK(fixture.pending.AllDeferred());
  fixture.Add({second});
  CHECK(!fixture.pending.AllDeferred());
}

// A plan keeps its id, and looks it up again when the cache has changed.
void APlanRemembersItsId() {
  Fixture fixture(1);
  fixture.Remember(SignatureOf("a"));
  Plan plan;
  const RequestPtr a = Named("a");
  a->plan = &plan;
  fixture.Add({a});
  CHECK_EQ(plan.cache_id, a->cache_id);
  CHECK(plan.cache_generation == fixture.cache.generation());
  fixture.pending.TakeAll();
  fixture.Remember(SignatureOf("b"));  // takes the only id
  fixture.Add({a});
  CHECK(fixture.pending.has_uncached() && !fixture.pending.has_cached());
  CHECK_EQ(plan.cache_id, -1);
}

}  // namespace

int main() {
  return RunTests({{"cached and uncached", CachedAndUncached},
                   {"unnamed requests queue behind the oldest", UnnamedRequestsQueueBehindTheOldest},
                   {"lines are no longer than a proposal holds", LinesAreNoLongerThanAProposalHolds},
                   {"all are taken in one order", AllAreTakenInOneOrder},
                   {"deferred means all of them", DeferredMeansAllOfThem},
                   {"a plan remembers its id", APlanRemembersItsId}});
}
