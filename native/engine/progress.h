// The work of an engine's driving thread: goes through the rounds, receives control frames, and sends heartbeats.
//
// It connects the classes that hold the state, and has almost none itself. Drive() is the function to read first.
//
//   Membership, PeerLinks, GroupExit       who is there, the connections to them, and how this rank ends its membership
//   ResponseCache, PendingRequests         what the ranks have agreed on before; what this rank proposes
//   RoundDriver, RoundOperations           the position in the rounds; proposals made, outcomes run
//   NegotiationDriver                      full negotiation
//   OperationRunner                        one operation
//   SideStack, OperationWatch              operations that callers leave half run, and those that make no progress
//
// Threads: every function but those under "any thread" is called by the driving thread (DriveTurn), the last group also
// by the engine's thread at its end. CanWait() and TakeSubmitted() need the lock of the request table as well.
#ifndef SPARK_ESTIMATOR_ENGINE_PROGRESS_H_
#define SPARK_ESTIMATOR_ENGINE_PROGRESS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/contain.h"
#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/executor.h"
#include "engine/gpu/gpu_executor.h"
#include "engine/membership/group_exit.h"
#include "engine/membership/handshake.h"
#include "engine/membership/membership.h"
#include "engine/membership/peer_links.h"
#include "engine/membership/topology.h"
#include "engine/negotiation/negotiation_driver.h"
#include "engine/operation_runner.h"
#include "engine/operation_watch.h"
#include "engine/requests/pending_requests.h"
#include "engine/requests/question_queue.h"
#include "engine/requests/request_table.h"
#include "engine/rounds/frame_rounds.h"
#include "engine/rounds/round_driver.h"
#include "engine/rounds/round_operations.h"
#include "engine/side_stack.h"
#include "engine/thread_waker.h"
#include "transport/late_sockets.h"
#include "transport/liveness.h"
#include "transport/polling.h"
#include "transport/stream_group.h"

namespace spark_estimator {

class Progress final : public Liveness {
 public:
  // What it shares with the callers' side; all outlive it.
  struct Shared {
    const EngineConfig* config = nullptr;
    RequestTable* requests = nullptr;
    DriveTurn* turn = nullptr;
    QuestionQueue* questions = nullptr;
    ThreadWaker* waker = nullptr;
    Counters* counters = nullptr;
    FlightRecorder* recorder = nullptr;
    Timeline* timeline = nullptr;
  };
  enum class Driver : uint8_t {
    kCaller,
    kEngineThread
  };

  explicit Progress(Shared shared);

  // --- creation, by the creating thread

  // Takes over the connections and exchanges hellos with the peers. An error of this rank itself is for
  // AnnounceFailure.
  Status Start(std::vector<PeerConfig> peers);
  // Handles frames that faster peers have sent after their hello, which no socket reports again.
  Status TakeEarlyFrames();

  // --- driving

  // Continues by rounds until `until` is done (null: until nothing is pending), the rounds are left, or the deadline
  // has passed. A caller's deadline that passes inside an operation leaves that to the engine's thread: see
  // handed_over().
  Status Drive(Driver driver, const Request* until, Time deadline);
  // The work of the engine's thread each time that it wakes. `others_wait`: a caller continues by rounds itself.
  Status Cycle(bool others_wait);
  // Hands what was submitted to the rounds, when this rank is in them. Holding the lock.
  void TakeSubmitted() {
    if (rounds_->in_rounds()) pending_->Add(shared_.requests->submitted());
  }
  // With the lock held, while no request is live: nothing reads these then.
  void OrderRing(RingOrder order, bool halves_in_ring) {
    streams_->OrderRing(std::move(order));
    parameters_.tuning.halves_in_ring = halves_in_ring;
  }
  // Nothing can be submitted any more, everything that waits fails. Takes no memory: without, texts are shorter.
  void Break(const Status& error) noexcept;

  // --- what there is to do; with the lock held, or while driving

