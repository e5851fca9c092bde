// What callers of an engine do, from any thread: submit, wait, take results, leave.
#include "engine/engine.h"

#include <unistd.h>

#include <utility>

#include "base/dtype.h"

namespace spark_estimator {

Engine::~Engine() { Shutdown(); }

Status Engine::Submit(Signature signature, std::vector<se_buffer> buffers, int64_t* handle) {
  auto request = std::make_shared<Request>();
  request->signature = std::move(signature);
  request->buffers = std::move(buffers);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string& name = request->signature.name;
    const std::string label = OpName(request->signature.op) + " '" + name + "'";
    if (stopping_) return Status(SE_SHUT_DOWN, label + " was submitted after shutdown");
    if (!broken_.ok()) return broken_.Within(label + " failed");
    if (!in_flight_.try_emplace(name, request).second) {
      return Status(SE_DUPLICATE_NAME, "a request named '" + name +
                                           "' is still in flight on this rank; wait for it first, or use another name");
    }
    request->handle = next_handle_++;
    handles_[request->handle] = request;
    submitted_.push_back(request);
    *handle = request->handle;
  }
  counters_.requests += 1;
  Wake();
  return Status::Ok();
}

Status Engine::Poll(int64_t handle) { return Wait(handle, Seconds(0)); }

Status Engine::Wait(int64_t handle, Seconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto entry = handles_.find(handle);
  if (entry == handles_.end()) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " is unknown or was released");
  }
  const RequestPtr request = entry->second;
  if (!finished_.wait_until(lock, After(timeout), [&] { return request->done; })) return Status(SE_IN_PROGRESS, "");
  return request->outcome;
}

Status Engine::GetResult(int64_t handle, se_result* result) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = handles_.find(handle);
  if (entry == handles_.end() || !entry->second->done) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " has no result (yet)");
  }
  const Request& request = *entry->second;
  result->data = request.gathered.get();
  result->bytes = request.gathered_bytes;
  result->rows = request.rows.empty() ? nullptr : request.rows.data();
  return Status::Ok();
}

Status Engine::TakeResultData(int64_t handle, void** data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = handles_.find(handle);
  if (entry == handles_.end() || !entry->second->done) {
    return Status(SE_INVALID_ARGUMENT, "handle " + std::to_string(handle) + " has no result (yet)");
  }
  *data = entry->second->gathered.release();
  return Status::Ok();
}

void Engine::Release(int64_t handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  handles_.erase(handle);
}

int64_t Engine::Counter(const std::string& name) const {
  if (name == "requests") return counters_.requests;
  if (name == "responses") return counters_.responses;
  if (name == "fused_requests") return counters_.fused_requests;
  if (name == "shared_bytes") return counters_.shared_bytes;
  if (name == "stream_bytes") return counters_.stream_bytes;
  if (name == "control_bytes_sent") return counters_.control_bytes_sent;
  if (name == "wakeups") return counters_.wakeups;
  if (name == "shared_memory") return executor_->uses_shared_memory() ? 1 : 0;
  return -1;
}

void Engine::Shutdown() {
  std::lock_guard<std::mutex> one_at_a_time(shutdown_mutex_);
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

bool Engine::OwnedByThisProcess() const { return getpid() == owner_pid_; }

void Engine::AbandonAfterFork() {
  // Plain closes of numbers: locks may be held by threads that do not exist here, and freeing could wait for them.
  for (const Peer& peer : peers_) {
    if (peer.control) ::close(peer.control->fd());
  }
  if (executor_) {
    for (const UniqueFd& socket : executor_->streams().sockets) {
      if (socket.valid()) ::close(socket.get());
    }
  }
  ::close(wake_fd_.get());
  if (config_.own_segment.valid()) ::close(config_.own_segment.get());
}

void Engine::Wake() {
  if (wake_pending_.exchange(true)) return;  // somebody's wake-up has not been seen yet: it stands for ours, too
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_.get(), &one, sizeof(one));
}

}  // namespace spark_estimator
