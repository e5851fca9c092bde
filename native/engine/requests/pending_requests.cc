#include "engine/requests/pending_requests.h"

#include <utility>

namespace spark_estimator {

PendingRequests::PendingRequests(const ResponseCache* cache, Counters* counters)
    : cache_(cache), counters_(counters), by_id_(cache->capacity()), ids_(cache->capacity()) {}

void PendingRequests::Add(std::vector<RequestPtr>& submitted) {
  for (RequestPtr& request : submitted) {
    const ResponseCache::Entry* entry = nullptr;
    Plan* plan = request->plan;
    if (plan != nullptr && plan->cache_generation == cache_->generation()) {
      entry = cache_->At(plan->cache_id);
    } else if (request->signature->op != SE_JOIN) {
      entry = cache_->Find(*request->signature);
      if (plan != nullptr) {
        plan->cache_generation = cache_->generation();
        plan->cache_id = entry != nullptr ? entry->id : -1;
      }
    }
    if (entry == nullptr) {
      Increase(counters_->cache_misses);
      uncached_.push_back(std::move(request));
      continue;
    }
    Increase(counters_->cache_hits);
    request->cache_id = entry->id;
    if (Unnamed* kind = request->unnamed; kind != nullptr && kind->is_proposed) {
      request->had_to_queue = true;
      kind->younger.push_back(std::move(request));
      num_queued_ += 1;
      continue;
    }
    Propose(std::move(request));
  }
  submitted.clear();
}

std::vector<RequestPtr> PendingRequests::TakeAll() {
  std::vector<RequestPtr> pending;
  ids_.ForEach([&](int32_t id) {
    RequestPtr request = std::exchange(by_id_[static_cast<size_t>(id)], nullptr);
    Unnamed* kind = request->unnamed;
    pending.push_back(std::move(request));
    if (kind == nullptr) return;
    for (RequestPtr& younger : std::exchange(kind->younger, {})) pending.push_back(std::move(younger));
    kind->is_proposed = false;
  });
  ids_.Clear();
  num_cached_ = 0;
  num_queued_ = 0;
  for (RequestPtr& request : std::exchange(uncached_, {})) pending.push_back(std::move(request));
  return pending;
}

void PendingRequests::Clear() noexcept {
  uncached_.clear();
  ids_.ForEach([&](int32_t id) {
    RequestPtr request = std::move(by_id_[static_cast<size_t>(id)]);
    if (request == nullptr || request->unnamed == nullptr) return;
    request->unnamed->younger.clear();
    request->unnamed->is_proposed = false;
  });
  for (RequestPtr& request : by_id_) request.reset();
  ids_.Clear();
  num_cached_ = 0;
  num_queued_ = 0;
}

bool PendingRequests::AllDeferred() const {
  bool all_deferred = true;
  ids_.ForEach([&](int32_t id) {
    const Request& request = At(id);
    all_deferred = all_deferred && request.deferred;
    if (request.unnamed == nullptr) return;
    for (const RequestPtr& younger : request.unnamed->younger) all_deferred = all_deferred && younger->deferred;
  });
  return all_deferred;
}

const Lines& PendingRequests::MakeLines() {
  lines_.clear();
  size_t room = kMostInLines;
  ids_.ForEach([&](int32_t id) {
    const Unnamed* kind = At(id).unnamed;
    if (kind == nullptr || kind->younger.empty() || room < 3) return;
    Line& line = lines_.emplace_back(1, id);
    room -= 2;  // for its length, and the oldest
    for (const RequestPtr& younger : kind->younger) {
      if (room == 0) break;
      line.push_back(younger->cache_id);
      room -= 1;
    }
  });
  return lines_;
}

}  // namespace spark_estimator
