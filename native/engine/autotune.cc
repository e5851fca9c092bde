#include "engine/autotune.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "transport/segment.h"

namespace spark_estimator {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;
// The final comparison: the start and the best once more.
constexpr int kConfirmations = 2;

constexpr const char* kHeader =
    "hierarchical_allreduce,hierarchical_allgather,cache_enabled,cycle_time_ms,tensor_fusion_threshold,score,"
    "one_shot_bytes,exchange_bytes,ring_bytes\n";

}  // namespace

double Autotune::Trial::Median() const { return scores[scores.size() / 2]; }

double Autotune::Trial::Scatter() const { return (scores[scores.size() * 3 / 4] - scores[scores.size() / 4]) / 2; }

Autotune::Autotune(const Options& options, const Parameters& start)
    : options_(options), current_(start), warmups_left_(options.warmup_samples), rows_(kHeader) {
  start_.parameters = best_.parameters = start;
  const auto bytes_axis = [&](int64_t least, int64_t most, auto get, auto set) {
    axes_.push_back({least, most, get, set});
  };
  // A job that switched fusion off has its reasons: there is no way from 0 to a threshold by factors.
  if (options.fusion && start.fusion_threshold_bytes > 0) {
    bytes_axis(
        64 * kKiB, 256 * kMiB, [](const Parameters& p) { return p.fusion_threshold_bytes; },
        [](Parameters* p, int64_t value) { p->fusion_threshold_bytes = value; });
  }
  if (options.streams) {
    bytes_axis(
        kKiB, kMiB, [](const Parameters& p) { return static_cast<int64_t>(p.tuning.exchange_bytes); },
        [](Parameters* p, int64_t value) { p->tuning.exchange_bytes = static_cast<size_t>(value); });
    bytes_axis(
        32 * kKiB, 64 * kMiB, [](const Parameters& p) { return static_cast<int64_t>(p.tuning.ring_bytes); },
        [](Parameters* p, int64_t value) { p->tuning.ring_bytes = static_cast<size_t>(value); });
  }
  if (options.one_shot) {
    bytes_axis(
        256, static_cast<int64_t>(SegmentLayout::kSmallBytes),
        [](const Parameters& p) { return static_cast<int64_t>(p.tuning.one_shot_bytes); },
        [](Parameters* p, int64_t value) { p->tuning.one_shot_bytes = static_cast<size_t>(value); });
  }
  if (options.hierarchical) {
    axes_.push_back({0, 1, [](const Parameters& p) { return static_cast<int64_t>(p.tuning.hierarchical); },
                     [](Parameters* p, int64_t value) { p->tuning.hierarchical = static_cast<int32_t>(value); }});
  }
}

std::optional<Parameters> Autotune::Executed(std::string_view name, int64_t bytes, Time now) {
  if (settled()) return std::nullopt;
  step_bytes_ += bytes;
  const bool lost = began_with_.empty() || ++operations_ > kMostOperations || Replaces(name);
  if (!lost && name != began_with_) return std::nullopt;
  if (lost) began_with_ = name;
  operations_ = 0;
  candidate_.clear();
  since_candidate_ = 0;
  const int64_t moved = std::exchange(step_bytes_, 0);
  const Seconds elapsed = now - std::exchange(began_, now);
  return lost ? std::nullopt : Step(moved, elapsed);
}

// Whether `name` has come around several times since the name that began the step, which may never come again: a job
// begins with names of its own.
bool Autotune::Replaces(std::string_view name) {
  if (name == began_with_) return false;
  if (name == candidate_) return ++candidate_seen_ >= kCandidateTurns;
  if (!candidate_.empty() && ++since_candidate_ < candidate_patience_) return false;
  if (!candidate_.empty()) candidate_patience_ *= 2;
  candidate_ = name;
  candidate_seen_ = since_candidate_ = 0;
  return false;
}

std::optional<Parameters> Autotune::Step(int64_t bytes, Seconds elapsed) {
  if (settled() || bytes <= 0 || elapsed <= Seconds(0)) return std::nullopt;
  if (std::exchange(changing_, false)) return std::nullopt;
  bytes_ += bytes;
  seconds_ += elapsed.count();
  if (++steps_ < options_.steps_per_sample) return std::nullopt;
  scores_.push_back(static_cast<double>(bytes_) / seconds_);
  steps_ = 0;
  bytes_ = 0;
  seconds_ = 0;
  return static_cast<int>(scores_.size()) < kMeasurements ? std::nullopt : EndTrial();
}

