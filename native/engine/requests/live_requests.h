// The requests of a rank that have not ended: they fail when the engine breaks, also those that other lists refer to.
#ifndef SPARK_ESTIMATOR_ENGINE_LIVE_REQUESTS_H_
#define SPARK_ESTIMATOR_ENGINE_LIVE_REQUESTS_H_

#include <utility>

#include "engine/requests/request.h"

namespace spark_estimator {

// A list through the requests themselves: nothing is allocated, so it can neither fail nor lose one. It holds each of
// them alive. Not thread-safe.
class LiveRequests {
 public:
  LiveRequests() = default;
  ~LiveRequests() {
    while (oldest_) Remove(*oldest_);
  }
  LiveRequests(const LiveRequests&) = delete;
  LiveRequests& operator=(const LiveRequests&) = delete;

  // In order of submission.
  Request* oldest() const noexcept { return oldest_.get(); }
  void Add(const RequestPtr& request) noexcept {
    request->is_live = true;
    request->older = newest_;
    (newest_ != nullptr ? newest_->younger : oldest_) = request;
    newest_ = request.get();
  }
  // Gives back what the list held of it: perhaps the last reference. Null for one that is not in the list.
  RequestPtr Remove(Request& request) noexcept {
    if (!request.is_live) return nullptr;
    request.is_live = false;
    RequestPtr& link = request.older != nullptr ? request.older->younger : oldest_;
    RequestPtr removed = std::exchange(link, std::move(request.younger));
    (link ? link->older : newest_) = request.older;
    request.older = nullptr;
    return removed;
  }

 private:
  RequestPtr oldest_;
  Request* newest_ = nullptr;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_LIVE_REQUESTS_H_
