// Messages that can be read and still cannot be true: none of them reaches the engine's arithmetic or memory.
#include "engine/wire/validity.h"

#include <functional>

#include "check.h"
#include "spark_estimator/engine.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

constexpr int kSize = 3;
constexpr int64_t kHuge = int64_t{1} << 40;

Signature Asking(int32_t op, std::vector<Part> parts, std::vector<int64_t> splits = {}) {
  Signature signature;
  signature.name = "name";
  signature.op = op;
  signature.reduce_op = SE_SUM;
  signature.parts = std::move(parts);
  signature.splits = std::move(splits);
  return signature;
}

bool Possible(int32_t op, std::vector<Part> parts, std::vector<int64_t> splits = {}) {
  return IsPossible(Asking(op, std::move(parts), std::move(splits)), kSize);
}

void HonestRequestsPass() {
  CHECK(Possible(SE_ALLREDUCE, {{SE_FLOAT32, {}}, {SE_BOOL, {2, 0}}}));
  CHECK(Possible(SE_ALLGATHER, {{SE_INT64, {0, 5}}}));
  CHECK(Possible(SE_BROADCAST, {{SE_UINT8, {kHuge}}}));
  CHECK(Possible(SE_ALLTOALL, {{SE_FLOAT16, {6, 2}}}));
  CHECK(Possible(SE_ALLTOALL, {{SE_FLOAT16, {6, 2}}}, {1, 0, 5}));
  CHECK(Possible(SE_REDUCESCATTER, {{SE_FLOAT64, {7}}}));
  CHECK(Possible(SE_BARRIER, {}));
  CHECK(Possible(SE_JOIN, {}));
}

void OthersDoNot() {
  CHECK(!Possible(-1, {}));
  CHECK(!Possible(SE_JOIN + 1, {}));
  CHECK(!Possible(SE_BARRIER, {{SE_FLOAT32, {1}}}));
  CHECK(!Possible(SE_ALLREDUCE, {}));
  CHECK(!Possible(SE_BROADCAST, {{SE_FLOAT32, {1}}, {SE_FLOAT32, {1}}}));
  CHECK(!Possible(SE_ALLREDUCE, {{SE_UINT16 + 1, {1}}}));
  CHECK(!Possible(SE_ALLREDUCE, {{-1, {1}}}));
  CHECK(!Possible(SE_ALLREDUCE, {{SE_FLOAT32, {-1}}}));
  // Sizes that overflow, or would but for an empty dimension, or only in sum.
  CHECK(!Possible(SE_ALLREDUCE, {{SE_FLOAT32, {kHuge, kHuge}}}));
  CHECK(!Possible(SE_ALLREDUCE, {{SE_FLOAT32, {0, kHuge, kHuge}}}));
  CHECK(!Possible(SE_ALLREDUCE, std::vector<Part>(5, Part{SE_FLOAT64, {kHuge, 128}})));
  // Splits: too few, negative, of another sum, of another op.
  CHECK(!Possible(SE_ALLTOALL, {{SE_FLOAT32, {6}}}, {3, 3}));
  CHECK(!Possible(SE_ALLTOALL, {{SE_FLOAT32, {6}}}, {7, -1, 0}));
  CHECK(!Possible(SE_ALLTOALL, {{SE_FLOAT32, {6}}}, {1, 1, 1}));
  CHECK(!Possible(SE_ALLTOALL, {{SE_FLOAT32, {}}}, {0, 0, 0}));
  CHECK(!Possible(SE_ALLGATHER, {{SE_FLOAT32, {6}}}, {1, 1, 4}));
  Signature nameless = Asking(SE_BARRIER, {});
  nameless.name.clear();
  CHECK(!IsPossible(nameless, kSize));
  Signature strange = Asking(SE_ALLREDUCE, {{SE_FLOAT32, {1}}});
  strange.reduce_op = SE_PRODUCT + 1;
  CHECK(!IsPossible(strange, kSize));
}

