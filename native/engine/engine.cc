// What callers of an engine do, from any thread: create, submit, wait, take results, leave.
#include "engine/engine.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

namespace spark_estimator {
namespace {

// Python installs its handlers for the main thread; a signal that the engine's thread received would interrupt no call.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

Time DeadlineIn(Seconds timeout) { return timeout.count() > 1e8 ? Time::max() : After(timeout); }

RequestPtr MakeRequest(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory) {
  auto request = std::make_shared<Request>();
  request->bytes = signature->Bytes();
  request->signature = std::move(signature);
  request->memory = std::move(memory);
  return request;
}

// Results are asked for by handle.
bool HasResult(int32_t op) { return op == SE_ALLGATHER || op == SE_ALLTOALL; }

}  // namespace

// --- creation

Engine::Engine(EngineConfig config)
    : config_(std::move(config)),
      requests_(&turn_, &counters_),
      group_(&config_, &counters_),
      progress_(&group_, {&requests_, &turn_, &questions_, &waker_, &counters_, &recorder_, &timeline_}),
      shut_down_(SE_SHUT_DOWN, "this rank has shut down") {}

Engine::~Engine() {
  Shutdown();
  FreeKeptMemory();  // it may have been the last to need any
}

Status Engine::Create(EngineConfig config, std::vector<PeerConfig> peers, std::unique_ptr<Engine>* engine) {
  std::unique_ptr<Engine> made(new Engine(std::move(config)));
  const Status status = made->group_.Contained([&] { return made->Start(std::move(peers)); });
  if (status.ok()) {
    *engine = std::move(made);
    return status;
  }
  // The peers are notified of the failure of this rank, unless it was caused by one of them, which all notice. With an
  // overlay only that one's neighbours do.
  const bool is_own = status.code() == SE_NO_MEMORY || status.code() == SE_SYSTEM_ERROR || status.code() == SE_INTERNAL;
  const bool is_seen_by_few = made->config_.overlay && status.code() == SE_PEER_LOST;
  if (is_own || is_seen_by_few) made->group_.group_exit().AnnounceFailure(status);
  return status;
}

Status Engine::Start(std::vector<PeerConfig> peers) {
  SE_RETURN_IF_ERROR(waker_.Open());
  SE_RETURN_IF_ERROR(progress_.Start(std::move(peers)));
  // An error here breaks the engine before there is another thread that might drive it.
  if (const Status early = progress_.frames().TakeEarly(); !early.ok()) progress_.Break(early);
  const AllSignalsBlocked blocked;  // inherited by the thread
  const Status started = group_.Contained([&] {
    thread_ = std::thread([this] { RunThread(); });
    return Status::Ok();
  });
  return started.ok() ? started : started.Within("the engine's thread cannot be started");
}

// --- submitting

Status Engine::Accept(const Signature& signature, GpuPlace place, GpuWork* work) {
  if (signature.place == SE_HOST) return Status::Ok();
  return group_.gpu().Accept(place.device, place.stream, work).Within(LabelOf(signature, signature.number));
}

Status Engine::Submit(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory, GpuPlace place,
                      int64_t* handle) {
  const RequestPtr request = MakeRequest(std::move(signature), std::move(memory));
  SE_RETURN_IF_ERROR(Accept(*request->signature, place, &request->gpu));
  {
    const Lock lock = requests_.lock();
    SE_RETURN_IF_ERROR(requests_.Enqueue(request, true));
    *handle = request->handle;
  }
  waker_.Wake();
  return Status::Ok();
}

Status Engine::Run(std::shared_ptr<const Signature> signature, std::vector<TensorMemory> memory, GpuPlace place,
                   Seconds timeout, int64_t* handle) {
  const RequestPtr request = MakeRequest(std::move(signature), std::move(memory));
  SE_RETURN_IF_ERROR(Accept(*request->signature, place, &request->gpu));
  const int32_t op = request->signature->op;
  const bool has_result = HasResult(op) && !request->signature->parts.empty();
  Lock lock = requests_.lock();
  SE_RETURN_IF_ERROR(requests_.Enqueue(request, has_result || op == SE_JOIN));
  const Status status = WaitOrGiveHandle(lock, request, timeout);
  *handle = request->handle;
  lock.unlock();
  return Concluded(status, *request);
}

Status Engine::EnqueuePlan(Plan& plan, const void* const* inputs, void* const* outputs, bool deferred, GpuWork work,
                           bool wants_handle, RequestPtr* request) {
  if (RequestTable::IsInFlight(plan)) {
    return Status(SE_DUPLICATE_NAME, "operation '" + plan.signature->name + "' is still in progress on this rank");
  }
  *request = requests_.NextOf(plan, inputs, outputs, deferred);
  (*request)->gpu = std::move(work);
  const Status status = requests_.Enqueue(*request, wants_handle);
  if (!status.ok()) (*request)->done = true;
  return status;
}

Status Engine::SubmitPlan(Plan& plan, const void* const* inputs, void* const* outputs, CudaStream stream, bool deferred,
                          int64_t* handle) {
  // A GPU works beside the CPU's computing without taking cores from it.
  deferred = deferred && !config_.overlap && plan.signature->place == SE_HOST;
  GpuWork work;
  SE_RETURN_IF_ERROR(Accept(*plan.signature, {plan.device, stream}, &work));
  {
    const Lock lock = requests_.lock();
    RequestPtr request;
    SE_RETURN_IF_ERROR(EnqueuePlan(plan, inputs, outputs, deferred, std::move(work), true, &request));
    *handle = request->handle;
  }
  if (!deferred || !progress_.in_rounds() || progress_.peers_wait()) waker_.Wake();
  return Status::Ok();
}

Status Engine::RunPlan(Plan& plan, const void* const* inputs, void* const* outputs, CudaStream stream, Seconds timeout,
                       int64_t* handle) {
  GpuWork work;
  SE_RETURN_IF_ERROR(Accept(*plan.signature, {plan.device, stream}, &work));
  const int32_t op = plan.signature->op;
  Lock lock = requests_.lock();
  RequestPtr request;
  SE_RETURN_IF_ERROR(
      EnqueuePlan(plan, inputs, outputs, false, std::move(work), HasResult(op) || op == SE_JOIN, &request));
  const Status status = WaitOrGiveHandle(lock, request, timeout);
  *handle = request->handle;
  lock.unlock();
  return Concluded(status, *request);
}

Status Engine::Concluded(const Status& outcome, const Request& request) {
  if (!outcome.ok() || !request.gpu.done) return outcome;
  // It was submitted: an exception from here on must not report that it was not.
  return group_.Contained([&] { return group_.gpu().AwaitOn(request, request.gpu.stream).Within(LabelOf(request)); });
}

void Engine::Retire(Plan& plan) {
  const Lock lock = requests_.lock();
  requests_.Retire(plan);
}

// --- waiting

bool Engine::MayDrive() const {
  return turn_.is_free() && progress_.in_rounds() && !progress_.handed_over() && !requests_.is_broken();
}

void Engine::Drive(Lock& lock, const RequestPtr& request, Time deadline) {
  turn_.TakeByCaller();
  const Status status = group_.Contained([&] {
    progress_.TakeSubmitted();
    lock.unlock();
    return progress_.Drive(Progress::Driver::kCaller, request.get(), deadline);
  });
  if (lock.owns_lock()) lock.unlock();
  if (!status.ok()) progress_.Break(status);
  lock.lock();
  turn_.Release();
  if (waker_.links_claimed()) waker_.ReleaseLinks(progress_.in_rounds());
  if (progress_.handed_over()) {
    waker_.Wake();
  } else if (turn_.any_waiting()) {
    turn_.WakeAll();
  } else if (!progress_.CanWait() || group_.membership().any_left()) {
    waker_.Wake();
  }
}

Status Engine::WaitFor(Lock& lock, const RequestPtr& request, Time deadline) {
  if (request->done) return request->outcome;
  if (num_waiting_++ == 0) waiting_since_ = Clock::now();
  const Status status = WaitUntilDone(lock, request, deadline);
  if (--num_waiting_ == 0) {
    Increase(counters_.blocked_nanoseconds,
             std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - waiting_since_).count());
  }
  return status;
}

