// The engine's own thread: it negotiates, watches the peers, and runs operations that no caller waits for.
#include <pthread.h>

#include <algorithm>

#include "engine/engine.h"

namespace spark_estimator {
namespace {

// How often it checks whether the driving thread has released the turn without a notification.
constexpr std::chrono::milliseconds kLetGo{50};

void BindToCore(int core) {
#if defined(__linux__)
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(core), &cores);
  pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
#endif
}

}  // namespace

void Engine::RunThread() noexcept {
  if (config_.affinity_core >= 0) BindToCore(config_.affinity_core);
  Time next_wake = Clock::now();
  while (!requests_.is_stopping() && !requests_.is_broken()) {
    waker_.Sleep(next_wake);
    Increase(counters_.wakeups);
    if (!TakeTurn(&next_wake)) break;
  }
  EndJob();
}

bool Engine::TakeTurn(Time* next_wake) {
  Lock lock = requests_.lock();
  turn_.ThreadWaits();
  while (turn_.is_driven() && !requests_.is_stopping() && !requests_.is_broken()) turn_.Wait(lock, After(kLetGo));
  if (requests_.is_broken() || !turn_.ThreadTakes()) {
    turn_.ThreadGivesUp();
    return false;
  }
  const bool others_wait = turn_.any_waiting();
  const Status status = group_.Contained([&] {
    progress_.TakeSubmitted();
    lock.unlock();
    return progress_.Cycle(others_wait);
  });
  if (lock.owns_lock()) lock.unlock();
  if (timeline_.marks_cycles()) timeline_.Cycle(Clock::now());
  *next_wake = progress_.NextWake();
  if (!status.ok()) progress_.Break(status);
  lock.lock();
  turn_.Release();
  // Waiting callers continue themselves; this thread runs what no caller waits for.
  if (turn_.any_waiting()) {
    turn_.WakeAll();
  } else if (progress_.in_rounds() && (!requests_.submitted().empty() || progress_.HasWork())) {
    *next_wake = Clock::now();
  }
  return true;
}

// The thread's last act, when the engine is broken or this rank leaves. Steps that fail here for lack of memory are
// left out: other threads wait for the end.
void Engine::EndJob() noexcept {
  {
    Lock lock = requests_.lock();
    while (!turn_.TakeForGood()) turn_.Wait(lock, After(kLetGo));
  }
  if (!requests_.is_broken()) progress_.Break(shut_down_);
  const Status& why = requests_.broken();
  const bool in_good_order = why.code() == SE_SHUT_DOWN;
  if (!in_good_order) group_.group_exit().AnnounceFailure(why);
  // A broken engine keeps its links until it is shut down: peers that have not seen the culprit yet would treat this
  // rank's end of file as another death. A rank that leaves stays until its GPU has finished: the others' GPUs need it
  // until then.
  GpuExecutor& gpu = group_.gpu();
  const Time give_up = After(gpu.deadline());
  bool gpu_works = in_good_order;
  for (;;) {
    gpu_works = gpu_works && gpu.IsBusy() && Clock::now() < give_up;
    if (requests_.is_stopping() && !gpu_works) break;
    if (gpu_works) {
      const Status failed = group_.Contained([&] { return progress_.frames().WatchPeers(); });
      if (failed.ok()) continue;
      (void)group_.Contained([&] {
        gpu.Abort(failed);
        return Status::Ok();
      });
      gpu_works = false;
      continue;
    }
    group_.group_exit().TendLinks(Clock::now());
    progress_.frames().Flush();
    // Rarely: a frozen peer may never take it in.
    const Time next = group_.membership().NextWake();
    waker_.Sleep(group_.links().HasUnsent() ? std::min(next, After(kLetGo)) : next);
    Increase(counters_.wakeups);
  }
  // After an abort the peers know already; the goodbye prevents that ranks that have left in order are treated as dead.
  if (in_good_order) group_.group_exit().SayGoodbye(progress_.executed());
}

}  // namespace spark_estimator
