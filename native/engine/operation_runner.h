// Runs one operation that the ranks agreed on, records it, and completes its requests.
//
// States: kIdle -> kRunning -> kIdle; a run that fails leaves the engine to break. Runs do not nest: a second Run while
// one is running is refused with SE_INTERNAL.
//
// Threads: used by the driving thread.
#ifndef SPARK_ESTIMATOR_ENGINE_OPERATION_RUNNER_H_
#define SPARK_ESTIMATOR_ENGINE_OPERATION_RUNNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/gpu/gpu_executor.h"
#include "engine/observe/counters.h"
#include "engine/observe/flight_recorder.h"
#include "engine/observe/timeline.h"
#include "engine/requests/request.h"
#include "engine/requests/request_table.h"

namespace spark_estimator {

class OperationRunner {
 public:
  enum class State : uint8_t {
    kIdle,
    kRunning
  };
  enum class AgreedBy : uint8_t {
    kRounds,
    kCoordinator
  };

  // What it uses; all outlive it.
  struct Parts {
    Executor* executor = nullptr;
    GpuExecutor* gpu = nullptr;  // null where no request is of GPU tensors
    RequestTable* requests = nullptr;
    Counters* counters = nullptr;
    FlightRecorder* recorder = nullptr;
    Timeline* timeline = nullptr;
  };

  explicit OperationRunner(Parts parts) : parts_(parts) {}

  State state() const { return state_; }
  // While one runs: its name in messages, "allreduce 'x' (8 bytes)"; and whether its tensors are in host memory.
  std::string Label() const;
  bool runs_on_host() const { return running_ != nullptr && (*running_)[0]->signature->place == SE_HOST; }
  // Operations so far, those that failed on all ranks included. The same on all ranks that got so far.
  int64_t executed() const { return executed_; }

  // Runs the requests as one operation and completes them. `rows`: as in Response. An error leaves them to the break of
  // the engine, and the failure recorded.
  Status Run(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows, AgreedBy agreed_by);
  // Completes a request that ran on inline data.
  void CompleteInline(const RequestPtr& request);
  // An operation in which nothing ran: it failed on all ranks before it began, or all have joined.
  void CountWithoutRun() { executed_ += 1; }
  // Records a request that failed before it ran.
  void RecordFailure(const Request& request, int32_t status, Time now) {
    Record(request, 1, "", now, now, status, AgreedBy::kCoordinator);
  }

 private:
  // `num_requests`: 0 for the second and later requests of one operation, which have only a row in the timeline.
  void Record(const Request& request, int num_requests, const char* algorithm, Time started, Time finished,
              int32_t status, AgreedBy agreed_by);

  const Parts parts_;
  State state_ = State::kIdle;
  const std::vector<RequestPtr>* running_ = nullptr;  // while one runs
  int64_t executed_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_OPERATION_RUNNER_H_