Status Engine::WaitUntilDone(Lock& lock, const RequestPtr& request, Time deadline) {
  bool woken = false;
  while (!request->done) {
    if (MayDrive()) {
      Drive(lock, request, deadline);
      if (request->done) break;
      if (progress_.in_rounds() && Clock::now() >= deadline) return Status(SE_IN_PROGRESS, "");
      continue;
    }
    // The engine's thread, or another caller, is at it; or the engine's thread must be.
    if (!turn_.is_driven() && !woken) {
      waker_.Wake();
      woken = true;
    }
    const bool in_time = turn_.Wait(lock, deadline);
    if (!in_time && !request->done && Clock::now() >= deadline) return Status(SE_IN_PROGRESS, "");
  }
  return request->outcome;
}

Status Engine::WaitOrGiveHandle(Lock& lock, const RequestPtr& request, Seconds timeout) {
  while (true) {
    const Status status = WaitFor(lock, request, DeadlineIn(timeout));
    if (status.code() != SE_IN_PROGRESS || request->handle != 0) return status;
    // Its tensors are in use: without a handle, the caller cannot leave it.
    const Status has_handle = group_.Contained([&] {
      requests_.GiveHandle(request);
      return Status::Ok();
    });
    if (has_handle.ok()) return status;
  }
}

