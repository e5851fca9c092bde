// Autotune against imagined jobs whose best parameters are known: it finds them, survives noise, and never does harm.
#include "engine/autotune.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <sstream>

#include "check.h"
#include "transport/segment.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kStepBytes = 100 * kMiB;

Parameters Start() { return {.fusion_threshold_bytes = 64 * kMiB, .tuning = {}}; }

// Seconds of a step with given parameters.
using Job = std::function<double(const Parameters&)>;

double Octaves(double a, double b) { return std::abs(std::log2(a / b)); }

// 0.1 s a step at the best point, a fifth more for each octave away from it.
Job BestAt(double fusion, double exchange, double ring, int hierarchical) {
  return [=](const Parameters& p) {
    const double away = Octaves(static_cast<double>(p.fusion_threshold_bytes), fusion) +
                        Octaves(static_cast<double>(p.tuning.exchange_bytes), exchange) +
                        Octaves(static_cast<double>(p.tuning.ring_bytes), ring) +
                        (p.tuning.hierarchical == hierarchical ? 0 : 1);
    return 0.1 * (1 + 0.2 * away);
  };
}

struct Outcome {
  Parameters settled;
  int steps = 0;
  std::set<int64_t> fusions;  // that were tried
  std::string log;
};

Outcome Run(Autotune* autotune, const Job& job, const std::function<double()>& noise = [] { return 1.0; }) {
  Outcome outcome;
  Parameters in_force = autotune->current();
  while (!autotune->settled()) {
    CHECK(++outcome.steps < 20000);
    outcome.fusions.insert(in_force.fusion_threshold_bytes);
    if (const auto next = autotune->Step(kStepBytes, Seconds(job(in_force) * noise()))) {
      CHECK(!(*next == in_force));
      in_force = *next;
    }
    CHECK(autotune->current() == in_force);
    outcome.log += autotune->TakeCsvRows();
  }
  outcome.settled = in_force;
  return outcome;
}

void FindsWhatIsBest() {
  const Job job = BestAt(4 * kMiB, 4 << 10, 2 << 20, 1);
  Autotune::Options options;
  options.max_samples = 40;
  Autotune autotune(options, Start());
  const Parameters found = Run(&autotune, job).settled;
  CHECK_EQ(found.fusion_threshold_bytes, 4 * kMiB);
  CHECK_EQ(found.tuning.exchange_bytes, size_t{4 << 10});
  CHECK_EQ(found.tuning.ring_bytes, size_t{2 << 20});
  CHECK_EQ(found.tuning.hierarchical, 1);
}

void EndsWithinItsSamples() {
  for (const int max_samples : {1, 3, 4, 10, 20}) {
    Autotune::Options options{.warmup_samples = 2, .steps_per_sample = 3, .max_samples = max_samples};
    Autotune autotune(options, Start());
    const Outcome outcome = Run(&autotune, BestAt(kMiB, 1 << 10, 64 << 20, 0));
    const int samples = options.warmup_samples + max_samples;
    // A step more a trial: the one in which the ranks change over.
    CHECK(outcome.steps <= samples * (Autotune::kMeasurements * options.steps_per_sample + 1));
    CHECK(!autotune.Step(kStepBytes, Seconds(1)));
  }
}

void StaysWhenNothingIsBetter() {
  const Parameters start = Start();
  Autotune autotune({}, start);
  CHECK(Run(&autotune, BestAt(64 * kMiB, 16 << 10, 512 << 10, -1)).settled == start);
}

// By its own measure: the truth of a noisy job is known here, and what it settles on must not be worse than the start
// by more than the noise lets anybody see.
void NoiseDoesNoHarm() {
  std::mt19937 random(11);
  double gain = 0;
  for (int round = 0; round < 200; ++round) {
    const auto power = [&](int from, int to) {
      return std::exp2(std::uniform_int_distribution<int>(from, to)(random));
    };
    const Job job = BestAt(power(18, 27), power(10, 18), power(18, 24), static_cast<int>(random() % 3) - 1);
    std::lognormal_distribution<double> noise(0, 0.1);
    Autotune autotune({.warmup_samples = 1, .steps_per_sample = 4}, Start());
    const Parameters settled = Run(&autotune, job, [&] { return noise(random); }).settled;
    CHECK(job(settled) <= job(Start()) * 1.02);
    gain += job(Start()) / job(settled) / 200;
  }
  CHECK(gain > 2);  // and on average it does much good
}