void WhatNoGroupCouldDoIsRefused() {
  const auto why = [](Signature signature, int size = 2) {
    const std::string text = WhyImpossible(signature, size);
    CHECK_EQ(IsPossible(signature, size), text.empty());
    return text;
  };
  Signature broadcast = Asking(SE_BROADCAST, {{SE_FLOAT32, {1}}});
  broadcast.root_rank = 2;
  CHECK_CONTAINS(why(broadcast), "root rank 2 is outside 0..1");
  CHECK_EQ(why(broadcast, 3), std::string());
  broadcast.root_rank = -1;
  CHECK_CONTAINS(why(broadcast), "root rank -1");
  for (const int32_t op : {SE_ALLREDUCE, SE_REDUCESCATTER}) {
    Signature bools = Asking(op, {{SE_FLOAT32, {1}}, {SE_BOOL, {1}}});
    CHECK_EQ(why(bools), std::string());
    bools.reduce_op = SE_AVERAGE;
    CHECK_CONTAINS(why(bools), "tensor 1: the average of bool");
    bools.reduce_op = SE_SUM;
    bools.postscale = 0.5;
    CHECK_CONTAINS(why(bools), "cannot be scaled");
  }
  Signature adasum = Asking(SE_ALLREDUCE, {{SE_FLOAT16, {1}}});
  adasum.reduce_op = SE_ADASUM;
  CHECK_EQ(why(adasum, 4), std::string());
  CHECK_CONTAINS(why(adasum, 3), "power of two, and there are 3");
  adasum.parts[0].dtype = SE_INT32;
  CHECK_CONTAINS(why(adasum), "floating point only, not for int32");
  Signature largest = Asking(SE_REDUCESCATTER, {{SE_FLOAT16, {1}}});
  largest.reduce_op = SE_MAX;
  CHECK_CONTAINS(why(largest), "Average and Sum, not Max");
  for (const int32_t op : {SE_ALLGATHER, SE_ALLTOALL, SE_REDUCESCATTER}) {
    CHECK_CONTAINS(why(Asking(op, {{SE_FLOAT32, {}}})), "first dimension, and a 0-d tensor has none");
  }
}

Response Saying(Response::Kind kind, const std::function<void(Response&)>& change = [](Response&) {}) {
  Response response;
  response.kind = kind;
  response.names = {"name"};
  response.last_joined = 0;
  change(response);
  return response;
}

void ResponsesAreChecked() {
  using Kind = Response::Kind;
  for (const Kind kind : {Kind::kRun, Kind::kFail, Kind::kJoined, Kind::kResume}) {
    CHECK(IsPossible(Saying(kind), kSize));
  }
  CHECK(!IsPossible(Saying(Kind::kRun, [](Response& r) { r.names.clear(); }), kSize));
  CHECK(!IsPossible(Saying(Kind::kFail, [](Response& r) { r.names.clear(); }), kSize));
  const auto failing = [](const char* name, int64_t number) {
    return Saying(Kind::kFail, [&](Response& r) {
      r.names = {name};
      r.number = number;
    });
  };
  CHECK(IsPossible(failing("kind.12", 12), kSize));
  CHECK(!IsPossible(failing("kind.12", 13), kSize));
  CHECK(!IsPossible(failing("2", 2), kSize));
  CHECK(!IsPossible(failing("kind.-5", -5), kSize));
  const Signature signature = Asking(SE_ALLREDUCE, {{SE_FLOAT32, {1}}});
  CHECK(IsPossible(Saying(Kind::kRun, [&](Response& r) { r.signatures = {signature}; }), kSize));
  CHECK(!IsPossible(Saying(Kind::kRun, [&](Response& r) { r.signatures = {signature, signature}; }), kSize));
  CHECK(!IsPossible(Saying(Kind::kRun,
                           [&](Response& r) {
                             r.signatures = {signature};
                             r.names = {"another"};
                           }),
                    kSize));
  CHECK(!IsPossible(Saying(Kind::kJoined, [](Response& r) { r.last_joined = kSize; }), kSize));
}

void JoinedRanksTakePartInLittle() {
  const std::vector<Part> parts = {{SE_FLOAT32, {3}}};
  Signature allreduce = Asking(SE_ALLREDUCE, parts);
  CHECK(TakesZeros(allreduce));
  CHECK(TakesZeros(Asking(SE_BARRIER, {})));
  allreduce.reduce_op = SE_AVERAGE;
  CHECK(TakesZeros(allreduce));
  for (const int32_t reduce_op : {SE_MIN, SE_MAX, SE_PRODUCT, SE_ADASUM}) {
    allreduce.reduce_op = reduce_op;
    CHECK(!TakesZeros(allreduce));
  }
  for (const int32_t op : {SE_ALLGATHER, SE_BROADCAST, SE_ALLTOALL, SE_REDUCESCATTER}) {
    CHECK(!TakesZeros(Asking(op, parts)));
  }
  CHECK(!TakesZeros(Asking(SE_JOIN, {})));
}

