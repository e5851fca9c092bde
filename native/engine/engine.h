// One rank's membership of one group: the queue of requests, the thread that is there when nobody waits, and the links
// to the peers.
//
// Whoever has something to wait for *drives*: it goes through the rounds (proposal.h) and carries out what is agreed,
// in its own thread. One thread drives at a time. DriveRounds() is the one function to read. When the rounds cannot
// go on (a new name, ranks that disagree, one that is late) the group leaves them for a negotiation in full, which is
// the engine thread's work (engine_slow.cc), and comes back when nothing waits any more.
//
// The class is in these files: engine_start.cc (creation), engine.cc (the callers' side), engine_drive.cc (rounds),
// engine_slow.cc (negotiation), engine_thread.cc (its thread), engine_peers.cc (frames, liveness, the end).
#ifndef SPARK_ESTIMATOR_ENGINE_ENGINE_H_
#define SPARK_ESTIMATOR_ENGINE_ENGINE_H_

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "algorithms/hosts.h"
#include "base/clock.h"
#include "base/contain.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "engine/autotune.h"
#include "engine/coordinator.h"
#include "engine/counters.h"
#include "engine/executor.h"
#include "engine/flight_recorder.h"
#include "engine/gpu_executor.h"
#include "engine/heartbeat.h"
#include "engine/live_requests.h"
#include "engine/message.h"
#include "engine/proposal.h"
#include "engine/request.h"
#include "engine/response_cache.h"
#include "engine/rounds.h"
#include "engine/timeline.h"
#include "transport/arena.h"
#include "transport/frame.h"
#include "transport/liveness.h"
#include "transport/polling.h"

namespace spark_estimator {

class FrameRounds;

struct PeerConfig {
  int rank = 0;
  int global_rank = 0;
  UniqueFd control;
  UniqueFd data;
  UniqueFd segment;  // none when memory cannot be shared
  std::string name;
};

struct EngineConfig {
  int rank = 0;
  int size = 1;
  int global_rank = 0;
  int process_set = 0;
  UniqueFd own_segment;
  int cores = 1;
  bool overlap = false;
  int affinity_core = -1;
  int spin_microseconds = -1;
  // Rank 0's values of these hold for all.
  int64_t fusion_threshold_bytes = 0;
  int64_t cache_capacity = 0;
  int hierarchical = -1;
  bool autotune = false;
  int autotune_warmup_samples = 0;
  int autotune_steps_per_sample = 0;
  int autotune_max_samples = 0;

  double start_timeout_seconds = 30;
  double stall_warning_seconds = 10;
  double stall_shutdown_seconds = 0;
  double heartbeat_seconds = 1;
  double silence_seconds = 6;
  std::string name;
  std::string autotune_log;
  int32_t gpu_operations = 0;
  int32_t ranks_on_host = 0;
  GpuLibraries gpu_libraries;
  KernelStore* kernel_store = nullptr;  // outlives the engine
};

// Where a request's tensors lie, when that is on a GPU, and behind what.
struct GpuPlace {
  int device = -1;
  CudaStream stream = nullptr;
};

// A request that is made once; see se_plan. The engine's lock guards what changes.
struct Plan {
  std::shared_ptr<const Signature> signature;
  int64_t bytes = 0;
  std::vector<int64_t> output_bytes;  // [parts], room at the outputs of an allgather or alltoall
  int device = -1;                    // on which the tensors of all submissions lie
  RequestPtr request;                 // the last one, used again when nobody else holds it
  Unnamed* unnamed = nullptr;         // once it has been submitted
  int32_t cache_id = -1;
  uint64_t cache_generation = 0;  // of the cache when cache_id was looked up
};

class Engine : private Liveness {
 public:
  static Status Create(EngineConfig config, std::vector<PeerConfig> peers, std::unique_ptr<Engine>* engine);
  ~Engine() override;