// A job on which nothing matters, and whose machine has good and bad hours: luck must not move it far from the start.
void LuckAloneIsNotBelieved() {
  std::mt19937 random(5);
  int moved = 0;
  for (int round = 0; round < 100; ++round) {
    std::lognormal_distribution<double> noise(0, 0.3);
    Autotune autotune({}, Start());
    moved += !(Run(&autotune, [](const Parameters&) { return 0.1; }, [&] { return noise(random); }).settled == Start());
  }
  CHECK(moved < 40);
}

// The first trials went well only because the machine was idle then: measured again, the start wins.
void TheStartComesBackWhenItIsBetterAfterAll() {
  Autotune autotune({.warmup_samples = 0}, Start());
  int changes = 0;
  while (!autotune.settled()) {
    const bool is_start = autotune.current() == Start();
    const bool confirming = is_start && changes > 0;
    if (confirming) changes = 1000;
    const bool start_is_fast = changes >= 1000;
    const double seconds = is_start ? (start_is_fast ? 0.02 : 0.1) : (start_is_fast ? 0.1 : 0.05);
    if (autotune.Step(kStepBytes, Seconds(seconds))) ++changes;
  }
  CHECK(autotune.current() == Start());
}

void TheSameMeasurementsGiveTheSameParameters() {
  const auto run = [] {
    std::mt19937 random(3);
    std::lognormal_distribution<double> noise(0, 0.2);
    Autotune autotune({}, Start());
    return Run(&autotune, BestAt(kMiB, 1 << 14, 1 << 22, 0), [&] { return noise(random); }).log;
  };
  CHECK_EQ(run(), run());
}

void WhatIsFixedStaysAsItIs() {
  Autotune::Options options;
  options.fusion = options.streams = options.hierarchical = false;
  Autotune one_host(options, Start());
  const Parameters found = Run(&one_host, [](const Parameters& p) {
                             return 0.1 + static_cast<double>(p.tuning.one_shot_bytes) * 1e-6;
                           }).settled;
  Parameters expected = Start();
  expected.tuning.one_shot_bytes = found.tuning.one_shot_bytes;
  CHECK(found == expected);
  CHECK(found.tuning.one_shot_bytes < Start().tuning.one_shot_bytes);

  // Fusion that is switched off stays off; with nothing else to move, there is nothing to do.
  options.one_shot = false;
  options.fusion = true;
  Autotune nothing(options, Parameters{});
  CHECK(Run(&nothing, [](const Parameters&) { return 0.1; }).settled == Parameters{});
}

void NoLimitIsPassed() {
  for (const double direction : {1e-9, 1e9}) {
    Autotune autotune({.warmup_samples = 0, .max_samples = 200}, Start());
    int64_t least = INT64_MAX;
    int64_t most = 0;
    while (!autotune.settled()) {
      const Parameters& p = autotune.current();
      CHECK(p.tuning.exchange_bytes <= p.tuning.ring_bytes);
      CHECK(p.tuning.one_shot_bytes <= SegmentLayout::kSmallBytes && p.tuning.one_shot_bytes > 0);
      CHECK(p.tuning.hierarchical >= -1 && p.tuning.hierarchical <= 1);
      least = std::min(least, p.fusion_threshold_bytes);
      most = std::max(most, p.fusion_threshold_bytes);
      const double octave = std::log2(static_cast<double>(p.fusion_threshold_bytes));
      (void)autotune.Step(kStepBytes, Seconds(direction < 1 ? octave : 100 - octave));
    }
    CHECK(least >= 64 << 10 && most <= 256 * kMiB);
    CHECK(direction < 1 ? least < kMiB : most > 64 * kMiB);
  }
  // A start outside the limits is left alone, or moves back.
  Parameters huge = Start();
  huge.fusion_threshold_bytes = int64_t{1} << 40;
  Autotune autotune({}, huge);
  for (const int64_t tried : Run(&autotune, BestAt(1e9, 1 << 14, 1 << 19, -1)).fusions) {
    CHECK(tried <= huge.fusion_threshold_bytes);
  }
}

void EmptyStepsAreIgnored() {
  Autotune autotune({.warmup_samples = 0, .steps_per_sample = 1}, Start());
  for (int step = 0; step < 1000; ++step) {
    CHECK(!autotune.Step(0, Seconds(1)));
    CHECK(!autotune.Step(kStepBytes, Seconds(0)));
  }
  // One step of changing over, four measurements: the fifth ends the first trial.
  for (int step = 0; step < Autotune::kMeasurements; ++step) CHECK(!autotune.Step(kStepBytes, Seconds(1)));
  CHECK(autotune.Step(kStepBytes, Seconds(1)).has_value());
}

