// The work of an engine's driving thread: takes the group through the rounds, and through full negotiation outside of
// them. Drive() is the function to read first.
//
// It has almost no state itself. It owns, once the ranks have met, what they propose and agree on, and connects that
// with the Group, which outlives it:
//
//   ResponseCache, PendingRequests   what the ranks have agreed on before; what this rank proposes
//   RoundDriver, RoundOperations     the position in the rounds; proposals made, outcomes run
//   NegotiationDriver                full negotiation
//   OperationRunner, OutcomeRunner   one operation; those of a round, which a caller may hand over in the middle
//   PeerFrames                       the peers' frames, heartbeats and departures
//
// The order of events. In the rounds, Drive() posts a proposal, waits for the others' (for frames by AwaitFrames), and
// runs the outcome; while it waits, inside of operations too, Check() reads frames and notices who is gone. Where the
// outcome or a peer ends the rounds, LeaveRounds() hands what is pending to the negotiation, and Cycle(), by the
// engine's thread alone, negotiates until the rounds continue. Cycle() begins with operations that were handed over.
// Any error goes to Break(), after which nothing is driven.
//
// Threads: every function but those under "any thread" is called by the driving thread (DriveTurn). CanWait() and
// TakeSubmitted() need the lock of the request table as well.
#ifndef SPARK_ESTIMATOR_ENGINE_PROGRESS_H_
#define SPARK_ESTIMATOR_ENGINE_PROGRESS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine_config.h"
#include "engine/group.h"
#include "engine/negotiation/negotiation_driver.h"
#include "engine/operation_runner.h"
#include "engine/outcome_runner.h"
#include "engine/peer_frames.h"
#include "engine/requests/pending_requests.h"
#include "engine/requests/question_queue.h"
#include "engine/requests/request_table.h"
#include "engine/requests/response_cache.h"
#include "engine/rounds/frame_rounds.h"
#include "engine/rounds/round_driver.h"
#include "engine/rounds/round_operations.h"
#include "engine/thread_waker.h"
#include "transport/liveness.h"
#include "transport/polling.h"

namespace spark_estimator {

class Progress final : public Liveness {
 public:
  // What it shares with the callers' side; all outlive it.
  struct Shared {
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

  // The group is not started yet, and outlives it.
  Progress(Group* group, Shared shared);

  // By the creating thread: starts the group, and makes what needs it.
  Status Start(std::vector<PeerConfig> peers);

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
  // Nothing can be submitted any more, everything that waits fails. Takes no memory: without, texts are shorter.
  void Break(const Status& error) noexcept;
  PeerFrames& frames() { return *frames_; }
  // Operations so far.
  int64_t executed() const { return runner_->executed(); }

  // --- what there is to do; with the lock held, or while driving

  bool in_rounds() const { return rounds_->in_rounds(); }
  // Whether operations are unfinished: only the engine's thread may continue them, by Cycle().
  bool handed_over() const { return outcome_.handed_over(); }
  // Whether what is pending needs no thread but that of a caller's next wait.
  bool CanWait() const;
  // Whether the engine's thread should continue by rounds.
  bool HasWork() const { return rounds_->in_rounds() && (rounds_->MustLeave() || !CanWait()); }
  // When the engine's thread must look again though nothing has woken it.
  Time NextWake() const;

  // --- any thread

  std::string NameOf(int rank) const override { return group_.membership().NameOf(rank); }
  // What runs and whom it waits for; empty when nothing waits.
  std::string Running() const { return outcome_.Text(); }
  bool peers_wait() const { return rounds_->peers_wait(); }

 private:
  // Liveness: handles arrived frames, and returns whether the job can continue. Used between and inside collectives.
  Status Check() override;

  void Assemble();
  std::unique_ptr<Rounds> MakeRounds();
  void LeaveRounds();
  void ActOnDelay();
  Status AwaitFrames(Time deadline);

  Group& group_;
  const Shared shared_;
  OutcomeRunner outcome_;
  Driver driver_ = Driver::kEngineThread;
  FrameRounds* frame_rounds_ = nullptr;  // of rounds_, when frames carry them
  Polling polling_;                      // for frames
  // Made once the ranks have met.
  std::optional<ResponseCache> cache_;
  std::optional<PendingRequests> pending_;
  std::optional<RoundDriver> rounds_;
  std::optional<OperationRunner> runner_;
  std::optional<RoundOperations> operations_;
  std::optional<NegotiationDriver> negotiation_;
  std::optional<PeerFrames> frames_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_PROGRESS_H_
