// The negotiation alone: order, fusion, and the sentences about what differs.
#include "engine/negotiation/coordinator.h"

#include "check.h"
#include "spark_estimator/engine.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

const Time kStart{};
Time At(double seconds) { return kStart + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)); }

Signature Allreduce(const std::string& name, std::vector<int64_t> dims = {4}) {
  Signature s;
  s.name = name;
  s.op = SE_ALLREDUCE;
  s.reduce_op = SE_SUM;
  s.parts = {Part{SE_FLOAT32, std::move(dims)}};
  return s;
}

void ReadyWhenAllHaveAsked() {
  Coordinator c({0, 1, 2}, 0);
  c.Add(2, Allreduce("a"), kStart);
  c.Add(0, Allreduce("b"), kStart);
  c.Add(0, Allreduce("a"), kStart);
  CHECK(c.TakeReady().empty());
  c.Add(1, Allreduce("a"), kStart);
  const auto responses = c.TakeReady();
  CHECK_EQ(responses.size(), size_t{1});
  CHECK_EQ(responses[0].names[0], std::string("a"));
  CHECK(responses[0].text.empty());
  CHECK(c.has_waiting());
}

void FusesUpToTheThreshold() {
  Coordinator c({0, 1}, 40);  // bytes: two and a half tensors of 16
  for (const char* name : {"a", "b", "c"}) {
    c.Add(0, Allreduce(name), kStart);
    c.Add(1, Allreduce(name), kStart);
  }
  Signature other = Allreduce("d");
  other.reduce_op = SE_MAX;
  c.Add(0, other, kStart);
  c.Add(1, other, kStart);
  const auto responses = c.TakeReady();
  CHECK_EQ(responses.size(), size_t{3});
  CHECK((responses[0].names == std::vector<std::string>{"a", "b"}));
  CHECK((responses[1].names == std::vector<std::string>{"c"}));
  CHECK((responses[2].names == std::vector<std::string>{"d"}));
}

Signature Unnamed(int64_t number, std::vector<int64_t> dims = {4}) {
  Signature s = Allreduce("allreduce.noname", std::move(dims));
  s.number = number;
  return s;
}

// Without a name they are matched by their numbers, and are called by kind and number.
void UnnamedMeetByNumber() {
  Coordinator c({0, 1}, 0);
  c.Add(0, Unnamed(7), kStart);
  c.Add(1, Unnamed(8, {5}), kStart);
  CHECK(c.TakeReady().empty());
  c.Add(1, Unnamed(7), kStart);
  c.Add(0, Unnamed(8), kStart);
  const auto responses = c.TakeReady();
  CHECK_EQ(responses.size(), size_t{2});
  CHECK_EQ(responses[0].names[0], std::string("allreduce.noname.7"));
  CHECK(responses[0].kind == Response::Kind::kRun);
  CHECK_EQ(responses[1].names[0], std::string("allreduce.noname.8"));
  CHECK(responses[1].kind == Response::Kind::kFail && responses[1].number == 8);
  CHECK_EQ(responses[1].KindOfUnnamed(), std::string("allreduce.noname"));
  CHECK_CONTAINS(responses[1].text, "Mismatched ALLREDUCE tensor shapes: rank 0 has [4]; rank 1 has [5] (");
}

// A named request that was in flight meanwhile matches the next one of that name; its rank is not asked to fail it.
void WhoIsLateForAShutdownIsLeftOutOfIt() {
  Coordinator c({0, 1, 2}, 0);
  c.Add(0, Allreduce("x", {4}), kStart);
  c.FailStalled(1, At(2));
  const auto responses = c.TakeReady();
  CHECK_EQ(responses.size(), size_t{1});
  CHECK(responses[0].rows == std::vector<int64_t>({1, 2}));
  c.Add(1, Allreduce("x", {4}), At(2));
  c.Add(0, Allreduce("x", {4}), At(2));
  c.Add(2, Allreduce("x", {4}), At(2));
  CHECK(c.TakeReady().at(0).kind == Response::Kind::kRun);
}

