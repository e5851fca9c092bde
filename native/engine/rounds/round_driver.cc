#include "engine/rounds/round_driver.h"

#include <utility>

namespace spark_estimator {
namespace {

bool IsSame(RoundId a, RoundId b) { return a.epoch == b.epoch && a.position == b.position; }

}  // namespace

RoundDriver::RoundDriver(std::unique_ptr<Rounds> rounds, Counters* counters)
    : rounds_(std::move(rounds)), counters_(counters) {}

RoundDriver::LateAction RoundDriver::NextLateAction(Time now) {
  const Seconds waited = now - posted_at_;
  if (state() == State::kPosted && waited >= kWakePeersAfter) {
    Enter(State::kPeersWoken);
    return LateAction::kWakePeers;
  }
  if (state() == State::kPeersWoken && waited >= kReportStallAfter) {
    Increase(counters_->stalled_rounds);
    Enter(State::kStallReported);
    return LateAction::kReportStall;
  }
  return LateAction::kNone;
}

bool RoundDriver::MustLeave() const {
  return exit_ == Exit::kLeaveNext || (exit_ == Exit::kLeaveAtRound && IsSame(exit_round_, round_));
}

void RoundDriver::LeaveNext() {
  if (in_rounds()) exit_ = Exit::kLeaveNext;
}

void RoundDriver::LeaveAt(RoundId round) {
  if (exit_ == Exit::kLeaveNext) return;
  exit_ = Exit::kLeaveAtRound;
  exit_round_ = round;
}

bool RoundDriver::Leave() {
  if (state() != State::kOpen) return false;
  Proposal proposal;
  proposal.leaves_rounds = true;
  rounds_->Post(round_, proposal, 0, nullptr, -1);
  LeaveRounds();
  return true;
}

void RoundDriver::LeaveRounds() {
  Increase(counters_->slow_phases);
  exit_ = Exit::kStay;
  Enter(State::kNegotiating);
}

bool RoundDriver::Resume(uint32_t position, bool leave_next) {
  if (state() != State::kNegotiating) return false;
  round_ = RoundId{round_.epoch + 1, position};
  if (exit_ == Exit::kLeaveAtRound && exit_round_.epoch < round_.epoch) exit_ = Exit::kStay;
  if (leave_next) exit_ = Exit::kLeaveNext;
  rounds_->Enter(round_);
  Enter(State::kOpen);
  return true;
}

void RoundDriver::PeerWaits(RoundId round) {
  // A peer that has already concluded the position which this rank has posted for is ahead by one.
  if (round.epoch != round_.epoch || static_cast<int32_t>(round.position - round_.position) < 0) return;
  peers_wait_at_ = round.position;
  peers_wait_.store(true, std::memory_order_relaxed);
}

bool RoundDriver::PeerStalled(RoundId round) {
  if (round.epoch != round_.epoch || !in_rounds()) return false;
  LeaveAt(round);
  return true;
}

}  // namespace spark_estimator
