// Rounds of ranks that all see each other's segments: each posts its proposal in its own round slot and reads the
// others'.
//
// Two slots a rank suffice: to post position p + 2 a rank must have seen the proposals of all for p + 1, and these were
// posted by ranks that have completed p. There is one hand-off per position, also for small tensors: their data is in
// the slot.
#ifndef SPARK_ESTIMATOR_ENGINE_SHARED_ROUNDS_H_
#define SPARK_ESTIMATOR_ENGINE_SHARED_ROUNDS_H_

#include <vector>

#include "engine/rounds/rounds.h"
#include "transport/shared_group.h"

namespace spark_estimator {

class SharedRounds : public Rounds {
 public:
  // `cache_capacity` ids can be proposed.
  SharedRounds(SharedGroup* group, size_t cache_capacity);

  size_t data_limit() const override { return SegmentLayout::kSmallBytes; }
  void Enter(RoundId) override {}
  void Post(RoundId round, const Proposal& proposal, size_t data_bytes, const WriteData& write_data,
            int64_t arena_offset) override;
  Status Await(Time deadline, bool* done) override;
  const Outcome& outcome() const override { return outcome_; }
  const uint8_t* data_of(int rank) const override;
  size_t data_bytes_of(int rank) const override;
  bool InArenas(size_t bytes, std::vector<uint8_t*>* data_of) const override;

 private:
  const ProposalHeader& HeaderOf(int rank) const;
  void Conclude();
  void ConcludeSets();

  SharedGroup* const group_;
  const size_t cache_capacity_;
  uint32_t position_ = 0;
  int awaited_ = 0;  // ranks below this have posted
  Outcome outcome_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_SHARED_ROUNDS_H_