std::optional<Parameters> Autotune::EndTrial() {
  Trial trial{current_, std::exchange(scores_, {})};
  std::ranges::sort(trial.scores);
  if (warmups_left_ > 0) {
    --warmups_left_;
    return std::nullopt;
  }
  ++trials_;
  Log(trial.parameters, trial.Median());
  switch (phase_) {
    case Phase::kSearch:
      if (tried_.empty()) {
        start_ = best_ = trial;
      } else if (Beats(trial, best_)) {
        best_ = std::move(trial);
        moved_here_ = moved_in_round_ = true;
      } else {
        TurnOrNextAxis();
      }
      tried_.push_back(current_);
      return SearchOn();
    case Phase::kConfirmStart:
      start_ = std::move(trial);
      phase_ = Phase::kConfirmBest;
      return SwitchTo(best_.parameters);
    case Phase::kConfirmBest:
      best_ = std::move(trial);
      return Settle(Beats(best_, start_) ? best_ : start_);
    case Phase::kSettled:
      break;
  }
  return std::nullopt;
}

std::optional<Parameters> Autotune::SearchOn() {
  if (trials_ + kConfirmations < options_.max_samples) {
    if (const auto point = NextPoint()) return SwitchTo(*point);
  }
  if (best_.parameters == start_.parameters) return Settle(start_);
  phase_ = Phase::kConfirmStart;
  return SwitchTo(start_.parameters);
}

std::optional<Parameters> Autotune::NextPoint() {
  for (;;) {
    if (axis_ == axes_.size()) {
      if (!moved_in_round_) factor_ /= 2;
      if (factor_ < 2 || axes_.empty()) return std::nullopt;
      axis_ = 0;
      moved_in_round_ = false;
    }
    if (const auto point = Moved(axes_[axis_]); point && std::ranges::find(tried_, *point) == tried_.end())
      return point;
    TurnOrNextAxis();
  }
}

std::optional<Parameters> Autotune::Moved(const Axis& axis) const {
  const int64_t from = axis.get(best_.parameters);
  const bool is_switch = axis.most == 1;
  int64_t to = upward_ ? axis.most : axis.least;
  if (!is_switch) to = upward_ ? std::min(to, from * factor_) : std::max(to, from / factor_);
  // Beyond its limits (the user's start may be) a parameter moves only back.
  if (upward_ ? to <= from : to >= from && !is_switch) return std::nullopt;
  Parameters point = best_.parameters;
  axis.set(&point, to);
  if (point.tuning.exchange_bytes > point.tuning.ring_bytes) return std::nullopt;
  return point;
}

void Autotune::TurnOrNextAxis() {
  if (upward_ && !moved_here_) {
    upward_ = false;
    return;
  }
  ++axis_;
  upward_ = true;
  moved_here_ = false;
}

bool Autotune::Beats(const Trial& challenger, const Trial& holder) const {
  const double scatter = std::max(challenger.Scatter(), holder.Scatter());
  return challenger.Median() - holder.Median() > options_.noise * scatter;
}

std::optional<Parameters> Autotune::Settle(const Trial& trial) {
  phase_ = Phase::kSettled;
  Log(trial.parameters, trial.Median());
  return SwitchTo(trial.parameters);
}

std::optional<Parameters> Autotune::SwitchTo(const Parameters& parameters) {
  if (parameters == current_) return std::nullopt;
  current_ = parameters;
  changing_ = true;
  return current_;
}

void Autotune::Log(const Parameters& parameters, double score) {
  char row[256];
  std::snprintf(row, sizeof(row), "%d,0,1,0,%g,%g,%zu,%zu,%zu\n", parameters.tuning.hierarchical,
                static_cast<double>(parameters.fusion_threshold_bytes) / kMiB, score / 1e6,
                parameters.tuning.one_shot_bytes, parameters.tuning.exchange_bytes, parameters.tuning.ring_bytes);
  rows_ += row;
}

std::string Autotune::TakeCsvRows() { return std::exchange(rows_, {}); }

}  // namespace spark_estimator
