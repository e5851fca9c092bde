// A rank's requests from their submission to their end: names in flight, numbers of unnamed ones, handles, results.
//
//   submitted  Enqueue, until the driving thread takes it out of submitted()
//   driven     held by the driving thread (PendingRequests, Negotiation)
//   done       Complete, Break, or failed at once by Enqueue; outcome and results are at its handle until Release
//
// A name in flight is refused a second time. Once broken, the table refuses every request with the cause.
//
// Threads: any. lock() guards everything; functions that are documented so are called by a thread that holds it, the
// others acquire it. is_broken() is read without it.
#ifndef SPARK_ESTIMATOR_ENGINE_REQUEST_TABLE_H_
#define SPARK_ESTIMATOR_ENGINE_REQUEST_TABLE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/contain.h"
#include "base/status.h"
#include "engine/drive_turn.h"
#include "engine/observe/counters.h"
#include "engine/requests/live_requests.h"
#include "engine/requests/request.h"

namespace spark_estimator {

class RequestTable {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // Both outlive it.
  RequestTable(DriveTurn* turn, Counters* counters) : turn_(turn), counters_(counters) {}

  Lock lock() const { return Lock(mutex_); }

  // --- submission, holding the lock

  // Takes in a request. What it throws has changed nothing.
  Status Enqueue(const RequestPtr& request, bool wants_handle);
  void GiveHandle(const RequestPtr& request);
  // The plan's next request, whose last one must not be in flight. It is used again when only the plan holds it.
  RequestPtr NextOf(Plan& plan, const void* const* inputs, void* const* outputs, bool deferred);
  // The plan's request is still in flight.
  static bool IsInFlight(const Plan& plan) {
    return plan.request && plan.request->plan == &plan && !plan.request->done;
  }
  // For a plan that is destroyed: its last request does not point to it any more.
  void Retire(Plan& plan);
  // What the driving thread has not taken yet, in order.
  std::vector<RequestPtr>& submitted() { return submitted_; }

  // --- the end of requests

  void Complete(const std::vector<RequestPtr>& requests, const Status& outcome);
  void Complete(Request& request, const Status& outcome);
  // An unnamed request of this kind has failed on all ranks. When this rank has not submitted it, or not handed it to
  // the driving thread, it fails here as well.
  void FailUnnamed(const std::string& kind, int64_t number, const std::string& why);
  // All ranks have joined: they may have submitted different numbers of unnamed requests.
  void RestartNumbers();
  // Fails everything that has not ended, and every later request. False when it was broken already. Needs no memory:
  // the texts are shorter if there is none. `record` receives each request that is not in the flight recorder; it may
  // throw.
  template <typename Record>
  bool Break(const Status& why, Record&& record) noexcept;
  bool is_broken() const { return is_broken_; }
  // Whether a request has not ended. Holding the lock.
  bool any_live() const { return live_.oldest() != nullptr; }
  // Why; of a broken table.
  const Status& broken() const { return broken_; }
  // Refuses every later request, as after shutdown.
  void Stop() { stopping_ = true; }
  bool is_stopping() const { return stopping_; }

  // --- by handle

  // Null for an unknown one. Holding the lock.
  RequestPtr Find(int64_t handle) const;
  Status GetResult(int64_t handle, int tensor, se_result* result) const;
  Status TakeResultData(int64_t handle, int tensor, void** data);
  // A request of GPU tensors that has succeeded. No thread writes to it any more.
  Status FindDoneOnGpu(int64_t handle, RequestPtr* request) const;
  void Release(int64_t handle);
  static Status UnknownHandle(int64_t handle);

 private:
  bool Register(const Request& request);
  void Unregister(const Request& request) noexcept;
  void GiveNumber(Request& request);
  void CompleteLocked(Request& request, const Status& outcome) noexcept;

  DriveTurn* const turn_;
  Counters* const counters_;
  mutable std::mutex mutex_;
  LiveRequests live_;  // all that have not ended
  std::vector<RequestPtr> submitted_;
  std::unordered_map<int64_t, RequestPtr> handles_;
  std::unordered_map<std::string_view, const Request*> in_flight_;  // the names are in the signatures
  std::vector<const Request*> plans_in_flight_;
  std::unordered_map<std::string, Unnamed> unnamed_;  // by kind
  int64_t next_handle_ = 1;
  uint64_t next_order_ = 0;
  Status broken_;  // not OK: why nothing can be submitted any more
  std::atomic<bool> is_broken_{false};
  std::atomic<bool> stopping_{false};
};

template <typename Record>
bool RequestTable::Break(const Status& why, Record&& record) noexcept {
  Lock held = lock();
  if (is_broken_) return false;
  broken_ = why;
  is_broken_ = true;
  while (Request* request = live_.oldest()) {
    if (!request->recorded) {
      try {
        record(*request);
      } catch (...) {  // without memory it is not recorded
      }
    }
    CompleteLocked(*request, WithinIfPossible(why, [&] { return LabelOf(*request) + " failed"; }));
  }
  submitted_.clear();
  turn_->WakeAll();
  return true;
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_REQUEST_TABLE_H_
