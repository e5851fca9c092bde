// Horovod's timeline: what each op waited for and how long it ran, recorded by the thread that runs it, written by a
// separate thread as a Chrome trace (chrome://tracing, ui.perfetto.dev).
#ifndef SPARK_ESTIMATOR_ENGINE_TIMELINE_H_
#define SPARK_ESTIMATOR_ENGINE_TIMELINE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/status.h"
#include "engine/observe/flight_recorder.h"

namespace spark_estimator {

class TraceBuffer;
class TraceFile;
struct TraceEvent;

// All functions may be called from any thread.
class Timeline {
 public:
  Timeline();
  ~Timeline();  // stops
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Begins to write `path`, which is created or overwritten. `rank` is this rank in the job, `size` the number of ranks
  // of the group. SE_INVALID_ARGUMENT if one is being written, SE_SYSTEM_ERROR if the file cannot be. A disk that is
  // full later only ends the trace, with a line on stderr.
  Status Start(const std::string& path, int rank, int size, const std::string& rank_name, bool mark_cycles,
               int process_set = 0);
  // Writes what is recorded and completes the file. Idempotent. Blocks for the disk.
  void Stop();

  // Ask first: with this the cost of a timeline that is off is one load.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // ... and whether Cycle() is wanted.
  bool marks_cycles() const { return marks_cycles_.load(std::memory_order_relaxed); }

  // The two below copy into memory and do no I/O; what the disk is too slow for is dropped and counted. Without
  // effect when the timeline is off.

  // An op that ended: NEGOTIATE_<OP>, then <OP> with the algorithm's name inside. For each name of a fused op, so that
  // each has its row; the fused ones bear the same sequence.
  void Op(const OpRecord& record);
  // The engine's thread woke at this time.
  void Cycle(Time at);

 private:
  Status StartWriter();
  void StopWriter();
  void WriteUntilStopped();
  void GiveUp(const Status& status);
  void Record(const TraceEvent& event, std::string_view name);

  std::atomic<bool> on_{false};
  std::atomic<bool> marks_cycles_{false};

  std::mutex control_;  // held by Start and Stop
  std::thread writer_;
  std::string rank_name_;            // "rank 1, host (pid 123)"
  std::unique_ptr<TraceFile> file_;  // the writer's while there is one
  std::unique_ptr<TraceBuffer> written_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::unique_ptr<TraceBuffer> filling_;  // null when nothing is to be recorded
  bool stopping_ = false;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_TIMELINE_H_
