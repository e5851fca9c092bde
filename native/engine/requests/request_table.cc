#include "engine/requests/request_table.h"

#include <algorithm>

namespace spark_estimator {

Status RequestTable::Enqueue(const RequestPtr& request, bool wants_handle) {
  const Signature& signature = *request->signature;
  bool numbered = false;
  bool registered = false;
  try {
    if (signature.unnamed()) GiveNumber(*request);
    numbered = signature.unnamed();
    if (stopping_) return Status(SE_SHUT_DOWN, LabelOf(*request) + " was submitted after shutdown");
    if (!broken_.ok()) return broken_.Within(LabelOf(*request) + " failed");
    if (request->unnamed == nullptr && !Register(*request)) {
      return Status(SE_DUPLICATE_NAME, "an operation named '" + signature.name +
                                           "' is still in progress on this rank: wait for it, or use another name");
    }
    registered = request->unnamed == nullptr;
    if (wants_handle) GiveHandle(request);
    if (request->unnamed != nullptr && request->number <= request->unnamed->failed_through) {
      // The sentence may be about a younger one that failed with it.
      request->outcome = Status(
          SE_MISMATCH, LabelOf(*request) + " failed before this rank submitted it: " + request->unnamed->failure);
      request->done = true;
    } else {
      submitted_.push_back(request);
    }
  } catch (...) {
    // As if it had never been submitted. The next of its kind needs its number, to match those of the other ranks.
    if (registered) Unregister(*request);
    if (numbered) request->unnamed->next -= 1;
    if (request->handle != 0) handles_.erase(request->handle);
    request->done = true;
    throw;
  }
  request->submitted = Clock::now();
  request->order = next_order_++;
  Increase(counters_->requests);
  if (!request->done) live_.Add(request);
  return Status::Ok();
}

void RequestTable::GiveHandle(const RequestPtr& request) {
  handles_.emplace(next_handle_, request);
  request->handle = next_handle_++;
}

void RequestTable::GiveNumber(Request& request) {
  Plan* plan = request.plan;
  request.unnamed = plan != nullptr ? plan->unnamed : nullptr;
  if (request.unnamed == nullptr) request.unnamed = &unnamed_[request.signature->name];
  if (plan != nullptr) plan->unnamed = request.unnamed;
  request.number = request.unnamed->next++;
}

// False when another request of that name is in flight.
bool RequestTable::Register(const Request& request) {
  const std::string& name = request.signature->name;
  for (const Request* other : plans_in_flight_) {
    if (other->signature->name == name) return false;
  }
  if (request.plan == nullptr) return in_flight_.try_emplace(name, &request).second;
  // Plans are few, and submitted without an allocation.
  if (!in_flight_.empty() && in_flight_.contains(name)) return false;
  plans_in_flight_.push_back(&request);
  return true;
}

// Its name is free again.
void RequestTable::Unregister(const Request& request) noexcept {
  if (request.plan == nullptr) {
    in_flight_.erase(request.signature->name);
  } else {
    std::erase(plans_in_flight_, &request);
  }
}

RequestPtr RequestTable::NextOf(Plan& plan, const void* const* inputs, void* const* outputs, bool deferred) {
  // Held by the plan alone: its time is over, and it is used again. Giving up a copy orders what others did with it
  // before what is done now; looking at the count alone does not.
  bool alone = false;
  if (plan.request) {
    RequestPtr copy = plan.request;
    alone = copy.use_count() == 2;
    copy.reset();
  }
  if (!alone) plan.request = std::make_shared<Request>();
  Request& request = *plan.request;
  const size_t parts = plan.signature->parts.size();
  request.handle = 0;
  request.signature = plan.signature;
  request.bytes = plan.bytes;
  request.memory.resize(parts);
  for (size_t i = 0; i < parts; ++i) {
    request.memory[i] = {inputs[i], outputs != nullptr ? outputs[i] : nullptr, plan.output_bytes[i], plan.residues[i]};
  }
  request.gathered.clear();
  request.gpu = GpuWork();
  request.outcome = Status::Ok();
  request.done = false;
  request.deferred = deferred;
  request.had_to_queue = false;
  request.plan = &plan;
  return plan.request;
}

void RequestTable::Retire(Plan& plan) {
  if (!plan.request || plan.request->plan == nullptr) return;
  Request& request = *plan.request;
  // In flight, against the rules: it continues as a request that has no plan.
  if (std::erase(plans_in_flight_, &request) > 0) {
    try {
      in_flight_.try_emplace(request.signature->name, &request);
    } catch (...) {  // without memory for that, another request of its name is not refused
    }
  }
  request.plan = nullptr;
}

void RequestTable::Complete(const std::vector<RequestPtr>& requests, const Status& outcome) {
  Lock held = lock();
  for (const RequestPtr& request : requests) CompleteLocked(*request, outcome);
}

void RequestTable::Complete(Request& request, const Status& outcome) {
  Lock held = lock();
  CompleteLocked(request, outcome);
}

void RequestTable::CompleteLocked(Request& request, const Status& outcome) noexcept {
  const RequestPtr held = live_.Remove(request);
  if (!request.signature->unnamed()) Unregister(request);
  request.gpu.ready.reset();  // its event is used again
  request.outcome = outcome;
  request.done = true;
  turn_->WakeAllIfAnyWaits();
}

void RequestTable::FailUnnamed(const std::string& kind_name, int64_t number, const std::string& why) {
  Lock held = lock();
  Unnamed& kind = unnamed_[kind_name];
  if (number >= kind.next) {
    kind.failed_through = std::max(kind.failed_through, number);
    kind.failure = why;
    return;
  }
  const auto just_submitted = std::ranges::find_if(
      submitted_, [&](const RequestPtr& request) { return request->unnamed == &kind && request->number == number; });
  if (just_submitted == submitted_.end()) return;
  const RequestPtr request = *just_submitted;
  submitted_.erase(just_submitted);
  CompleteLocked(*request, Status(SE_MISMATCH, why));
}

void RequestTable::RestartNumbers() {
  Lock held = lock();
  for (auto& [name, kind] : unnamed_) {
    kind.next = 0;
    kind.failed_through = -1;
  }
}

RequestPtr RequestTable::Find(int64_t handle) const {
  const auto entry = handles_.find(handle);
  return entry != handles_.end() ? entry->second : nullptr;
}

Status RequestTable::UnknownHandle(int64_t handle) {
  return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " is unknown or was released");
}

