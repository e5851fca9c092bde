// Rank 0's reports of requests that some ranks never submit: a line in the log, a question to each missing rank about
// what it is doing, and the end of the request when it has waited too long.
//
// A question to a rank: open -> answered (Answered), overdue (TakeOverdue) or dropped (RankLeft). Only an open
// question can be answered: a second or late answer, or one to a question that was never asked, is ignored.
//
// It does no input or output and reads no clock: lines and questions are returned to the caller.
// Threads: used by the driving thread alone.
#ifndef SPARK_ESTIMATOR_ENGINE_STALL_REPORTER_H_
#define SPARK_ESTIMATOR_ENGINE_STALL_REPORTER_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/negotiation/coordinator.h"

namespace spark_estimator {

class StallReporter {
 public:
  struct Question {
    int rank;
    int64_t number;
    std::string about;  // what the other ranks wait for
  };

  // Seconds until a request that waits is reported, and until it fails; 0: never.
  StallReporter(double warning_seconds, double shutdown_seconds, Time now);

  bool enabled() const { return warning_seconds_ > 0 || shutdown_seconds_ > 0; }
  // When Check() is due, while requests wait.
  Time next_check() const { return next_check_; }
  // Looks for requests that wait too long, unless it looked less than a second ago. Fails those past the second limit.
  // Appends to `lines` what rank 0 logs; returns the questions to be sent.
  std::vector<Question> Check(Coordinator& coordinator, Time now, std::vector<std::string>* lines);

  bool has_open_questions() const { return !open_questions_.empty(); }
  // When the first open question is overdue; Time::max() for none.
  Time next_deadline() const;
  // False for a question that is not open.
  bool Answered(int64_t number) { return open_questions_.erase(number) > 0; }
  // The ranks whose answers are overdue; their questions are closed.
  std::vector<int> TakeOverdue(Time now);
  // A rank that has left answers no questions.
  void RankLeft(int rank);

  // How long a process has to answer.
  static constexpr Seconds kAnswerTime{3.0};
  static constexpr Seconds kCheckInterval{1.0};

 private:
  struct OpenQuestion {
    int rank;
    Time deadline;
  };

  const double warning_seconds_;
  const double shutdown_seconds_;
  Time next_check_;
  int64_t next_number_ = 1;
  std::unordered_map<int64_t, OpenQuestion> open_questions_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_STALL_REPORTER_H_
