// Makes this rank's proposals from its pending requests, and runs what the ranks agree on in a round.
//
// It has no state. Threads: used by the driving thread.
#ifndef SPARK_ESTIMATOR_ENGINE_ROUND_OPERATIONS_H_
#define SPARK_ESTIMATOR_ENGINE_ROUND_OPERATIONS_H_

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "engine/executor.h"
#include "engine/membership/membership.h"
#include "engine/operation_runner.h"
#include "engine/parameters.h"
#include "engine/requests/pending_requests.h"
#include "engine/requests/request.h"
#include "engine/requests/response_cache.h"
#include "engine/rounds/inline_data.h"
#include "engine/rounds/round_driver.h"
#include "transport/arena.h"

namespace spark_estimator {

class RoundOperations {
 public:
  // What it uses; all outlive it.
  struct Parts {
    RoundDriver* rounds = nullptr;
    PendingRequests* pending = nullptr;
    ResponseCache* cache = nullptr;
    OperationRunner* runner = nullptr;
    Executor* executor = nullptr;
    Membership* membership = nullptr;
    const Parameters* parameters = nullptr;
    const Arena* arena = nullptr;  // of tensors that all ranks see; null where not all share memory
  };

  explicit RoundOperations(Parts parts) : parts_(parts), self_{parts.membership->rank(), parts.membership->size()} {}

  // Posts the pending requests, of which there must be at least one.
  void Post();
  // Runs what the round that was just concluded agreed on.
  Status RunOutcome();

 private:
  Status RunSingle(const RequestPtr& request, const Outcome& outcome);
  Status RunSet(const Outcome& outcome);
  Status RunWithInlineData(Request& request, const std::vector<int64_t>& rows);
  const std::vector<int64_t>& RowsOf(const Request& request) const { return parts_.cache->At(request.cache_id)->rows; }
  // The offset of the one tensor of an allreduce in place in this rank's arena; -1 if it is elsewhere.
  int64_t ArenaOffset(const Request& request) const;

  const Parts parts_;
  const GroupRank self_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_ROUND_OPERATIONS_H_