// Its rank is notified that it has failed: the request that was in flight meanwhile waits for no rank.
void WhatWasGivenUpIsNotWaitedForAgain() {
  Coordinator c({0, 1}, 0);
  c.Add(0, Unnamed(3), kStart);
  c.FailStalled(1, At(2));
  const auto responses = c.TakeReady();
  CHECK_EQ(responses.size(), size_t{1});
  CHECK_EQ(responses[0].number, int64_t{3});
  CHECK_CONTAINS(responses[0].text, "'allreduce.noname.3' has waited 2 s for rank 1");
  c.Add(1, Unnamed(3), At(2));
  CHECK(!c.has_waiting());
  c.Add(1, Unnamed(4), At(2));
  CHECK(c.has_waiting());
  c.Add(0, Unnamed(4), At(2));
  CHECK_EQ(c.TakeReady().size(), size_t{1});
  // Counted from 0 again since all have joined.
  Signature join;
  join.name = "join";
  join.op = SE_JOIN;
  c.Add(0, join, At(3));
  c.Add(1, join, At(3));
  CHECK_EQ(c.TakeReady().size(), size_t{1});
  c.Add(0, Unnamed(0), At(3));
  CHECK(c.has_waiting());
}

std::string ErrorOf(Signature first, Signature second) {
  Coordinator c({0, 1}, 0);
  c.Add(1, std::move(second), kStart);
  c.Add(0, std::move(first), kStart);
  return c.TakeReady().at(0).text;
}

void SaysWhatDiffers() {
  const Signature good = Allreduce("a", {2, 3});
  CHECK_EQ(ErrorOf(good, good), std::string());
  Signature bad = good;
  bad.parts[0].dims = {3, 2};
  CHECK_CONTAINS(ErrorOf(good, bad), "Mismatched ALLREDUCE tensor shapes: rank 0 has [2, 3]; rank 1 has [3, 2] (");
  bad = good;
  bad.parts[0].dtype = SE_FLOAT64;
  CHECK_CONTAINS(ErrorOf(good, bad), "data types: rank 0 has float32; rank 1 has float64");
  bad = good;
  bad.reduce_op = SE_MAX;
  CHECK_CONTAINS(ErrorOf(good, bad), "reduce ops: rank 0 has Sum; rank 1 has Max");
  bad = good;
  bad.op = SE_BROADCAST;
  CHECK_CONTAINS(ErrorOf(good, bad), "Mismatched operations: rank 0 has allreduce; rank 1 has broadcast");
  bad = good;
  bad.prescale = 0.25;
  CHECK_CONTAINS(ErrorOf(good, bad), "prescale factors: rank 0 has 1; rank 1 has 0.25");
  Signature list = good;
  list.parts = {Part{SE_FLOAT32, {5}}, Part{SE_FLOAT32, {7}}};
  CHECK_CONTAINS(ErrorOf(good, list), "tensor counts: rank 0 has 1 tensor; rank 1 has 2 tensors");
  Signature other_list = list;
  other_list.parts[1] = Part{SE_INT32, {8}};
  CHECK_CONTAINS(ErrorOf(list, other_list),
                 "rank 0 has 2 tensors, tensor 1 of float32 [7]; rank 1 has 2 tensors, tensor 1 of int32 [8]");
}

void GroupsRanksThatAgree() {
  Coordinator c({0, 1, 2, 3}, 0);
  for (int rank = 0; rank < 4; ++rank) c.Add(rank, Allreduce("a", {rank == 2 ? 5 : 4}), kStart);
  CHECK_CONTAINS(c.TakeReady().at(0).text, "ranks 0, 1, 3 have [4]; rank 2 has [5]");
}

void SaysWhatToDo() {
  const Signature named = Allreduce("a", {3});
  const Signature other = Allreduce("a", {4});
  CHECK_CONTAINS(ErrorOf(named, other), "rank 1 has [4] (name 'a'). All ranks must make the same call");
  Signature unnamed = named;
  Signature other_unnamed = other;
  unnamed.name = other_unnamed.name = "allreduce.noname";
  unnamed.number = other_unnamed.number = 7;
  CHECK_CONTAINS(ErrorOf(unnamed, other_unnamed), "(name 'allreduce.noname.7'). Calls without a name are matched");
}