Status RequestTable::GetResult(int64_t handle, int tensor, se_result* result) const {
  Lock held = lock();
  const auto entry = handles_.find(handle);
  if (entry == handles_.end() || !entry->second->done) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " has no result (yet)");
  }
  const Request& request = *entry->second;
  *result = se_result{nullptr, 0, nullptr, request.last_joined, 0, request.signature->place};
  if (request.gathered.empty()) return Status::Ok();
  if (tensor < 0 || static_cast<size_t>(tensor) >= request.gathered.size()) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " has no tensor " + std::to_string(tensor));
  }
  const Gathered& gathered = request.gathered[static_cast<size_t>(tensor)];
  result->data = gathered.data;
  result->bytes = gathered.bytes;
  result->rows = gathered.rows.data();
  result->owned = gathered.owned || gathered.on_gpu ? 1 : 0;
  return Status::Ok();
}

Status RequestTable::TakeResultData(int64_t handle, int tensor, void** data) {
  Lock held = lock();
  const auto entry = handles_.find(handle);
  if (entry == handles_.end() || !entry->second->done || tensor < 0 ||
      static_cast<size_t>(tensor) >= entry->second->gathered.size()) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " has no result (yet)");
  }
  *data = entry->second->gathered[static_cast<size_t>(tensor)].owned.release();
  return Status::Ok();
}

Status RequestTable::FindDoneOnGpu(int64_t handle, RequestPtr* request) const {
  Lock held = lock();
  *request = Find(handle);
  if (!*request) return UnknownHandle(handle);
  if ((*request)->done && (*request)->outcome.ok() && (*request)->signature->place == SE_GPU) return Status::Ok();
  return Status(SE_INVALID_ARGUMENT,
                LabelOf(**request) + " has no results on a GPU" + ((*request)->done ? "" : " yet: wait for it first"));
}

void RequestTable::Release(int64_t handle) {
  RequestPtr request;  // its GPU memory is freed without the lock
  Lock held = lock();
  const auto entry = handles_.find(handle);
  if (entry == handles_.end()) return;
  request = std::move(entry->second);
  handles_.erase(entry);
  held.unlock();
}

}  // namespace spark_estimator
