// The requests that this rank is ready to run, as the rounds propose them: by the ids that the response cache gives.
//
//   cached    proposed in every round until all ranks propose it, too; at most one a cache id
//   queued    an unnamed, cached request behind an older one of its kind, which alone is in the proposed set; it moves
//             up when that one is taken
//   uncached  new to the cache: the rounds cannot run it, and the rank must leave them for full negotiation
//
// Threads: used by the driving thread; AllDeferred() and the counts also by a thread that holds the engine's lock while
// no thread drives.
#ifndef SPARK_ESTIMATOR_ENGINE_PENDING_REQUESTS_H_
#define SPARK_ESTIMATOR_ENGINE_PENDING_REQUESTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/observe/counters.h"
#include "engine/requests/request.h"
#include "engine/requests/response_cache.h"
#include "engine/wire/proposal.h"

namespace spark_estimator {

class PendingRequests {
 public:
  // Both outlive it.
  PendingRequests(const ResponseCache* cache, Counters* counters);

  // Takes in what was submitted, in order; leaves `submitted` empty.
  void Add(std::vector<RequestPtr>& submitted);
  // The cached request of this id; there must be one.
  const Request& At(int32_t id) const { return *by_id_[static_cast<size_t>(id)]; }
  // The only request of the next proposal; null for none or several.
  const Request* single() const;
  // Removes a cached request; the next of its kind moves up.
  RequestPtr Take(int32_t id);
  // Removes all: cached ones with the queued behind them, by id, then uncached ones.
  std::vector<RequestPtr> TakeAll();
  // Removes all where no memory may be taken.
  void Clear() noexcept;

  bool has_cached() const { return num_cached_ > 0; }
  bool has_queued() const { return num_queued_ > 0; }
  bool has_uncached() const { return !uncached_.empty(); }
  // Whether all cached and queued ones can wait for the next wait of a caller.
  bool AllDeferred() const;

  // The cached ids.
  const IdSet& ids() const { return ids_; }
  // The kinds with queued requests, as many as a proposal holds; valid until the next call.
  const Lines& MakeLines();

 private:
  void Propose(RequestPtr request);

  const ResponseCache* const cache_;
  Counters* const counters_;
  std::vector<RequestPtr> by_id_;  // [cache capacity]; null where nothing is pending
  IdSet ids_;                      // of by_id_
  int num_cached_ = 0;
  int num_queued_ = 0;
  std::vector<RequestPtr> uncached_;
  Lines lines_;
};

// Inline: each round calls these.

inline void PendingRequests::Propose(RequestPtr request) {
  const int32_t id = request->cache_id;
  if (request->unnamed != nullptr) request->unnamed->is_proposed = true;
  ids_.Add(id);
  num_cached_ += 1;
  by_id_[static_cast<size_t>(id)] = std::move(request);
}

inline const Request* PendingRequests::single() const {
  if (num_cached_ != 1 || num_queued_ != 0) return nullptr;
  return by_id_[static_cast<size_t>(ids_.First())].get();
}

inline RequestPtr PendingRequests::Take(int32_t id) {
  ids_.Remove(id);
  num_cached_ -= 1;
  RequestPtr taken = std::move(by_id_[static_cast<size_t>(id)]);
  Unnamed* kind = taken->unnamed;
  if (kind == nullptr) return taken;
  kind->is_proposed = false;
  if (kind->younger.empty()) return taken;
  RequestPtr next = std::move(kind->younger.front());
  kind->younger.pop_front();
  num_queued_ -= 1;
  Propose(std::move(next));
  return taken;
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_PENDING_REQUESTS_H_
