// Finds the parameters with which this job moves the most bytes a second, by trying them while it runs. No I/O, no
// clock: the same measurements always lead to the same parameters.
#ifndef SPARK_ESTIMATOR_ENGINE_AUTOTUNE_H_
#define SPARK_ESTIMATOR_ENGINE_AUTOTUNE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "algorithms/choose.h"
#include "base/clock.h"

namespace spark_estimator {

// What autotune may change, on all ranks at the same position.
struct Parameters {
  int64_t fusion_threshold_bytes = 0;  // small allreduces are run as one up to so many bytes; 0: fusion is off
  Tuning tuning = {};
  bool operator==(const Parameters&) const = default;
};

// A pattern search (Hooke and Jeeves 1961) over the logarithms of the parameters: from the best point known, one
// parameter at a time is moved by a factor of four, up, then down, and on in a direction that pays; when no move of
// four pays, by a factor of two. It needs no model of the job and at most twenty or so trials for the few parameters
// that there are, where Horovod fits a Gaussian process to as many. What seemed best has to beat the
// start once more, in fresh trials, before it stays: luck in one trial is not what a job runs with for days.
//
// On rank 0 only; not thread-safe.
class Autotune {
 public:
  struct Options {
    int warmup_samples = 3;     // samples that are not believed: caches fill, names are agreed
    int steps_per_sample = 10;  // a sample is the median of kMeasurements measurements of so many steps each
    int max_samples = 20;       // trials at most; the start's and two of the final comparison are among them
    double noise = 0.8;  // a gain counts when it exceeds so many times the samples' own scatter; 0: any gain counts
    // What there is to change: nothing that the user has set, nothing that this group of ranks has no use for.
    bool fusion = true;
    bool one_shot = true;      // several ranks of a host
    bool streams = true;       // several hosts
    bool hierarchical = true;  // several hosts of several ranks
  };

  Autotune(const Options& options, const Parameters& start);

  // Tells of an operation that is through. A step, as Horovod has it, ends when the name that began it comes around
  // again. Gives the parameters to go on with when they change.
  std::optional<Parameters> Executed(std::string_view name, int64_t bytes, Time now);
  // Tells of one step: the bytes that this rank gave to collectives in it and the time from the end of the step before.
  // Gives the parameters to go on with when they change. Steps without bytes or time are ignored.
  std::optional<Parameters> Step(int64_t bytes, Seconds elapsed);

  // True once nothing will change any more.
  bool settled() const { return phase_ == Phase::kSettled; }
  const Parameters& current() const { return current_; }

  // The log: a header, a row a trial, and a last row with what it settled on; with line ends. Horovod's columns first,
  // so that its readers find them: there is no cycle to tune here (0) and the cache has no switch of its own (1). Rows
  // that were taken are not given again; "" when there is nothing new.
  std::string TakeCsvRows();

  static constexpr int kMeasurements = 5;
  // A name that has not come again while another one came around so many times, or after so many operations, is not
  // part of any step; another one takes its place.
  static constexpr int kCandidateTurns = 3;
  static constexpr int kMostOperations = 10'000;

 private:
  bool Replaces(std::string_view name);

  enum class Phase {
    kSearch,
    kConfirmStart,
    kConfirmBest,
    kSettled
  };
  struct Trial {
    Parameters parameters;
    std::vector<double> scores;  // bytes a second, sorted
    double Median() const;
    double Scatter() const;  // half the distance between the quartiles
  };
  // A parameter that can be moved, and between which limits.
  struct Axis {
    int64_t least;
    int64_t most;
    int64_t (*get)(const Parameters&);
    void (*set)(Parameters*, int64_t);
  };

  std::optional<Parameters> EndTrial();
  // The next trial's parameters; ends the search when there are none.
  std::optional<Parameters> SearchOn();
  std::optional<Parameters> NextPoint();
  std::optional<Parameters> Moved(const Axis& axis) const;
  void TurnOrNextAxis();
  std::optional<Parameters> Settle(const Trial& trial);
  std::optional<Parameters> SwitchTo(const Parameters& parameters);
  bool Beats(const Trial& challenger, const Trial& holder) const;
  void Log(const Parameters& parameters, double score);

  const Options options_;
  std::vector<Axis> axes_;
  Phase phase_ = Phase::kSearch;
  Parameters current_;
  Trial start_;
  Trial best_;
  std::vector<Parameters> tried_;
  int trials_ = 0;
  int warmups_left_;

  // Where the search stands.
  size_t axis_ = 0;
  bool upward_ = true;
  bool moved_here_ = false;      // this direction has paid already
  bool moved_in_round_ = false;  // some axis has
  int64_t factor_ = 4;

  // The step that runs.
  std::string began_with_;
  std::string candidate_;
  int candidate_seen_ = 0;
  int since_candidate_ = 0;
  int candidate_patience_ = 256;  // operations that it has to come again
  Time began_{};
  int64_t step_bytes_ = 0;
  int operations_ = 0;

  // The trial that runs.
  bool changing_ = true;  // its first step is still one of changing over
  int steps_ = 0;
  int64_t bytes_ = 0;
  double seconds_ = 0;
  std::vector<double> scores_;
  std::string rows_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_AUTOTUNE_H_
