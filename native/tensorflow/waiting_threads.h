// Threads for collectives that wait for other ranks, so that none of a framework's own threads does.
#ifndef SPARK_ESTIMATOR_TENSORFLOW_WAITING_THREADS_H_
#define SPARK_ESTIMATOR_TENSORFLOW_WAITING_THREADS_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace spark_estimator {

// A pool that grows to the largest number of tasks in flight at once: a task that waits for other ranks must not keep
// another one from being started. Idle threads sleep and stay. The pool must live as long as the process: its threads
// do not end.
class WaitingThreads {
 public:
  // Starts `task` at once, beside all tasks that are running. Throws std::system_error if no thread can be started; the
  // task is then dropped.
  void Run(std::function<void()> task);
  // How many threads there are.
  size_t size() const;

 private:
  void Serve();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
  size_t threads_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TENSORFLOW_WAITING_THREADS_H_