Status Engine::Wait(int64_t handle, Seconds timeout) {
  Lock lock = requests_.lock();
  const RequestPtr request = requests_.Find(handle);
  return request ? WaitFor(lock, request, DeadlineIn(timeout)) : RequestTable::UnknownHandle(handle);
}

// --- results, questions, counters

Status Engine::AwaitOnStream(int64_t handle, CudaStream stream) {
  RequestPtr request;
  SE_RETURN_IF_ERROR(requests_.FindDoneOnGpu(handle, &request));
  return group_.gpu().AwaitOn(*request, stream).Within(LabelOf(*request));
}

Status Engine::CopyResult(int64_t handle, int tensor, void* output, CudaStream stream) {
  RequestPtr request;
  SE_RETURN_IF_ERROR(requests_.FindDoneOnGpu(handle, &request));
  if (tensor < 0 || static_cast<size_t>(tensor) >= request->gathered.size()) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " has no tensor " + std::to_string(tensor));
  }
  return group_.gpu().CopyResult(*request, static_cast<size_t>(tensor), output, stream).Within(LabelOf(*request));
}

void Engine::Answer(int64_t question, std::string text) {
  questions_.Answer(QuestionMessage{question, std::move(text)});
  waker_.Wake();
}

int64_t Engine::Counter(std::string_view name) const {
  if (const std::atomic<int64_t>* counter = FindCounter(counters_, name)) {
    return counter->load(std::memory_order_relaxed);
  }
  if (name == "shared_memory") return group_.topology().all_share() ? 1 : 0;
  if (name == "unsent_nanoseconds") return group_.UnsentTime();
  if (name == "hosts_share") return group_.topology().local ? 1 : 0;
  return -1;
}

const char* Engine::CounterNames() {
  static const std::string names = NamesOfCounters() + "shared_memory hosts_share unsent_nanoseconds";
  return names.c_str();
}

Status Engine::Describe(const std::string& what, std::string* text) const {
  if (what == "flight_recorder") {
    *text = recorder_.Text();
    return Status::Ok();
  }
  if (what == "algorithms") {
    *text = group_.executor().DescribeChoices();
    return Status::Ok();
  }
  if (what == "gpu") {
    *text = group_.gpu().Describe();
    return Status::Ok();
  }
  if (what == "running") {
    *text = progress_.Running();
    return Status::Ok();
  }
  return Status(SE_INVALID_ARGUMENT,
                "there is no description of '" + what + "'; ask for flight_recorder, algorithms, gpu or running");
}

Status Engine::OrderRing(std::vector<int> ranks, bool halves_in_ring) {
  std::vector<bool> is_present(static_cast<size_t>(size()));
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size() || is_present[static_cast<size_t>(rank)]) {
      return Status(SE_INVALID_ARGUMENT, "the order of a ring of " + std::to_string(size()) +
                                             " ranks has each of them once; rank " + std::to_string(rank) +
                                             " is there twice or does not exist");
    }
    is_present[static_cast<size_t>(rank)] = true;
  }
  const Lock lock = requests_.lock();
  if (requests_.is_broken()) return requests_.broken();
  if (requests_.any_live()) {
    return Status(SE_INVALID_ARGUMENT, "the order of the ring cannot change while this rank has requests in progress");
  }
  group_.OrderRing(RingOrder(std::move(ranks)), halves_in_ring);
  return Status::Ok();
}

Status Engine::StartTimeline(const std::string& path, bool mark_cycles) {
  return timeline_.Start(path, config_.global_rank, config_.size, config_.name, mark_cycles, config_.process_set);
}

// --- the end

void Engine::Shutdown() {
  const std::lock_guard<std::mutex> shutdown(shutdown_mutex_);
  if (!thread_.joinable()) return;
  {
    const Lock lock = requests_.lock();
    requests_.Stop();
    turn_.WakeAll();
  }
  questions_.Close();
  group_.late_sockets().Close();
  waker_.Wake();
  thread_.join();
  group_.gpu().Leave();
  timeline_.Stop();
}

void Engine::AbandonAfterFork() {
  // Plain closes of numbers: locks may be held by threads that do not exist here, and freeing could wait for them.
  group_.AbandonAfterFork();
  waker_.AbandonAfterFork();
  if (config_.own_segment.valid()) ::close(config_.own_segment.get());
}

}  // namespace spark_estimator
