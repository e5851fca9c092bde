// Rank 0's part of full negotiation: takes in what all ranks wait for, and makes the responses that all obey.
//
// A rank's state in the present epoch:
//
//   state         RankLeftRounds, or Receive of this epoch     TakeResponses that gives a kResume
//   kInRounds     kNegotiating                                 (refused: none is given before all negotiate)
//   kNegotiating  kNegotiating                                 kInRounds, in the next epoch
//
// Requests of an older epoch are dropped, as are those of an epoch that a kResume has ended: their rank proposes them
// again. Those of the next epoch are kept until it begins (TakeEarly): their rank was faster than this one.
//
// It does no input or output and reads no clock. Threads: used by the driving thread.
#ifndef SPARK_ESTIMATOR_ENGINE_NEGOTIATION_LEADER_H_
#define SPARK_ESTIMATOR_ENGINE_NEGOTIATION_LEADER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/negotiation/coordinator.h"
#include "engine/wire/message.h"

namespace spark_estimator {

class NegotiationLeader {
 public:
  enum class Receipt : uint8_t {
    kTaken,
    kStale,  // of an epoch that is over
    kEarly,  // of the next epoch
  };

  // `global_ranks`: [size], what messages call the ranks.
  NegotiationLeader(std::vector<int> global_ranks, int64_t fusion_threshold_bytes);

  // A request of this rank itself, and that it has left the rounds.
  void Add(int rank, Signature signature, Time now) { coordinator_.Add(rank, std::move(signature), now); }
  void RankLeftRounds(int rank) { states_[static_cast<size_t>(rank)] = RankState::kNegotiating; }
  // Requests of another rank. `epoch_ends`: a kResume has been sent that this rank has not obeyed yet.
  Receipt Receive(int rank, Requests requests, uint32_t epoch, bool epoch_ends, Time now);
  // Requests that arrived too early; to be received again in a new epoch.
  std::vector<std::pair<int, Requests>> TakeEarly() { return std::exchange(early_, {}); }

  // What all ranks are to do next. `all_obeyed`: this rank has obeyed all earlier responses; then, when all ranks
  // negotiate and nothing waits, the rounds continue some positions after `position`.
  std::vector<Response> TakeResponses(bool all_obeyed, uint32_t position);

  Coordinator& coordinator() { return coordinator_; }
  const Coordinator& coordinator() const { return coordinator_; }

  // Positions between the last one of an epoch and the first of the next: a late rank may still read the slot of the
  // last one, which is written again only two positions after the first that it takes part in.
  static constexpr uint32_t kResumeDistance = 3;

 private:
  enum class RankState : uint8_t {
    kInRounds,
    kNegotiating
  };

  Coordinator coordinator_;
  std::vector<RankState> states_;                // [size]
  std::vector<std::pair<int, Requests>> early_;  // by rank
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_NEGOTIATION_LEADER_H_