// Three tensors a step, in another order each time and fused or not: what counts is that the first one comes again.
void AStepEndsWhenItsFirstNameComesAgain() {
  Autotune by_name({.warmup_samples = 0, .steps_per_sample = 1}, Start());
  Autotune by_step({.warmup_samples = 0, .steps_per_sample = 1}, Start());
  const auto at = [](double seconds) { return Time{} + std::chrono::duration_cast<Clock::duration>(Seconds(seconds)); };
  CHECK(!by_name.Executed("a", 5, at(0)));
  for (int step = 1; !by_step.settled(); ++step) {
    CHECK(!by_name.Executed(step % 2 == 0 ? "b" : "c", kStepBytes - 3, at(10 * step - 7)));
    CHECK(!by_name.Executed(step % 2 == 0 ? "c" : "b", 1, at(10 * step - 6)));
    CHECK(!by_name.Executed("without a name " + std::to_string(step), 1, at(10 * step - 5)));
    CHECK(by_name.Executed("a", 1, at(10 * step)) == by_step.Step(kStepBytes, Seconds(10)));
  }
  CHECK(by_name.settled());
  CHECK_EQ(by_name.TakeCsvRows(), by_step.TakeCsvRows());
}

void ANameThatNeverComesAgainIsReplaced() {
  Autotune autotune({.warmup_samples = 0, .steps_per_sample = 1}, Start());
  double now = 0;
  const auto at = [&] { return Time{} + std::chrono::duration_cast<Clock::duration>(Seconds(now += 0.1)); };
  CHECK(!autotune.Executed("once", kStepBytes, at()));
  int changes = 0;
  for (int i = 0; i < 3 * Autotune::kMostOperations; ++i) changes += autotune.Executed("always", 1, at()).has_value();
  CHECK(changes > 0);
}

// A job begins with names of its own, the broadcasts of its parameters.
void TheNamesOfAStepAreFoundSoon() {
  Autotune autotune({.warmup_samples = 0, .steps_per_sample = 1}, Start());
  double now = 0;
  const auto at = [&] { return Time{} + std::chrono::duration_cast<Clock::duration>(Seconds(now += 0.1)); };
  for (int i = 0; i < 300; ++i) CHECK(!autotune.Executed("once " + std::to_string(i), kStepBytes, at()));
  int changes = 0;
  for (int i = 0; i < 1000; ++i) changes += autotune.Executed("bucket " + std::to_string(i % 5), 1, at()).has_value();
  CHECK(changes > 0);
}

void TheLogHasHorovodsColumnsAndARowATrial() {
  Autotune autotune({.warmup_samples = 1, .max_samples = 8}, Start());
  std::istringstream log(Run(&autotune, BestAt(16 * kMiB, 1 << 14, 1 << 19, -1)).log);
  std::string line;
  CHECK(std::getline(log, line).good());
  CHECK_EQ(
      line.find(
          "hierarchical_allreduce,hierarchical_allgather,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score"),
      size_t{0});
  const auto columns = std::ranges::count(line, ',');
  std::vector<std::string> rows;
  while (std::getline(log, line)) rows.push_back(line);
  CHECK_EQ(rows.size(), size_t{9});  // eight trials and the last word
  for (const std::string& row : rows) CHECK_EQ(std::ranges::count(row, ','), columns);
  CHECK_EQ(rows.front().find("-1,0,1,0,64,"), size_t{0});
  CHECK_EQ(rows.back().find("-1,0,1,0,16,"), size_t{0});
}

}  // namespace

int main() {
  return RunTests({{"finds what is best", FindsWhatIsBest},
                   {"ends within its samples", EndsWithinItsSamples},
                   {"stays when nothing is better", StaysWhenNothingIsBetter},
                   {"noise does no harm", NoiseDoesNoHarm},
                   {"luck alone is not believed", LuckAloneIsNotBelieved},
                   {"the start comes back when it is better after all", TheStartComesBackWhenItIsBetterAfterAll},
                   {"the same measurements give the same parameters", TheSameMeasurementsGiveTheSameParameters},
                   {"what is fixed stays as it is", WhatIsFixedStaysAsItIs},
                   {"no limit is passed", NoLimitIsPassed},
                   {"empty steps are ignored", EmptyStepsAreIgnored},
                   {"a step ends when its first name comes again", AStepEndsWhenItsFirstNameComesAgain},
                   {"a name that never comes again is replaced", ANameThatNeverComesAgainIsReplaced},
                   {"the names of a step are found soon", TheNamesOfAStepAreFoundSoon},
                   {"the log has Horovod's columns and a row a trial", TheLogHasHorovodsColumnsAndARowATrial}});
}