  bool in_rounds() const { return rounds_->in_rounds(); }
  // Whether operations are unfinished: only the engine's thread may continue them, by Cycle().
  bool handed_over() const { return outcome_stack_.state() == SideStack::State::kLeft; }
  // Whether what is pending needs no thread but that of a caller's next wait.
  bool CanWait() const;
  // Whether the engine's thread should continue by rounds.
  bool HasWork() const { return rounds_->in_rounds() && (rounds_->MustLeave() || !CanWait()); }
  // When the engine's thread must look again though nothing has woken it.
  Time NextWake() const;

  // --- the end of the engine's thread, which keeps the turn

  void AnnounceFailure(const Status& why) noexcept { exit_.AnnounceFailure(why); }
  // While the GPU of a rank that leaves finishes its work: whether all peers that it needs are connected.
  Status WatchPeers();
  void TendLinks() noexcept { exit_.TendLinks(Clock::now()); }
  void Flush();
  bool HasUnsent() const { return links_.HasUnsent(); }
  Time NextHeartbeat() const { return membership_.NextWake(); }
  void SayGoodbye() noexcept { exit_.SayGoodbye(runner_->executed()); }

  // --- any thread

  LateSockets& late_sockets() { return late_sockets_; }
  std::string NameOf(int rank) const override { return membership_.NameOf(rank); }
  // What runs and whom it waits for; empty when nothing waits.
  std::string Running() const { return watch_.Text(); }
  const Status& no_memory() const { return no_memory_; }
  const Topology& topology() const { return topology_; }
  const Executor& executor() const { return *executor_; }
  GpuExecutor& gpu() const { return *gpu_; }
  bool peers_wait() const { return rounds_->peers_wait(); }
  bool any_left() const { return membership_.any_left(); }
  void AbandonAfterFork();
  template <typename Function>
  Status Contained(Function&& function) const noexcept {
    return Contain(no_memory_, std::forward<Function>(function));
  }

 private:
  // Liveness: handles arrived frames, and returns whether the job can continue. Used between and inside collectives.
  Status Check() override;

  void Assemble(const GroupSettings& settings);
  std::unique_ptr<Rounds> MakeRounds(size_t cache_capacity);
  void MakeGpuExecutor();

  void LeaveRounds();
  void ActOnDelay();
  // Runs the agreed operations; handed_over() is true if they were left at `leave_at`.
  Status RunOutcome(Time leave_at);
  // Continues the operations that were handed over.
  Status FinishOutcome();
  Status OutcomeStatus();
  Status TendOperation();
  Status WatchOperation(Time now);
  // Whom the operation that runs waits for.
  std::vector<int> Awaited() const;
  Status AwaitFrames(Time deadline);
  Status ReadReady(int timeout_milliseconds);
  Status ReadPeer(int rank);
  Status HandleInbox(int rank);
  Status HandleFrame(int rank, const Frame& frame);
  bool Take(int rank, const Frame& frame, Status* outcome);
  void LinkEnded(int rank);
  Status TickHeartbeat();
  // An error when a peer has left that does not take part in the next operation.
  Status CheckDepartures();
  Status Explain(Status status);

  const Shared shared_;
  Membership membership_;
  const Status no_memory_;  // made before it is needed
  PeerLinks links_;
  GroupExit exit_;
  Topology topology_;
  Parameters parameters_;
  int cores_ = 1;  // of the host that has fewest
  LateSockets late_sockets_;
  std::unique_ptr<StreamGroup> streams_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<GpuExecutor> gpu_;
  FrameRounds* frame_rounds_ = nullptr;  // of rounds_, when frames carry them
  Polling polling_;                      // for frames
  Driver driver_ = Driver::kEngineThread;
  OperationWatch watch_;
  SideStack outcome_stack_;
  Status outcome_;               // of what ran there
  Time leave_at_ = Time::max();  // when it is to be left
  Status abandoned_;             // why unfinished operations end early
  // Made once the ranks have met.
  std::optional<ResponseCache> cache_;
  std::optional<PendingRequests> pending_;
  std::optional<RoundDriver> rounds_;
  std::optional<OperationRunner> runner_;
  std::optional<RoundOperations> operations_;
  std::optional<NegotiationDriver> negotiation_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_PROGRESS_H_
