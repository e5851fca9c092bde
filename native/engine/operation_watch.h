// Whether the operation that runs makes progress, and when to report one that does not.
//
// Without progress: watched -> reported (kReport, once) -> given up (kGiveUp, at each check). Any progress restarts the
// time.
//
// It does no input or output and reads no clock. Threads: used by the driving thread, but for Text().
#ifndef SPARK_ESTIMATOR_ENGINE_OPERATION_WATCH_H_
#define SPARK_ESTIMATOR_ENGINE_OPERATION_WATCH_H_

#include <cstdint>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace spark_estimator {

class OperationWatch {
 public:
  enum class Finding : uint8_t {
    kNone,
    kReport,
    kGiveUp
  };

  // Seconds without progress until an operation is reported, and until it is given up; 0: never.
  OperationWatch(double warning_seconds, double shutdown_seconds)
      : warning_seconds_(warning_seconds), shutdown_seconds_(shutdown_seconds) {}

  // A look at the operation that waits. `progress` increases with each operation, and with each step of one.
  Finding Look(int64_t progress, Time now);
  // How long the last look was after the first one without progress.
  double stalled_seconds() const { return stalled_seconds_; }

  // What is waited for, for Text(). Empty when nothing runs any more.
  void SetText(std::string text);
  // By any thread.
  std::string Text() const;

 private:
  const double warning_seconds_;
  const double shutdown_seconds_;
  int64_t progress_ = -1;
  Time since_{};
  double stalled_seconds_ = 0;
  bool reported_ = false;
  bool has_text_ = false;
  mutable std::mutex mutex_;
  std::string text_;  // guarded by mutex_
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_OPERATION_WATCH_H_
