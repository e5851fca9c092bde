// Exchanges the proposals of all ranks for one position; see proposal.h.
#ifndef SPARK_ESTIMATOR_ENGINE_ROUNDS_H_
#define SPARK_ESTIMATOR_ENGINE_ROUNDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/status.h"
#include "engine/wire/message.h"
#include "engine/wire/proposal.h"

namespace spark_estimator {

// Used by the driving thread, one at a time.
class Rounds {
 public:
  // Writes this rank's data, `bytes` of them, to `target`, where the others will read it.
  using WriteData = std::function<void(uint8_t* target)>;

  virtual ~Rounds() = default;

  // The most bytes of one rank's data that may be sent with its proposal.
  virtual size_t data_limit() const = 0;
  // Begins at `round`, as all ranks do after a return from full negotiation. Positions count up from there.
  virtual void Enter(RoundId round) = 0;
  // Posts this rank's proposal for `round`. `arena_offset`: see ProposalHeader; -1 for none.
  virtual void Post(RoundId round, const Proposal& proposal, size_t data_bytes, const WriteData& write_data,
                    int64_t arena_offset) = 0;
  // Waits for the others' proposals until `deadline`, which should be soon: a rank that ends the rounds while another
  // is late is noticed between waits. *done when the outcome is there. An error ends the engine.
  virtual Status Await(Time deadline, bool* done) = 0;
  virtual const Outcome& outcome() const = 0;
  // The data that `rank` sent with its proposal, if the outcome shows that all did. Valid until the next Post.
  virtual const uint8_t* data_of(int rank) const = 0;
  // How many bytes that are, by its own account and never more than there are.
  virtual size_t data_bytes_of(int rank) const = 0;
  // The address of the single proposal's tensor, of this number of bytes, in each rank's arena; false if some are not
  // in one.
  virtual bool InArenas(size_t bytes, std::vector<uint8_t*>* data_of) const = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_ROUNDS_H_