  // The functions of the C ABI; see there.
  //
  // What they throw, which is std::bad_alloc alone, has changed nothing: the call failed, and the engine works on. What
  // is thrown inside a collective does not come out of them. It breaks the engine, as any failure there does.
  Status Submit(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory, GpuPlace place,
                int64_t* handle);
  Status Run(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory, GpuPlace place,
             Seconds timeout, int64_t* handle);
  Status SubmitPlan(Plan& plan, const void* const* inputs, void* const* outputs, CudaStream stream, bool deferred,
                    int64_t* handle);
  Status RunPlan(Plan& plan, const void* const* inputs, void* const* outputs, CudaStream stream, Seconds timeout,
                 int64_t* handle);
  Status Poll(int64_t handle);
  Status Wait(int64_t handle, Seconds timeout);
  Status GetResult(int64_t handle, int tensor, se_result* result);
  Status TakeResultData(int64_t handle, int tensor, void** data);
  Status AwaitOnStream(int64_t handle, CudaStream stream);
  Status CopyResult(int64_t handle, int tensor, void* output, CudaStream stream);
  void Release(int64_t handle);
  Status AllocateShared(size_t bytes, void** data);
  Status FreeShared(void* data) { return arena_->Free(data); }
  int64_t Counter(std::string_view name) const;
  static const char* CounterNames();
  Status AwaitQuestion(Seconds timeout, int64_t* question);
  void Answer(int64_t question, std::string text);
  // "flight_recorder", "algorithms" or "gpu".
  Status Describe(const std::string& what, std::string* text) const;
  Status StartTimeline(const std::string& path, bool mark_cycles);
  void StopTimeline() { timeline_.Stop(); }
  void Shutdown();
  // For a plan that goes: its last request does not point to it any more.
  void Retire(Plan& plan);
  int rank() const { return config_.rank; }
  int size() const { return config_.size; }
  // That this rank could not allocate memory. It exists already.
  const Status& no_memory() const { return no_memory_; }

  // For a forked child: closes every descriptor and touches nothing else.
  void AbandonAfterFork();

 private:
  struct Peer {
    int global_rank = 0;
    std::string name;
    std::unique_ptr<ControlLink> control;  // null for oneself
    std::deque<Frame> inbox;
    std::optional<Goodbye> goodbye;  // it has left in good order
  };
  using Lock = std::unique_lock<std::mutex>;

  explicit Engine(EngineConfig config);

  // --- creation, in the caller's thread
  Status Start(std::vector<PeerConfig> peers);
  Status ExchangeHellos(const std::vector<int64_t>& visible, std::vector<std::vector<int>>* visible_of);
  Status CheckHello(int rank, const Frame& frame, Hello* hello) const;
  Status MapSegments(std::vector<PeerConfig>& peers, std::vector<Segment>* segments, std::vector<int64_t>* visible);
  Status MakeGroups(std::vector<Segment> segments, const std::vector<std::vector<int>>& visible_of);
  void MakeRounds();
  std::string NameOf(int rank) const override;

  // --- callers, holding the lock
  Status Enqueue(const RequestPtr& request, bool wants_handle);
  void GiveHandle(const RequestPtr& request);
  // Without the lock, before a request of GPU tensors is enqueued.
  Status Accept(const Signature& signature, GpuPlace place, GpuWork* work);
  bool IsInFlight(const Request& request);
  void Unregister(const Request& request) noexcept;
  void Count(Request& request);
  RequestPtr RequestOf(Plan& plan, const void* const* inputs, void* const* outputs, bool deferred);
  // For a caller that waits for what it submits: its stream waits as well.
  Status Concluded(const Status& outcome, const Request& request);
  Status FindDone(int64_t handle, RequestPtr* request);
  Status WaitFor(Lock& lock, const RequestPtr& request, Time deadline);
  // The same for a request that has got no handle: it has one when it is still in progress.
  Status WaitOrGiveHandle(Lock& lock, const RequestPtr& request, Seconds timeout);
  bool MayDrive() const;
  // After `driving_` is false again.
  void LeaveDriving();
  void Wake();

