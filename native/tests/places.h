// What tests of the whole engine share: the places where they are to hold (one host, sockets, hosts of several ranks),
// and plans.
#ifndef SPARK_ESTIMATOR_TESTS_PLACES_H_
#define SPARK_ESTIMATOR_TESTS_PLACES_H_

#include <functional>
#include <iostream>
#include <vector>

#include "ranks.h"

namespace spark_estimator::testing {

struct Place {
  const char* name;
  int size;
  JobOptions options;
};

inline const std::vector<Place> kPlaces = {
    {"alone", 1, {.channel = Channel::kStream}},
    {"one host of 2", 2, {.channel = Channel::kShared}},
    {"one host of 3", 3, {.channel = Channel::kShared}},
    {"2 by sockets", 2, {.channel = Channel::kStream}},
    {"4 by sockets", 4, {.channel = Channel::kStream}},
    {"2 hosts of 2", 4, {.channel = Channel::kShared, .ranks_per_host = 2}},
    {"hosts of 3 and 2", 5, {.channel = Channel::kShared, .ranks_per_host = 3}},
    {"9 in an overlay", 9, {.channel = Channel::kStream, .overlay = true, .late_data = true}},
    {"hosts of 3 in an overlay",
     9,
     {.channel = Channel::kShared, .overlay = true, .late_data = true, .ranks_per_host = 3}},
    {"no cache", 2, {.channel = Channel::kShared, .cache_capacity = 0}},
};

inline void Everywhere(const std::function<void(Rank&)>& body) {
  for (const Place& place : kPlaces) {
    std::cout << "        " << place.name << std::endl;
    RunRanks(place.size, place.options, body);
  }
}

constexpr int kTurns = 3;  // the first is negotiated, the others are remembered

// Runs `step(0)`, `step(1)` and so on: `known` times, after which all that it submits is known, and then `times` times,
// in which no rank leaves the rounds. A rank that the machine did not run for a second makes another one report a stall
// (RoundDriver::kReportStallAfter), and for each report all leave at most once: then the same is tried again.
inline void CheckSteady(const Rank& me, int known, int times, const std::function<void(int)>& step) {
  const auto count = [&] {
    std::vector<int64_t> counts;
    for (const char* name : {"slow_phases", "responses", "cache_misses", "stalled_rounds"}) {
      counts.push_back(se_counter(me.engine, name));
    }
    return counts;
  };
  int64_t stalls = 0;  // of all ranks
  // Known before it is needed: a new request makes the others leave, which may not have counted yet.
  const auto sum = [&] { me.RunOk(Asked("stalls", SE_ALLREDUCE).With(&stalls, &stalls, {}, SE_INT64)); };
  int next = 0;
  do {
    sum();
    for (const int end = next + known; next < end; ++next) step(next);
    const std::vector<int64_t> before = count();
    for (const int end = next + times; next < end; ++next) step(next);
    const std::vector<int64_t> after = count();
    stalls = after[3] - before[3];
    sum();
    CHECK(after[0] - before[0] <= stalls);
    for (size_t k = 0; k < 3 && stalls == 0; ++k) CHECK_EQ(after[k], before[k]);
  } while (stalls != 0);
}

struct OwnedPlan {
  se_plan* plan = nullptr;
  OwnedPlan(const Rank& me, Asked asked) { CHECK_EQ(se_plan_create(me.engine, asked.get(), &plan), SE_OK); }
  ~OwnedPlan() { se_plan_destroy(plan); }
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_PLACES_H_
