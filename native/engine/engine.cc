// What callers of an engine do, from any thread: submit, wait, take results, leave.
#include "engine/engine.h"

#include <unistd.h>

#include <utility>

#include "base/dtype.h"
#include "base/scoped.h"

namespace spark_estimator {
namespace {

RequestPtr MakeRequest(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory) {
  auto request = std::make_shared<Request>();
  request->bytes = signature->Bytes();
  request->signature = std::move(signature);
  request->memory = std::move(memory);
  return request;
}

Status Unknown(int64_t handle) {
  return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " is unknown or was released");
}

struct CounterRow {
  const char* name;
  std::atomic<int64_t> Counters::* value;
};
constexpr CounterRow kCounters[] = {
    {"requests", &Counters::requests},
    {"operations", &Counters::operations},
    {"gpu_operations", &Counters::gpu_operations},
    {"staged_operations", &Counters::staged_operations},
    {"fused_requests", &Counters::fused_requests},
    {"inline_operations", &Counters::inline_operations},
    {"rounds", &Counters::rounds},
    {"slow_phases", &Counters::slow_phases},
    {"responses", &Counters::responses},
    {"cache_hits", &Counters::cache_hits},
    {"cache_misses", &Counters::cache_misses},
    {"shared_bytes", &Counters::shared_bytes},
    {"stream_bytes", &Counters::stream_bytes},
    {"control_bytes_sent", &Counters::control_bytes_sent},
    {"wait_nanoseconds", &Counters::wait_nanoseconds},
    {"execution_nanoseconds", &Counters::execution_nanoseconds},
    {"wakeups", &Counters::wakeups},
};

}  // namespace

Engine::~Engine() {
  Shutdown();
  FreeKeptMemory();  // it may have been the last to need any
}

// --- submitting

Status Engine::Enqueue(const RequestPtr& request, bool wants_handle) {
  const Signature& signature = *request->signature;
  bool counted = false;
  bool registered = false;
  try {
    if (signature.unnamed()) Count(*request);
    counted = signature.unnamed();
    if (stopping_) return Status(SE_SHUT_DOWN, LabelOf(*request) + " was submitted after shutdown");
    if (!broken_.ok()) return broken_.Within(LabelOf(*request) + " failed");
    if (request->unnamed == nullptr && IsInFlight(*request)) {
      return Status(SE_DUPLICATE_NAME, "a request named '" + signature.name +
                                           "' is still in flight on this rank; wait for it first, or use another name");
    }
    registered = request->unnamed == nullptr;
    if (wants_handle) GiveHandle(request);
    if (request->unnamed != nullptr && request->number <= request->unnamed->failed_through) {
      // The sentence may be about a younger one that failed with it.
      request->outcome = Status(SE_MISMATCH, request->unnamed->failure + " (request '" + FullName(*request) + "')");
      request->done = true;
    } else {
      submitted_.push_back(request);
    }
  } catch (...) {
    // As if it had never been submitted. The next of its kind needs its number, to meet those of the other ranks.
    if (registered) Unregister(*request);
    if (counted) request->unnamed->next -= 1;
    if (request->handle != 0) handles_.erase(request->handle);
    request->done = true;
    throw;
  }
  request->submitted = Clock::now();
  request->order = next_order_++;
  Increase(counters_.requests);
  if (!request->done) live_.Add(request);
  return Status::Ok();
}

void Engine::GiveHandle(const RequestPtr& request) {
  handles_.emplace(next_handle_, request);
  request->handle = next_handle_++;
}

Status Engine::Accept(const Signature& signature, GpuPlace place, GpuWork* work) {
  if (signature.place == SE_HOST) return Status::Ok();
  return gpu_->Accept(place.device, place.stream, work).Within(LabelOf(signature, signature.number));
}

// Gives a request without a name its number.
void Engine::Count(Request& request) {
  Plan* plan = request.plan;
  request.unnamed = plan != nullptr ? plan->unnamed : nullptr;
  if (request.unnamed == nullptr) request.unnamed = &unnamed_[request.signature->name];
  if (plan != nullptr) plan->unnamed = request.unnamed;
  request.number = request.unnamed->next++;
}

// Whether another request of that name is on its way; if not, this one is from now on.
bool Engine::IsInFlight(const Request& request) {
  const std::string& name = request.signature->name;
  for (const Request* other : plans_in_flight_) {
    if (other->signature->name == name) return true;
  }
  if (request.plan == nullptr) return !in_flight_.try_emplace(name, &request).second;
  // Plans are few, and submitted without an allocation.
  if (!in_flight_.empty() && in_flight_.contains(name)) return true;
  plans_in_flight_.push_back(&request);
  return false;
}