  // --- whoever drives
  void Classify(std::vector<RequestPtr>& submitted);
  void MakeReady(RequestPtr request);
  std::vector<RequestPtr> TakePending();
  // Goes on by rounds until `until` is done (null: until nothing is pending) or the deadline has passed.
  Status DriveRounds(const Request* until, Time deadline);
  Time NextLook() const;
  void PostProposal();
  void PostSlow();
  Status ConcludeRound();
  Status ExecuteSingle(const RequestPtr& request, const Outcome& outcome);
  Status CheckBrought(const Request& request);
  Status ExecuteInline(Request& request);
  Status ExecuteSet(const Outcome& outcome);
  void DrawLines();
  Status Execute(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows, bool fast);
  // Tells the flight recorder and the timeline of an op that has ended.
  void Note(const Request& request, int num_requests, const char* algorithm, Time started, Time finished,
            int32_t status, bool fast);
  size_t InlineBytes(const Request& request) const;
  void WriteInline(const Request& request, uint8_t* place) const;
  int64_t ArenaOffset(const Request& request) const;
  // Not proposed any more. Gives back what was.
  RequestPtr Forget(int32_t id);
  void TellOfLongWait();
  // Tells autotune of what was executed.
  void Tune(const std::vector<RequestPtr>& requests);
  void LeaveRounds();
  void Complete(const std::vector<RequestPtr>& requests, const Status& outcome);
  void CompleteLocked(Request& request, const Status& outcome) noexcept;
  // The end of all things: nothing can be submitted any more, everything that waits fails.
  void Break(const Status& why) noexcept;
  void ForgetPlaces() noexcept;
  // Where exceptions of whoever drives end: the status is to be given to Break().
  template <typename Function>
  Status Contained(Function&& function) const noexcept {
    return Contain(no_memory_, std::forward<Function>(function));
  }
  bool GpusEndByThemselves(const Status& why) const;
  bool RoundsEndHere() const;

  // --- negotiation in full, by the engine thread
  Status SlowCycle();
  void SendRequests(const std::vector<RequestPtr>& requests);
  Status Agree();
  Status Obey(const Response& response);
  Status RunResponse(const Response& response);
  void FailBeforeSubmission(const Response& response);
  void CountAnew();
  void Resume(uint32_t position);
  void ReportStalls();
  void Ask(int rank, const std::string& about);
  void TellAnswer(int rank, const std::string& text);
  void SendAnswers();
  void ReportMissingAnswers();

  // --- the engine thread
  void RunThread() noexcept;
  Status RunCycle(bool others_wait);
  Status WatchPeers();
  void EndJob() noexcept;
  void AwaitWork(Time until);
  Time NextWake() const;
  void TendBrokenLinks();
  bool WorksAlone() const;

  // --- peers
  // Liveness: takes in what has arrived, and says whether the job can go on. Used between and inside collectives.
  Status Check() override;
  Status ReadReady(int timeout_milliseconds);
  Status AwaitFrames(Time deadline);
  Status ReadPeer(int rank);
  Status HandleInbox(int rank);
  Status TakeEarlyFrames();
  Status HandleFrame(int rank, const Frame& frame);
  Status HandleRequests(int rank, const Frame& frame);
  void TakeRequests(int rank, Requests requests);
  Status PeerGone(int rank);
  void LinkEnded(int rank);
  void NoteDeparture(int rank, const Goodbye& goodbye);
  // Gives a sign of life when it is time, and misses others'.
  Status TickHeartbeat();
  void FlushControl();
  bool HasUnsent() const;
  void SendToAll(FrameType type, const std::string& payload);
  // An error when a peer has left that has not taken part in operation `number`.
  Status CheckDepartures(int64_t number);
  // Looks a moment longer for a better explanation of a broken data link than "connection reset".
  Status Explain(Status status);
  Status WithOwnName(const Status& why) const;
  void TellPeers(const Status& why) noexcept;
  void SayGoodbye() noexcept;
  void DrainLinks();
  void ClaimControl(bool claim);

  // How often rank 0 looks whether a name waits for too long, while any does.
  static constexpr Seconds kStallCheckInterval{1.0};
  // A rank that has waited so long in a round asks for a negotiation in full, which can tell who is missing.
  static constexpr Seconds kLongWait{1.0};
  // A peer whose thread has left its requests to the next wait is nudged after so long.
  static constexpr Seconds kNudgeAfter{0.001};

  const EngineConfig config_;
  // Made before they are needed, when there may be no memory.
  Status no_memory_;
  Status shut_down_;
  std::string no_memory_abort_;  // the payload of an abort
  std::vector<pollfd> drained_;
  Counters counters_;
  FlightRecorder recorder_;
  Timeline timeline_;

