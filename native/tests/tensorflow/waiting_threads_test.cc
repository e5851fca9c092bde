// The threads that wait for other ranks instead of a framework's own: as many as there are tasks in flight.
#include "tensorflow/waiting_threads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "check.h"

using namespace spark_estimator;

namespace {

// Lets tasks in one after another, and out together.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
    changed_.notify_all();
  }
  void AwaitWaiting(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ == count; });
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
};

// Its threads do not end, so neither does the pool.
WaitingThreads& NewPool() { return *new WaitingThreads; }

void TasksThatWaitDoNotKeepOthersFromStarting() {
  WaitingThreads& pool = NewPool();
  Gate gate;
  for (int task = 0; task < 50; ++task) pool.Run([&] { gate.Pass(); });
  gate.AwaitWaiting(50);
  CHECK_EQ(pool.size(), 50u);
  gate.Open();
  gate.AwaitWaiting(0);
}

void ThreadsAreUsedAgain() {
  WaitingThreads& pool = NewPool();
  std::atomic<int> done = 0;
  std::mutex mutex;
  std::condition_variable changed;
  for (int round = 1; round <= 200; ++round) {
    for (int task = 0; task < 2; ++task) {
      pool.Run([&] {
        std::lock_guard<std::mutex> lock(mutex);
        ++done;
        changed.notify_all();
      });
    }
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done == 2 * round; });
  }
  // A thread may not be idle yet when the next tasks arrive: more than two threads, but not one for each task.
  CHECK(pool.size() < 400);
}

void WhatATaskHoldsIsGoneWhenItHasEnded() {
  WaitingThreads& pool = NewPool();
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  pool.Run([held = std::move(held)] { (void)held; });
  while (!watched.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // else ctest's limit ends it
}

}  // namespace

int main() {
  return testing::RunTests({
      {"tasks that wait do not keep others from starting", TasksThatWaitDoNotKeepOthersFromStarting},
      {"threads are used again", ThreadsAreUsedAgain},
      {"what a task holds is gone when it has ended", WhatATaskHoldsIsGoneWhenItHasEnded},
  });
}