// Its name is free again.
void Engine::Unregister(const Request& request) noexcept {
  if (request.plan == nullptr) {
    in_flight_.erase(request.signature->name);
  } else {
    std::erase(plans_in_flight_, &request);
  }
}

Status Engine::Submit(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory, GpuPlace place,
                      int64_t* handle) {
  const RequestPtr request = MakeRequest(std::move(signature), std::move(memory));
  SE_RETURN_IF_ERROR(Accept(*request->signature, place, &request->gpu));
  {
    Lock lock(mutex_);
    SE_RETURN_IF_ERROR(Enqueue(request, true));
    *handle = request->handle;
  }
  Wake();
  return Status::Ok();
}

Status Engine::Run(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory, GpuPlace place,
                   Seconds timeout, int64_t* handle) {
  const RequestPtr request = MakeRequest(std::move(signature), std::move(memory));
  SE_RETURN_IF_ERROR(Accept(*request->signature, place, &request->gpu));
  // Results are asked for by handle.
  const bool has_result = !request->signature->parts.empty() &&
                          (request->signature->op == SE_ALLGATHER || request->signature->op == SE_ALLTOALL);
  Lock lock(mutex_);
  SE_RETURN_IF_ERROR(Enqueue(request, has_result || request->signature->op == SE_JOIN));
  const Status status = WaitOrGiveHandle(lock, request, timeout);
  *handle = request->handle;
  lock.unlock();
  return Concluded(status, *request);
}