  // Shared between threads, guarded by mutex_ where they are not atomic.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;            // threads that wait for changed_
  bool driving_ = false;       // some thread drives
  bool thread_wants_ = false;  // the engine's thread waits for its turn, and goes first
  LiveRequests live_;          // all that have not ended
  std::vector<RequestPtr> submitted_;
  std::unordered_map<int64_t, RequestPtr> handles_;
  std::unordered_map<std::string_view, const Request*> in_flight_;  // the names lie in the signatures
  std::vector<const Request*> plans_in_flight_;
  std::unordered_map<std::string, Unnamed> unnamed_;  // by kind
  int64_t next_handle_ = 1;
  uint64_t next_order_ = 0;
  Status broken_;  // not OK: why nothing can be submitted any more
  std::condition_variable asked_;
  std::deque<int64_t> questions_;  // for this process
  std::vector<Talk> answers_;      // of this process
  std::atomic<bool> is_broken_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> wake_pending_{false};
  std::atomic<bool> fast_{true};  // written by whoever drives
  std::atomic<bool> nudged_{false};
  uint32_t nudged_at_ = 0;  // for which position
  std::mutex shutdown_mutex_;
  std::thread thread_;
  UniqueFd wake_fd_;
  UniqueFd control_poll_;  // all control links
  UniqueFd thread_poll_;   // what the engine thread sleeps on: wake_fd_, control_poll_

  // Of whoever drives.
  std::vector<Peer> peers_;  // [size], by rank
  std::vector<int> global_ranks_;
  std::unique_ptr<StreamGroup> streams_;
  std::unique_ptr<SharedGroup> local_;  // the ranks of this host, when there are several that share memory
  bool all_share_ = false;              // ... and they are all there are
  std::unique_ptr<Arena> arena_ = std::make_unique<Arena>();
  std::atomic<bool> arena_used_{false};
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<GpuExecutor> gpu_;
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0
  std::optional<Heartbeat> heartbeat_;        // none: nobody is taken for frozen
  std::unique_ptr<ResponseCache> cache_;
  std::unique_ptr<Rounds> rounds_;
  FrameRounds* frame_rounds_ = nullptr;  // rounds_, when frames carry them
  Parameters parameters_;
  // On rank 0, when parameters are to be tried: what comes next, and since when.
  std::optional<Autotune> autotune_;
  std::optional<Parameters> next_parameters_;
  bool told_of_tune_log_ = false;
  size_t last_tune_rows_ = 0;  // bytes of the log so far
  int64_t cache_capacity_ = 0;
  int cores_ = 1;  // of the host that has fewest
  Hosts hosts_;

  Place place_{0, 0};
  bool posted_ = false;  // at place_
  Time posted_at_{};
  bool nudged_peers_ = false;
  bool told_of_long_wait_ = false;
  bool slow_for_certain_ = false;          // some rank leaves the rounds at the position of this epoch that comes
  std::optional<Place> asked_to_go_slow_;  // by the coordinator
  // [cache capacity] pending requests whose agreement is remembered; of those without a name the oldest of each kind.
  std::vector<RequestPtr> by_id_;
  IdSet pending_ids_;
  int num_pending_ids_ = 0;
  int num_younger_ = 0;                                     // unnamed requests that stand behind one of by_id_
  Lines lines_;                                             // of the proposal
  std::vector<RequestPtr> unknown_;                         // pending requests that the cache does not know
  std::unordered_map<std::string, RequestPtr> negotiated_;  // by full name, what the coordinator was or will be told of
  RequestPtr join_;
  std::deque<Response> agreed_;
  std::vector<bool> left_rounds_;  // [size], on rank 0: who has been heard since the rounds ended
  std::vector<std::pair<int, Requests>> early_requests_;  // on rank 0: of the next epoch, by rank
  int64_t executed_ = 0;                                  // operations
  bool executing_ = false;
  int lost_rank_ = -1;     // who broke the job
  int first_leaver_ = -1;  // who left it first, in good order
  bool any_goodbye_ = false;
  bool control_claimed_ = false;
  std::atomic<Time> last_driven_{Time()};  // when a caller last let go of the control links
  Polling polling_;                        // of whoever drives, for frames
  Time next_stall_check_{};
  int64_t next_question_ = 1;
  struct Asked {
    int rank;
    Time deadline;
  };
  std::unordered_map<int64_t, Asked> open_questions_;  // on rank 0
};

// "allreduce 'x'".
std::string LabelOf(const Signature& signature, int64_t number);
inline std::string LabelOf(const Request& request) { return LabelOf(*request.signature, request.number); }
inline std::string FullName(const Request& request) { return FullName(request.signature->name, request.number); }

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_ENGINE_H_
