// One rank's membership of one job: the queue of requests, the thread that carries them out, and the links to the
// peers.
//
// RunCycle() is the one function to read: drain what was submitted, take in what the peers say, agree, execute. The
// class is in three files: engine_start.cc (creation), engine.cc (the callers' side), engine_thread.cc (its thread).
// All members below "engine thread only" belong to that thread once it runs; everything else is guarded by mutex_.
#ifndef SPARK_ESTIMATOR_ENGINE_ENGINE_H_
#define SPARK_ESTIMATOR_ENGINE_ENGINE_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "engine/coordinator.h"
#include "engine/executor.h"
#include "engine/message.h"
#include "engine/request.h"
#include "transport/frame.h"
#include "transport/liveness.h"

namespace spark_estimator {

struct PeerConfig {
  int rank = 0;
  UniqueFd control;
  UniqueFd data;
  UniqueFd segment;  // none when memory cannot be shared
  std::string name;
};

struct EngineConfig {
  int rank = 0;
  int size = 1;
  UniqueFd own_segment;
  int64_t fusion_threshold_bytes = 0;
  double start_timeout_seconds = 30;
  double stall_warning_seconds = 60;
  double stall_shutdown_seconds = 0;
  int spin_microseconds = 0;
  std::string name;
};

class Engine : private Liveness {
 public:
  static Status Create(EngineConfig config, std::vector<PeerConfig> peers, std::unique_ptr<Engine>* engine);
  ~Engine() override;

  // The functions of the C ABI; see engine.h there.
  Status Submit(Signature signature, std::vector<se_buffer> buffers, int64_t* handle);
  Status Poll(int64_t handle);
  Status Wait(int64_t handle, Seconds timeout);
  Status GetResult(int64_t handle, se_result* result);
  Status TakeResultData(int64_t handle, void** data);
  void Release(int64_t handle);
  int64_t Counter(const std::string& name) const;
  void Shutdown();

  // Of the process that created it; a forked child is another one.
  bool OwnedByThisProcess() const;
  // For that child: closes every descriptor and touches nothing else.
  void AbandonAfterFork();

 private:
  struct Peer {
    std::string name;
    std::unique_ptr<ControlLink> control;  // null for oneself
    std::deque<Frame> inbox;
    std::optional<Goodbye> goodbye;  // it has left in good order
  };

  explicit Engine(EngineConfig config);

  // --- creation, in the caller's thread
  Status ExchangeHellos(bool sees_all_segments, bool* all_see_all, int64_t* fusion_threshold_bytes);
  Status CheckHello(int rank, const Frame& frame, Hello* hello) const;
  Status MapSegments(std::vector<PeerConfig>& peers, std::unique_ptr<SharedGroup>* group);
  std::string NameOf(int rank) const;

  // --- the engine thread
  void Run();
  Status RunCycle();
  void AwaitWork();
  int PollTimeoutMilliseconds() const;
  std::vector<RequestPtr> DrainSubmissions();
  void SendRequests(const std::vector<RequestPtr>& submitted);
  // Liveness: takes in what has arrived, and says whether the job can go on. Used between and inside collectives.
  Status Check() override;
  Status ReadPeer(int rank);
  Status HandleFrame(int rank, const Frame& frame);
  Status PeerGone(int rank);
  void FlushControl();
  Status Agree();
  void ReportStalls();
  Status ExecuteNext();
  // An error when a peer has left that has not executed response `sequence` (of which it would be a part).
  Status CheckDepartures(int64_t sequence);
  void Finish(const RequestPtr& request, const Status& outcome);
  void FailEverything(const Status& why);
  // Looks a moment longer for a better explanation of a broken data link than "connection reset".
  Status Explain(Status status);
  void TellPeers(const Status& why);
  void SayGoodbye();
  void Wake();

  // How often rank 0 looks whether a name waits for too long, while any does.
  static constexpr Seconds kStallCheckInterval{1.0};

  const EngineConfig config_;
  const pid_t owner_pid_;
  Counters counters_;

  // Shared between threads.
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  std::unordered_map<int64_t, RequestPtr> handles_;
  std::unordered_map<std::string, RequestPtr> in_flight_;  // by name: submitted and not finished
  std::vector<RequestPtr> submitted_;
  int64_t next_handle_ = 1;
  Status broken_;  // not OK: why nothing can be submitted any more
  std::atomic<bool> stopping_{false};
  std::atomic<bool> wake_pending_{false};
  UniqueFd wake_fd_;
  std::mutex shutdown_mutex_;
  std::thread thread_;

  // Engine thread only.
  std::vector<Peer> peers_;                   // [size], by rank
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0
  std::unique_ptr<Executor> executor_;
  std::deque<Response> agreed_;  // in order of execution
  int64_t executed_ = 0;         // sequence of the last response that was executed
  int64_t executing_ = 0;        // ... that is being executed, or was when the engine broke; 0 for none
  int lost_rank_ = -1;           // who broke the job
  int first_leaver_ = -1;        // who left it first, in good order
  Time next_stall_check_{};
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_ENGINE_H_
