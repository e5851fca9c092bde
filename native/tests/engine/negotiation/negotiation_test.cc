// A rank's part of full negotiation: which requests a response means, and what it refuses.
#include "engine/negotiation/negotiation.h"

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

Response Run(std::vector<std::string> names) {
  Response response;
  response.names = std::move(names);
  return response;
}

RequestPtr JoinOf(uint64_t order) { return RequestOf(SignatureOf("join", {}, SE_JOIN), order); }

void ARequestIsNegotiatedOnceAtATime() {
  Negotiation negotiation;
  const RequestPtr first = RequestOf(SignatureOf("kind", {4}, SE_ALLREDUCE, 0));
  const RequestPtr again = RequestOf(SignatureOf("kind", {4}, SE_ALLREDUCE, 0));
  CHECK(negotiation.Add(first));
  CHECK(!negotiation.Add(again));
  CHECK(negotiation.Add(RequestOf(SignatureOf("kind", {4}, SE_ALLREDUCE, 1))));
  CHECK(negotiation.TakeFailed("kind.0") == first);
  CHECK(negotiation.TakeFailed("kind.0") == nullptr);
  CHECK(negotiation.Add(again));
}

void AResponseFindsItsRequests() {
  Negotiation negotiation;
  const RequestPtr a = Named("a"), b = Named("b");
  CHECK(negotiation.Add(a) && negotiation.Add(b));
  Negotiation::Operation operation;
  CHECK(negotiation.Match(Run({"b", "a"}), &operation).ok());
  CHECK(operation.requests == (std::vector<RequestPtr>{b, a}) && operation.zeros.empty());
  Negotiation::Operation again;
  const Status status = negotiation.Match(Run({"a"}), &again);  // it has run
  CHECK_EQ(status.code(), SE_INTERNAL);
  CHECK_CONTAINS(status.message(), "'a', which this rank never submitted");
}

void AJoinedRankTakesPartWithZeros() {
  Negotiation negotiation;
  Response response = Run({"x"});
  response.signatures = {SignatureOf("x", {3})};
  Negotiation::Operation refused;
  CHECK_EQ(negotiation.Match(response, &refused).code(), SE_INTERNAL);  // it has not joined
  const RequestPtr join = JoinOf(0);
  CHECK(negotiation.Add(join));
  Negotiation::Operation operation;
  CHECK(negotiation.Match(response, &operation).ok());
  CHECK_EQ(operation.requests.size(), 1u);
  const Request& request = *operation.requests[0];
  CHECK_EQ(request.bytes, 12);
  for (int i = 0; i < 3; ++i) CHECK_EQ(static_cast<const float*>(request.memory[0].input)[i], 0.0f);
  CHECK_EQ(negotiation.Match(Run({"y"}), &operation).code(), SE_INTERNAL);  // all others have it: no signature
  CHECK(negotiation.TakeJoin() == join && negotiation.TakeJoin() == nullptr);
}

// Signatures are also sent for requests that all ranks had made before one of them joined.
void AJoinedRankTakesPartInOtherOpsByItsOwnRequests() {
  Negotiation negotiation;
  const RequestPtr gather = RequestOf(SignatureOf("x", {3}, SE_ALLGATHER));
  CHECK(negotiation.Add(gather) && negotiation.Add(JoinOf(1)));
  Response response = Run({"x"});
  response.signatures = {*gather->signature};
  Negotiation::Operation operation;
  CHECK(negotiation.Match(response, &operation).ok());
  CHECK(operation.requests == (std::vector<RequestPtr>{gather}) && operation.zeros.empty());
  Negotiation::Operation again;
  CHECK_EQ(negotiation.Match(response, &again).code(), SE_INTERNAL);
}

void WhatIsNotAnsweredComesBackInOrder() {
  Negotiation negotiation;
  const RequestPtr late = Named("a", 5), early = Named("b", 1), join = JoinOf(3);
  CHECK(negotiation.Add(late) && negotiation.Add(early) && negotiation.Add(join));
  CHECK(negotiation.TakeAll() == (std::vector<RequestPtr>{early, join, late}));
  CHECK(negotiation.TakeAll().empty() && negotiation.TakeJoin() == nullptr);
  CHECK(negotiation.Add(late) && negotiation.Add(join));
  negotiation.Clear();
  CHECK(negotiation.TakeAll().empty());
}

void ResponsesAreTakenInOrder() {
  Negotiation negotiation;
  CHECK(!negotiation.has_responses() && !negotiation.ends_with_resume());
  Response resume;
  resume.kind = Response::Kind::kResume;
  negotiation.Receive({Run({"a"}), resume});
  CHECK(negotiation.has_responses() && negotiation.ends_with_resume());
  negotiation.Receive({Run({"b"})});
  CHECK(!negotiation.ends_with_resume());
  CHECK_EQ(negotiation.TakeResponse().names[0], std::string("a"));
  CHECK(negotiation.TakeResponse().kind == Response::Kind::kResume);
  CHECK_EQ(negotiation.TakeResponse().names[0], std::string("b"));
  CHECK(!negotiation.has_responses());
}

}  // namespace

int main() {
  return RunTests(
      {{"a request is negotiated once at a time", ARequestIsNegotiatedOnceAtATime},
       {"a response finds its requests", AResponseFindsItsRequests},
       {"a joined rank takes part with zeros", AJoinedRankTakesPartWithZeros},
       {"a joined rank takes part in other ops by its own requests", AJoinedRankTakesPartInOtherOpsByItsOwnRequests},
       {"what is not answered comes back in order", WhatIsNotAnsweredComesBackInOrder},
       {"responses are taken in order", ResponsesAreTakenInOrder}});
}