void AllgatherCollectsRows() {
  Coordinator c({0, 1}, 0);
  Signature gather = Allreduce("g", {0, 3});
  gather.op = SE_ALLGATHER;
  c.Add(0, gather, kStart);
  gather.parts[0].dims = {5, 3};
  c.Add(1, gather, kStart);
  const Response response = c.TakeReady().at(0);
  CHECK(response.text.empty());
  CHECK((response.rows == std::vector<int64_t>{0, 5}));
  gather.parts[0].dims = {5, 4};
  Signature other = gather;
  other.parts[0].dims = {5, 3};
  CHECK_CONTAINS(ErrorOf(gather, other), "beyond the first dimension: rank 0 has [4]; rank 1 has [3]");
}

void JoinedRanksNeedNotAsk() {
  Coordinator c({5, 7}, 0);
  Signature join = Allreduce("join");
  join.op = SE_JOIN;
  join.parts.clear();
  c.Add(0, Allreduce("a"), kStart);
  CHECK(c.TakeReady().empty());
  c.Add(1, join, kStart);
  auto responses = c.TakeReady();
  CHECK_EQ(responses.size(), size_t{1});
  CHECK_EQ(responses[0].signatures.size(), size_t{1});
  CHECK(c.has_waiting());
  Signature gather = Allreduce("g");
  gather.op = SE_ALLGATHER;
  c.Add(0, gather, kStart);
  CHECK_CONTAINS(c.TakeReady().at(0).text, "rank 7 has called join()");
  Signature max = Allreduce("m");
  max.reduce_op = SE_MAX;
  c.Add(0, max, kStart);
  CHECK_CONTAINS(c.TakeReady().at(0).text, "Max is not possible once rank 7 has called join()");
  c.Add(0, join, kStart);
  responses = c.TakeReady();
  CHECK_EQ(responses.size(), size_t{1});
  CHECK(responses[0].kind == Response::Kind::kJoined);
  CHECK_EQ(responses[0].last_joined, 0);
  CHECK(!c.has_waiting());
}

void StallsAreToldOnceAndCanFail() {
  Coordinator c({0, 1, 2}, 0);
  c.Add(0, Allreduce("a"), At(0));
  c.Add(1, Allreduce("b"), At(5));
  CHECK(c.TakeStalled(10, At(9)).empty());
  const auto stalls = c.TakeStalled(10, At(11));
  CHECK_EQ(stalls.size(), size_t{1});
  CHECK_EQ(stalls[0].Describe(), std::string("allreduce 'a' has waited 11 s for ranks 1, 2, which did not submit it"));
  CHECK(c.TakeStalled(10, At(12)).empty());
  c.FailStalled(12, At(13));
  const auto responses = c.TakeReady();
  CHECK_EQ(responses.size(), size_t{1});
  CHECK_CONTAINS(responses[0].text, "ranks 1, 2");
  CHECK(c.has_waiting());  // b is younger
}

}  // namespace

int main() {
  return RunTests({{"ready when all have asked", ReadyWhenAllHaveAsked},
                   {"fuses up to the threshold", FusesUpToTheThreshold},
                   {"unnamed meet by number", UnnamedMeetByNumber},
                   {"who is late for a shutdown is left out of it", WhoIsLateForAShutdownIsLeftOutOfIt},
                   {"what was given up is not waited for again", WhatWasGivenUpIsNotWaitedForAgain},
                   {"says what differs", SaysWhatDiffers},
                   {"groups ranks that agree", GroupsRanksThatAgree},
                   {"says what to do", SaysWhatToDo},
                   {"allgather collects rows", AllgatherCollectsRows},
                   {"joined ranks need not ask", JoinedRanksNeedNotAsk},
                   {"stalls are told once and can fail", StallsAreToldOnceAndCanFail}});
}
