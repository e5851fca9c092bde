// This rank's position in the rounds: what it has posted, how long it has waited, and when it leaves and returns.
//
// The transitions (a cell without an entry is refused: the call returns false or does nothing):
//
//   state              Post       wait > 1 ms    wait > 1 s        Conclude(agreed)  Conclude(leaves)  Leave Resume
//   kOpen              kPosted    -              -                 -                 -                 kNegotiating -
//   kPosted            -          kPeersWoken    (first woken)     kOpen, next       kNegotiating      -            -
//   kPeersWoken        -          -              kStallReported    kOpen, next       kNegotiating      -            -
//   kStallReported     -          -              -                 kOpen, next       kNegotiating      -            -
//   kNegotiating       -          -              -                 -                 -                 - kOpen
//
// When the rank leaves the rounds though it has something to propose, it has an exit request:
//
//   kStay              continues
//   kLeaveAtRound      the coordinator ends the rounds at `exit_round`; another such request replaces it
//   kLeaveNext         some rank has left already: leave at the next position. It overrides kLeaveAtRound, and is
//                      ignored while negotiating
//
// Leaving clears it. Resume keeps kLeaveAtRound for the new epoch or a later one.
//
// Threads: used by the driving thread. Any thread may call in_rounds() and peers_wait().
#ifndef SPARK_ESTIMATOR_ENGINE_ROUND_DRIVER_H_
#define SPARK_ESTIMATOR_ENGINE_ROUND_DRIVER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "engine/observe/counters.h"
#include "engine/rounds/rounds.h"
#include "engine/wire/message.h"

namespace spark_estimator {

class RoundDriver {
 public:
  enum class State : uint8_t {
    kOpen,           // nothing is posted at this position
    kPosted,         // this rank's proposal is posted, others' are awaited
    kPeersWoken,     // ... long enough that the others have been sent a wake-up
    kStallReported,  // ... long enough that the coordinator has been notified
    kNegotiating,    // the rounds are left, for full negotiation
  };
  enum class LateAction : uint8_t {
    kNone,
    kWakePeers,    // send all a kWakePeer with round()
    kReportStall,  // notify the coordinator, or as the coordinator all, that this round is stalled
  };

  // `counters` outlives it.
  RoundDriver(std::unique_ptr<Rounds> rounds, Counters* counters);

  State state() const { return state_.load(std::memory_order_relaxed); }
  bool in_rounds() const { return state_.load(std::memory_order_acquire) != State::kNegotiating; }
  // Whether a proposal is posted and not concluded.
  bool posted() const { return state() != State::kOpen && state() != State::kNegotiating; }
  // Whether a peer that waits for this rank has sent a wake-up for a position that is not concluded.
  bool peers_wait() const { return peers_wait_.load(std::memory_order_relaxed); }
  RoundId round() const { return round_; }
  const Rounds& rounds() const { return *rounds_; }

  // Posts this rank's proposal. `since`: from when on the wait for the others counts. See Rounds::Post.
  bool Post(const Proposal& proposal, size_t data_bytes, const Rounds::WriteData& write_data, int64_t arena_offset,
            Time since);
  // Waits for the others until `deadline`, or until there is a LateAction to ask for. *concluded: Conclude() is next.
  Status Await(Time deadline, bool* concluded);
  // What this rank owes the others for being kept waiting. To be asked until it gives kNone.
  LateAction NextLateAction(Time now);
  // Takes the outcome: true, and the next position begins; or false, and the rounds are left.
  bool Conclude();

  // --- leaving and coming back

  bool MustLeave() const;
  void LeaveNext();
  void LeaveAt(RoundId round);
  // Notifies the others that this rank leaves here, and leaves. For kOpen.
  bool Leave();
  // Begins the next epoch. `leave_next`: some rank is about to leave it already.
  bool Resume(uint32_t position, bool leave_next);

  // --- messages of peers

  // A peer waits for this rank in `round`; ignored for a round that is over, or of another epoch.
  void PeerWaits(RoundId round);
  // To the coordinator: a rank is stalled in `round`. True when all ranks are to leave there.
  bool PeerStalled(RoundId round);

  // A peer whose thread has left its requests to the next wait is woken after this time.
  static constexpr Seconds kWakePeersAfter{0.001};
  // A rank that has waited this long requests full negotiation, which can determine which ranks are missing.
  static constexpr Seconds kReportStallAfter{1.0};

 private:
  // How long a wait for others continues without a check of the time.
  static constexpr Seconds kLook{0.05};

  enum class Exit : uint8_t {
    kStay,
    kLeaveAtRound,
    kLeaveNext
  };

  void Enter(State state) { state_.store(state, std::memory_order_release); }
  void LeaveRounds();

  const std::unique_ptr<Rounds> rounds_;
  Counters* const counters_;
  std::atomic<State> state_{State::kOpen};
  RoundId round_{0, 0};
  Time posted_at_{};
  Exit exit_ = Exit::kStay;
  RoundId exit_round_{};
  std::atomic<bool> peers_wait_{false};
  uint32_t peers_wait_at_ = 0;  // position
};

// Inline: each round calls these.

inline bool RoundDriver::Post(const Proposal& proposal, size_t data_bytes, const Rounds::WriteData& write_data,
                              int64_t arena_offset, Time since) {
  if (state() != State::kOpen) return false;
  rounds_->Post(round_, proposal, data_bytes, write_data, arena_offset);
  posted_at_ = since;
  Enter(State::kPosted);
  return true;
}

inline Status RoundDriver::Await(Time deadline, bool* concluded) {
  const Time look = state() == State::kPosted
                        ? posted_at_ + std::chrono::duration_cast<Clock::duration>(kWakePeersAfter)
                        : After(kLook);
  return rounds_->Await(std::min(deadline, look), concluded);
}

inline bool RoundDriver::Conclude() {
  if (!posted()) return false;
  const bool leaves = rounds_->outcome().leaves_rounds;
  // Short waits cost more to measure than they matter; what leaves the rounds is counted when it is agreed on.
  if (state() != State::kPosted && !leaves) {
    Increase(counters_->wait_nanoseconds,
             std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - posted_at_).count());
  }
  Increase(counters_->rounds);
  if (leaves) {
    LeaveRounds();
    return false;
  }
  round_.position += 1;
  if (peers_wait()) {
    peers_wait_.store(static_cast<int32_t>(peers_wait_at_ - round_.position) >= 0, std::memory_order_relaxed);
  }
  Enter(State::kOpen);
  return true;
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_ROUND_DRIVER_H_
