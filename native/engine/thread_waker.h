// What the engine's thread sleeps on: wake-ups by other threads, and the control links.
//
// While a caller waits for control frames it claims the links, and frames do not wake the thread.
//
// Threads: Wake() and AbandonAfterFork() by any; Sleep() by the engine's thread; ClaimLinks() and ReleaseLinks() by the
// driving thread.
#ifndef SPARK_ESTIMATOR_ENGINE_THREAD_WAKER_H_
#define SPARK_ESTIMATOR_ENGINE_THREAD_WAKER_H_

#include <atomic>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace spark_estimator {

class ThreadWaker {
 public:
  Status Open();
  // `links_fd` is readable while a control link has something.
  Status WatchLinks(int links_fd);

  // Ends the present sleep, or the next one.
  void Wake();
  // Sleeps until a wake-up, something on an unclaimed link, or `until`. What is submitted from its return on wakes the
  // thread again.
  void Sleep(Time until);

  bool links_claimed() const { return links_claimed_; }
  void ClaimLinks() { SetLinksClaimed(true); }
  // `returns_soon`: the caller drove by rounds and most likely returns. For a moment frames do not end a sleep.
  void ReleaseLinks(bool returns_soon);

  // For a forked child: closes the descriptors and changes nothing else.
  void AbandonAfterFork();

 private:
  void SetLinksClaimed(bool claimed);

  UniqueFd wake_;
  UniqueFd poll_;  // wake_ and the links
  int links_fd_ = -1;
  std::atomic<bool> wake_pending_{false};
  bool links_claimed_ = false;
  std::atomic<Time> last_released_{Time()};
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_THREAD_WAKER_H_