RequestPtr Engine::RequestOf(Plan& plan, const void* const* inputs, void* const* outputs, bool deferred) {
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
    request.memory[i] = {inputs[i], outputs != nullptr ? outputs[i] : nullptr, plan.output_bytes[i]};
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

Status Engine::SubmitPlan(Plan& plan, const void* const* inputs, void* const* outputs, CudaStream stream, bool deferred,
                          int64_t* handle) {
  // A GPU works beside the CPU's computing without taking cores from it.
  deferred = deferred && !config_.overlap && plan.signature->place == SE_HOST;
  GpuWork work;
  SE_RETURN_IF_ERROR(Accept(*plan.signature, {plan.device, stream}, &work));
  {
    Lock lock(mutex_);
    if (plan.request && plan.request->plan == &plan && !plan.request->done) {
      return Status(SE_DUPLICATE_NAME, "the plan '" + plan.signature->name + "' is still in flight on this rank");
    }
    const RequestPtr request = RequestOf(plan, inputs, outputs, deferred);
    request->gpu = std::move(work);
    if (const Status status = Enqueue(request, true); !status.ok()) {
      request->done = true;
      return status;
    }
    *handle = request->handle;
  }
  if (!deferred || !fast_ || nudged_) Wake();
  return Status::Ok();
}

Status Engine::RunPlan(Plan& plan, const void* const* inputs, void* const* outputs, CudaStream stream, Seconds timeout,
                       int64_t* handle) {
  GpuWork work;
  SE_RETURN_IF_ERROR(Accept(*plan.signature, {plan.device, stream}, &work));
  Lock lock(mutex_);
  if (plan.request && plan.request->plan == &plan && !plan.request->done) {
    return Status(SE_DUPLICATE_NAME, "the plan '" + plan.signature->name + "' is still in flight on this rank");
  }
  const RequestPtr request = RequestOf(plan, inputs, outputs, false);
  request->gpu = std::move(work);
  const int32_t op = plan.signature->op;
  if (const Status status = Enqueue(request, op == SE_ALLGATHER || op == SE_ALLTOALL || op == SE_JOIN); !status.ok()) {
    request->done = true;
    return status;
  }
  const Status status = WaitOrGiveHandle(lock, request, timeout);
  *handle = request->handle;
  lock.unlock();
  return Concluded(status, *request);
}

Status Engine::Concluded(const Status& outcome, const Request& request) {
  if (!outcome.ok() || !request.gpu.done) return outcome;
  // It was carried out: what is thrown here does not say that it was not submitted.
  return Contained([&] { return gpu_->AwaitOn(request, request.gpu.stream).Within(LabelOf(request)); });
}

void Engine::Retire(Plan& plan) {
  Lock lock(mutex_);
  if (!plan.request || plan.request->plan == nullptr) return;
  Request& request = *plan.request;
  // In flight, against the rules: it goes on as a request that has no plan.
  if (std::erase(plans_in_flight_, &request) > 0) {
    // Without memory for that, another request of its name is not refused.
    (void)Contained([&] {
      in_flight_.try_emplace(request.signature->name, &request);
      return Status::Ok();
    });
  }
  request.plan = nullptr;
}

// --- waiting

bool Engine::MayDrive() const { return !driving_ && !thread_wants_ && fast_ && !is_broken_; }

void Engine::LeaveDriving() {
  if (control_claimed_) {
    if (fast_) last_driven_ = Clock::now();
    ClaimControl(false);
  }
  if (waiting_ > 0) {
    changed_.notify_all();
  } else if (!WorksAlone() || any_goodbye_) {
    Wake();
  }
}

// Whether what is pending can do without the engine's thread, for now.
bool Engine::WorksAlone() const {
  if (!unknown_.empty() || !fast_) return false;
  if (num_pending_ids_ == 0) return true;
  if (nudged_) return false;
  bool all_deferred = true;
  pending_ids_.ForEach([&](int32_t id) {
    const Request& request = *by_id_[static_cast<size_t>(id)];
    all_deferred = all_deferred && request.deferred;
    if (request.unnamed == nullptr) return;
    for (const RequestPtr& younger : request.unnamed->younger) all_deferred = all_deferred && younger->deferred;
  });
  return all_deferred;
}

Status Engine::WaitFor(Lock& lock, const RequestPtr& request, Time deadline) {
  bool woken = false;
  while (!request->done) {
    if (MayDrive()) {
      {
        const ScopedValue driving(driving_, true);
        const Status status = Contained([&] {
          Classify(submitted_);
          lock.unlock();
          return DriveRounds(request.get(), deadline);
        });
        if (lock.owns_lock()) lock.unlock();
        if (!status.ok()) Break(status);
        lock.lock();
      }
      LeaveDriving();
      if (request->done) break;
      if (fast_ && Clock::now() >= deadline) return Status(SE_IN_PROGRESS, "");
      continue;
    }
    // The engine's thread, or another caller, is at it; or the engine's thread must be.
    if (!driving_ && !woken) {
      Wake();
      woken = true;
    }
    bool timed_out = false;
    {
      const ScopedCount waits(waiting_);
      if (deadline == Time::max()) {
        changed_.wait(lock);
      } else {
        timed_out = changed_.wait_until(lock, deadline) == std::cv_status::timeout;
      }
    }
    if (timed_out && !request->done && Clock::now() >= deadline) return Status(SE_IN_PROGRESS, "");
  }
  return request->outcome;
}

Status Engine::WaitOrGiveHandle(Lock& lock, const RequestPtr& request, Seconds timeout) {
  while (true) {
    const Status status = WaitFor(lock, request, timeout.count() > 1e8 ? Time::max() : After(timeout));
    if (status.code() != SE_IN_PROGRESS || request->handle != 0) return status;
    // Its tensors are in use: without a handle, the caller cannot leave it.
    const Status given = Contained([&] {
      GiveHandle(request);
      return Status::Ok();
    });
    if (given.ok()) return status;
  }
}

Status Engine::Poll(int64_t handle) { return Wait(handle, Seconds(0)); }

Status Engine::Wait(int64_t handle, Seconds timeout) {
  Lock lock(mutex_);
  const auto entry = handles_.find(handle);
  if (entry == handles_.end()) return Unknown(handle);
  const RequestPtr request = entry->second;
  return WaitFor(lock, request, timeout.count() > 1e8 ? Time::max() : After(timeout));
}

// --- results

Status Engine::GetResult(int64_t handle, int tensor, se_result* result) {
  Lock lock(mutex_);
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

Status Engine::TakeResultData(int64_t handle, int tensor, void** data) {
  Lock lock(mutex_);
  const auto entry = handles_.find(handle);
  if (entry == handles_.end() || !entry->second->done || tensor < 0 ||
      static_cast<size_t>(tensor) >= entry->second->gathered.size()) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " has no result (yet)");
  }
  *data = entry->second->gathered[static_cast<size_t>(tensor)].owned.release();
  return Status::Ok();
}

Status Engine::AwaitOnStream(int64_t handle, CudaStream stream) {
  RequestPtr request;
  SE_RETURN_IF_ERROR(FindDone(handle, &request));
  return gpu_->AwaitOn(*request, stream).Within(LabelOf(*request));
}

