#include "tensorflow/waiting_threads.h"

#include <thread>
#include <utility>

namespace spark_estimator {

void WaitingThreads::Run(std::function<void()> task) {
  std::lock_guard<std::mutex> lock(mutex_);
  tasks_.push_back(std::move(task));
  if (idle_ >= tasks_.size()) {
    wake_.notify_one();
    return;
  }
  try {
    std::thread([this] { Serve(); }).detach();
    ++threads_;
  } catch (...) {
    tasks_.pop_back();
    throw;
  }
}

size_t WaitingThreads::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return threads_;
}

void WaitingThreads::Serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (tasks_.empty()) {
      ++idle_;
      wake_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
    }
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

}  // namespace spark_estimator