void OnlyAlikeAllreducesAreOne() {
  const Signature first = Asking(SE_ALLREDUCE, {{SE_FLOAT32, {3}}});
  const auto fits = [&](const Signature& second, int64_t threshold = 1 << 20) {
    const bool result = MayBeOne({&first, &second}, threshold);
    CHECK_EQ(MayBeOne({&second, &first}, threshold), result);
    CHECK_EQ(MayBeOne({&first, &first, &second}, threshold + 12), result);
    return result;
  };
  const auto changed = [&](const std::function<void(Signature&)>& change) {
    Signature second = first;
    second.name = "second";
    change(second);
    return second;
  };
  CHECK(fits(changed([](Signature&) {})));
  CHECK(fits(changed([](Signature& s) { s.parts = {{SE_FLOAT32, {}}, {SE_FLOAT32, {7}}}; })));
  CHECK(fits(changed([](Signature&) {}), 24));
  CHECK(!fits(changed([](Signature&) {}), 23));
  CHECK(!fits(changed([](Signature& s) { s.parts[0].dtype = SE_FLOAT64; })));
  CHECK(!fits(changed([](Signature& s) { s.parts.push_back({SE_INT32, {1}}); })));
  CHECK(!fits(changed([](Signature& s) { s.reduce_op = SE_MAX; })));
  CHECK(!fits(changed([](Signature& s) { s.prescale = 0.5; })));
  CHECK(!fits(changed([](Signature& s) { s.postscale = 0.5; })));
  CHECK(!fits(changed([](Signature& s) { s.place = SE_GPU; })));
  for (const int32_t op : {SE_ALLGATHER, SE_BROADCAST, SE_ALLTOALL, SE_REDUCESCATTER}) {
    CHECK(!fits(changed([&](Signature& s) { s.op = op; })));
  }
  CHECK(!fits(Asking(SE_BARRIER, {})));
  // Nor two of a kind of which each is run alone.
  Signature adasum = first;
  adasum.reduce_op = SE_ADASUM;
  const Signature barrier = Asking(SE_BARRIER, {});
  const Signature gather = Asking(SE_ALLGATHER, {{SE_FLOAT32, {3}}});
  for (const Signature* kind : {static_cast<const Signature*>(&adasum), &barrier, &gather}) {
    CHECK(MayBeOne({kind}, 0));
    CHECK(!MayBeOne({kind, kind}, 1 << 20));
  }
}

void RowsMustFitTheRequest() {
  const Signature gather = Asking(SE_ALLGATHER, {{SE_FLOAT32, {2, 5}}, {SE_UINT8, {1}}});
  CHECK(RowsFit({7, 2, 0, 3, 1, 4}, gather, 1, kSize));
  CHECK(!RowsFit({7, 3, 0, 3, 1, 4}, gather, 1, kSize));   // not what this rank gave
  CHECK(!RowsFit({7, 2, -1, 3, 1, 4}, gather, 1, kSize));  // a rank gave fewer than none
  CHECK(!RowsFit({7, 2, 0}, gather, 1, kSize));
  CHECK(!RowsFit({kHuge << 20, 2, 0, 3, 1, 4}, gather, 1, kSize));
  CHECK(!RowsFit({kHuge << 11, 2, kHuge << 11, 3, 1, 4}, gather, 1, kSize));  // too many together
  CHECK(!RowsFit({1, 1, 1}, Asking(SE_ALLGATHER, {{SE_FLOAT32, {}}}), 1, kSize));

  const Signature shuffle = Asking(SE_ALLTOALL, {{SE_FLOAT32, {4}}});
  CHECK(RowsFit({9, 9, 9, 1, 1, 2, 0, 0, 0}, shuffle, 1, kSize));
  CHECK(!RowsFit({9, 9, 9, 1, 1, 1, 0, 0, 0}, shuffle, 1, kSize));
  CHECK(!RowsFit({9, 9, 9, 5, -1, 0, 0, 0, 0}, shuffle, 1, kSize));
  CHECK(!RowsFit({1, 1, 2}, shuffle, 1, kSize));

  CHECK(RowsFit({}, Asking(SE_BARRIER, {}), 1, kSize));
  CHECK(!RowsFit({1, 1, 1}, Asking(SE_ALLREDUCE, {{SE_FLOAT32, {1}}}), 1, kSize));
}

void SharesAreWhatWasAgreedOn() {
  CHECK_EQ(BytesBroughtBy(2, Asking(SE_ALLREDUCE, {{SE_FLOAT32, {3}}, {SE_FLOAT32, {}}}), {}), size_t{16});
  CHECK_EQ(BytesBroughtBy(2, Asking(SE_ALLGATHER, {{SE_FLOAT16, {9, 5}}}), {9, 9, 4}), size_t{40});
  Signature broadcast = Asking(SE_BROADCAST, {{SE_INT64, {2}}});
  broadcast.root_rank = 1;
  CHECK_EQ(BytesBroughtBy(1, broadcast, {}), size_t{16});
  CHECK_EQ(BytesBroughtBy(0, broadcast, {}), size_t{0});
  CHECK_EQ(BytesBroughtBy(0, Asking(SE_BARRIER, {}), {}), size_t{0});
}

}  // namespace

int main() {
  return RunTests({{"honest requests pass", HonestRequestsPass},
                   {"others do not", OthersDoNot},
                   {"what no group could do is refused", WhatNoGroupCouldDoIsRefused},
                   {"responses are checked", ResponsesAreChecked},
                   {"joined ranks take part in little", JoinedRanksTakePartInLittle},
                   {"only alike allreduces are one", OnlyAlikeAllreducesAreOne},
                   {"rows must fit the request", RowsMustFitTheRequest},
                   {"shares are what was agreed on", SharesAreWhatWasAgreedOn}});
}