Status Engine::CopyResult(int64_t handle, int tensor, void* output, CudaStream stream) {
  RequestPtr request;
  SE_RETURN_IF_ERROR(FindDone(handle, &request));
  if (tensor < 0 || static_cast<size_t>(tensor) >= request->gathered.size()) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " has no tensor " + std::to_string(tensor));
  }
  return gpu_->CopyResult(*request, static_cast<size_t>(tensor), output, stream).Within(LabelOf(*request));
}

// A request of GPU tensors that is done well. Nobody writes to it any more.
Status Engine::FindDone(int64_t handle, RequestPtr* request) {
  Lock lock(mutex_);
  const auto entry = handles_.find(handle);
  if (entry == handles_.end()) return Unknown(handle);
  *request = entry->second;
  if ((*request)->done && (*request)->outcome.ok() && (*request)->signature->place == SE_GPU) return Status::Ok();
  return Status(SE_INVALID_ARGUMENT,
                LabelOf(**request) + " has no results on a GPU" + ((*request)->done ? "" : " yet: wait for it first"));
}

void Engine::Release(int64_t handle) {
  RequestPtr request;  // what it holds on a GPU is given back without the lock
  Lock lock(mutex_);
  const auto entry = handles_.find(handle);
  if (entry == handles_.end()) return;
  request = std::move(entry->second);
  handles_.erase(entry);
  lock.unlock();
}

Status Engine::AllocateShared(size_t bytes, void** data) {
  arena_used_ = true;
  return arena_->Allocate(bytes, data);
}

// --- questions to this process

Status Engine::AwaitQuestion(Seconds timeout, int64_t* question) {
  Lock lock(mutex_);
  asked_.wait_until(lock, After(timeout), [&] { return !questions_.empty() || stopping_; });
  if (stopping_) return Status(SE_SHUT_DOWN, "this rank has shut down");
  if (questions_.empty()) return Status(SE_IN_PROGRESS, "");
  *question = questions_.front();
  questions_.pop_front();
  return Status::Ok();
}

void Engine::Answer(int64_t question, std::string text) {
  {
    Lock lock(mutex_);
    answers_.push_back(Talk{question, std::move(text)});
  }
  Wake();
}

// --- counters, the end

int64_t Engine::Counter(std::string_view name) const {
  for (const CounterRow& row : kCounters) {
    if (name == row.name) return (counters_.*row.value).load(std::memory_order_relaxed);
  }
  if (name == "shared_memory") return all_share_ ? 1 : 0;
  if (name == "hosts_share") return local_ ? 1 : 0;
  return -1;
}

const char* Engine::CounterNames() {
  static const std::string names = [] {
    std::string text;
    for (const CounterRow& row : kCounters) text += std::string(row.name) + " ";
    return text + "shared_memory hosts_share";
  }();
  return names.c_str();
}

Status Engine::Describe(const std::string& what, std::string* text) const {
  if (what == "flight_recorder") {
    *text = recorder_.Text();
    return Status::Ok();
  }
  if (what == "algorithms") {
    *text = executor_->DescribeChoices();
    return Status::Ok();
  }
  if (what == "gpu") {
    *text = gpu_->Describe();
    return Status::Ok();
  }
  return Status(SE_INVALID_ARGUMENT,
                "there is no description of '" + what + "'; ask for flight_recorder, algorithms or gpu");
}

Status Engine::StartTimeline(const std::string& path, bool mark_cycles) {
  return timeline_.Start(path, config_.global_rank, config_.size, config_.name, mark_cycles, config_.process_set);
}

void Engine::Shutdown() {
  std::lock_guard<std::mutex> one_at_a_time(shutdown_mutex_);
  if (!thread_.joinable()) return;
  {
    Lock lock(mutex_);
    stopping_ = true;
    asked_.notify_all();
    changed_.notify_all();
  }
  Wake();
  thread_.join();
  gpu_->Leave();
  timeline_.Stop();
}

void Engine::AbandonAfterFork() {
  // Plain closes of numbers: locks may be held by threads that do not exist here, and freeing could wait for them.
  for (const Peer& peer : peers_) {
    if (peer.control) ::close(peer.control->fd());
  }
  if (streams_) streams_->AbandonAfterFork();
  for (const int fd : {wake_fd_.get(), control_poll_.get(), thread_poll_.get(), config_.own_segment.get()}) {
    if (fd >= 0) ::close(fd);
  }
  arena_->AbandonAfterFork();
}

void Engine::Wake() {
  if (wake_pending_.exchange(true)) return;  // somebody's wake-up has not been seen yet: it stands for ours, too
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof(one));
}

}  // namespace spark_estimator
