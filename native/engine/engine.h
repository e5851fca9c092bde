// One rank's membership of one group, behind the C ABI: takes requests from any thread, and owns the engine's thread.
//
// A thread that waits for a request *drives*: it goes through the rounds and runs the agreed operations
// (Progress::Drive). One thread drives at a time (DriveTurn). If the rounds cannot continue (a new name, ranks that
// differ, one that is late), the group leaves them for full negotiation, which is the engine thread's work, and returns
// when no request waits any more. native/README.md has the table of the classes.
//
// The engine's life, in RequestTable: working -> stopping (Shutdown) and broken (Progress::Break), in either order. Its
// thread ends at the first of the two; Shutdown joins it.
#ifndef SPARK_ESTIMATOR_ENGINE_ENGINE_H_
#define SPARK_ESTIMATOR_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/drive_turn.h"
#include "engine/engine_config.h"
#include "engine/group.h"
#include "engine/observe/counters.h"
#include "engine/observe/flight_recorder.h"
#include "engine/observe/timeline.h"
#include "engine/progress.h"
#include "engine/requests/question_queue.h"
#include "engine/requests/request.h"
#include "engine/requests/request_table.h"
#include "engine/thread_waker.h"

namespace spark_estimator {

class Engine {
 public:
  static Status Create(EngineConfig config, std::vector<PeerConfig> peers, std::unique_ptr<Engine>* engine);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The functions of the C ABI; see there.
  //
  // What they throw, which is std::bad_alloc alone, has changed nothing: the call failed, and the engine still works.
  // Exceptions inside a collective do not leave them. It breaks the engine, as any failure there does.
  Status Submit(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory, GpuPlace place,
                int64_t* handle);
  Status Run(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory, GpuPlace place,
             Seconds timeout, int64_t* handle);
  Status SubmitPlan(Plan& plan, const void* const* inputs, void* const* outputs, CudaStream stream, bool deferred,
                    int64_t* handle);
  Status RunPlan(Plan& plan, const void* const* inputs, void* const* outputs, CudaStream stream, Seconds timeout,
                 int64_t* handle);
  Status Poll(int64_t handle) { return Wait(handle, Seconds(0)); }
  Status Wait(int64_t handle, Seconds timeout);
  Status GetResult(int64_t handle, int tensor, se_result* result) {
    return requests_.GetResult(handle, tensor, result);
  }
  Status TakeResultData(int64_t handle, int tensor, void** data) {
    return requests_.TakeResultData(handle, tensor, data);
  }
  Status AwaitOnStream(int64_t handle, CudaStream stream);
  Status CopyResult(int64_t handle, int tensor, void* output, CudaStream stream);
  void Release(int64_t handle) { requests_.Release(handle); }
  Status AllocateShared(size_t bytes, void** data) { return group_.topology().arena->Allocate(bytes, data); }
  Status FreeShared(void* data) { return group_.topology().arena->Free(data); }
  int64_t Counter(std::string_view name) const;
  static const char* CounterNames();
  Status AwaitQuestion(Seconds timeout, int64_t* question) { return questions_.Await(timeout, question); }
  void Answer(int64_t question, std::string text);
  Status AwaitWantedPeer(Seconds timeout, int* rank) { return group_.late_sockets().AwaitAsked(timeout, rank); }
  void Deliver(LateSockets::Arrival arrival) { group_.late_sockets().Deliver(std::move(arrival)); }
  // See se_order_ring.
  Status OrderRing(std::vector<int> ranks, bool halves_in_ring);
  // "flight_recorder", "algorithms", "gpu" or "running".
  Status Describe(const std::string& what, std::string* text) const;
  Status StartTimeline(const std::string& path, bool mark_cycles);
  void StopTimeline() { timeline_.Stop(); }
  void Shutdown();
  // For a plan that is destroyed: its last request does not point to it any more.
  void Retire(Plan& plan);
  int rank() const { return config_.rank; }
  int size() const { return config_.size; }
  bool has_overlay() const { return config_.overlay; }
  // That this rank could not allocate memory. It exists already.
  const Status& no_memory() const { return group_.no_memory(); }

  // For a forked child: closes every descriptor and changes nothing else.
  void AbandonAfterFork();

 private:
  using Lock = RequestTable::Lock;

  explicit Engine(EngineConfig config);
  Status Start(std::vector<PeerConfig> peers);

  // --- callers. With the lock held if it is an argument.

  // Without the lock, before a request of GPU tensors is enqueued.
  Status Accept(const Signature& signature, GpuPlace place, GpuWork* work);
  Status EnqueuePlan(Plan& plan, const void* const* inputs, void* const* outputs, bool deferred, GpuWork work,
                     bool wants_handle, RequestPtr* request);
  // Counted as blocked, which includes driving: the caller does nothing else meanwhile.
  Status WaitFor(Lock& lock, const RequestPtr& request, Time deadline);
  Status WaitUntilDone(Lock& lock, const RequestPtr& request, Time deadline);
  // The same for a request that has got no handle: it has one when it is still in progress.
  Status WaitOrGiveHandle(Lock& lock, const RequestPtr& request, Seconds timeout);
  bool MayDrive() const;
  void Drive(Lock& lock, const RequestPtr& request, Time deadline);
  // For a caller that waits for what it submits: its stream waits as well.
  Status Concluded(const Status& outcome, const Request& request);

  // --- the engine's thread

  void RunThread() noexcept;
  // One turn at driving; false at the engine's end.
  bool TakeTurn(Time* next_wake);
  void EndJob() noexcept;

  const EngineConfig config_;
  Counters counters_;
  FlightRecorder recorder_;
  Timeline timeline_;
  DriveTurn turn_;       // guarded by requests_.lock(), as are the two below
  int num_waiting_ = 0;  // callers
  Time waiting_since_{};
  RequestTable requests_;
  QuestionQueue questions_;
  ThreadWaker waker_;
  Group group_;
  Progress progress_;
  const Status shut_down_;  // made before it is needed
  std::mutex shutdown_mutex_;
  std::thread thread_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_ENGINE_H_
