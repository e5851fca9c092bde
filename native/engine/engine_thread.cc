// The engine's own thread: it negotiates, watches the peers, and does what nobody waits for.
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/scoped.h"
#include "engine/engine.h"

namespace spark_estimator {
namespace {

// How long the thread goes on by rounds before it looks at whatever else there may be.
constexpr Seconds kDriveAtOnce{0.2};
// How often it looks whether whoever drives has let go, without being told.
constexpr std::chrono::milliseconds kLetGo{50};
constexpr Seconds kUnsentRetry{0.001};
// How often who leaves looks at its GPU, in milliseconds.
constexpr int kGpuLook = 1;
// A caller that has driven so short a time ago most likely comes back, and takes in what peers have sent meanwhile.
constexpr std::chrono::microseconds kCallerReturns{500};

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
  while (!stopping_ && !is_broken_) {
    AwaitWork(next_wake);
    Lock lock(mutex_);
    {
      const ScopedValue wants(thread_wants_, true);
      while (driving_ && !stopping_ && !is_broken_) {
        const ScopedCount waits(waiting_);
        changed_.wait_for(lock, kLetGo);
      }
    }
    if (driving_ || is_broken_) break;
    {
      const ScopedValue driving(driving_, true);
      const bool others_wait = waiting_ > 0;
      const Status status = Contained([&] {
        if (fast_) Classify(submitted_);
        lock.unlock();
        return RunCycle(others_wait);
      });
      if (lock.owns_lock()) lock.unlock();
      if (timeline_.marks_cycles()) timeline_.Cycle(Clock::now());
      next_wake = NextWake();
      if (!status.ok()) Break(status);
      lock.lock();
    }
    // Those who wait go on themselves, this thread goes on with what nobody waits for.
    if (waiting_ > 0) {
      changed_.notify_all();
    } else if (fast_ && (!submitted_.empty() || !WorksAlone() || RoundsEndHere())) {
      next_wake = Clock::now();
    }
  }
  EndJob();
}

Status Engine::RunCycle(bool others_wait) {
  SE_RETURN_IF_ERROR(Check());
  SendAnswers();
  if (!open_questions_.empty()) ReportMissingAnswers();
  // Whoever waits goes on by rounds itself; what nobody waits for is done here.
  if (fast_ && !others_wait && (RoundsEndHere() || !WorksAlone())) {
    SE_RETURN_IF_ERROR(DriveRounds(nullptr, After(kDriveAtOnce)));
  }
  if (!fast_) SE_RETURN_IF_ERROR(SlowCycle());
  FlushControl();
  // What a peer had executed when it left may still be under way to us; what comes after never will be.
  if (any_goodbye_ && agreed_.empty() && !posted_) return CheckDepartures(executed_ + 1);
  return Status::Ok();
}

// When the thread must look again though nothing has called it.
Time Engine::NextWake() const {
  Time next = heartbeat_ ? heartbeat_->NextWake() : Time::max();
  const bool watches_stalls = coordinator_ && !fast_ && coordinator_->has_waiting() &&
                              (config_.stall_warning_seconds > 0 || config_.stall_shutdown_seconds > 0);
  if (watches_stalls) next = std::min(next, next_stall_check_);
  for (const auto& [number, asked] : open_questions_) next = std::min(next, asked.deadline);
  if (HasUnsent()) next = std::min(next, After(kUnsentRetry));
  if (fast_) return next;
  // Requests also come in while an operation waits for its peers.
  const bool has_more = !agreed_.empty() || (coordinator_ && coordinator_->has_ready());
  return has_more ? Clock::now() : next;
}

void Engine::AwaitWork(Time until) {
  std::array<epoll_event, 2> events;
  int timeout = -1;
  if (wake_pending_) {
    timeout = 0;
  } else if (until != Time::max()) {
    const double left = Seconds(until - Clock::now()).count();
    timeout = left <= 0 ? 0 : static_cast<int>(std::min(left, 3600.0) * 1000) + 1;
  }
  int ready = epoll_wait(thread_poll_.get(), events.data(), static_cast<int>(events.size()), timeout);
  if (ready == 1 && events[0].data.fd != wake_fd_.get() && Clock::now() - last_driven_.load() < kCallerReturns) {
    // A peer that is ahead. To take its frames from under a caller that calls again and again would cost more than what
    // it came for.
    pollfd wake{wake_fd_.get(), POLLIN, 0};
    const timespec pause{0, std::chrono::nanoseconds(kCallerReturns).count()};
    ppoll(&wake, 1, &pause, nullptr);
    ready = epoll_wait(thread_poll_.get(), events.data(), static_cast<int>(events.size()), 0);
  }
  Increase(counters_.wakeups);
  // Cleared before the queue is looked at: what is submitted from here on wakes us again.
  wake_pending_ = false;
  for (int i = 0; i < ready; ++i) {
    if (events[static_cast<size_t>(i)].data.fd != wake_fd_.get()) continue;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(wake_fd_.get(), &count, sizeof(count));
  }
}

// Called by whoever drives, which goes on driving. It needs no memory, since memory may be what is missing: then only
// the sentences are shorter.
void Engine::Break(const Status& error) noexcept {
  Status why = error;
  (void)Contained([&] {
    why = Explain(error);
    why = WithOwnName(why);
    return Status::Ok();
  });
  Lock lock(mutex_);
  if (is_broken_) return;
  broken_ = why;
  is_broken_ = true;
  const Time now = Clock::now();
  while (Request* request = live_.oldest()) {
    if (!request->recorded) {
      (void)Contained([&] {
        Note(*request, 1, "", now, now, why.code(), false);
        return Status::Ok();
      });
    }
    CompleteLocked(*request, WithinIfPossible(why, [&] { return LabelOf(*request) + " failed"; }));
  }
  ForgetPlaces();
  changed_.notify_all();
  lock.unlock();
  (void)Contained([&] {
    if (!GpusEndByThemselves(why)) gpu_->Abort(why);
    return Status::Ok();
  });
  Wake();
}

// Where requests were noted that have ended.
void Engine::ForgetPlaces() noexcept {
  submitted_.clear();
  unknown_.clear();
  negotiated_.clear();
  join_.reset();
  for (RequestPtr& request : by_id_) request.reset();
  for (auto& [name, kind] : unnamed_) {
    kind.younger.clear();
    kind.is_proposed = false;
  }
  pending_ids_.Clear();
  num_pending_ids_ = 0;
  num_younger_ = 0;
}

// Whether what has been handed to the GPU comes to its end without those who have left: they have handed theirs over.
bool Engine::GpusEndByThemselves(const Status& why) const {
  return why.code() == SE_SHUT_DOWN && std::ranges::all_of(peers_, [&](const Peer& peer) {
           return !peer.goodbye || peer.goodbye->executed >= executed_;
         });
}

// While a GPU works by itself: whether all peers that it needs are there. Looks at them for a moment.
Status Engine::WatchPeers() {
  SE_RETURN_IF_ERROR(ReadReady(kGpuLook));
  FlushControl();
  SE_RETURN_IF_ERROR(TickHeartbeat());
  SE_RETURN_IF_ERROR(gpu_->Check());
  return any_goodbye_ ? CheckDepartures(executed_) : Status::Ok();
}

// Of a broken engine that is not shut down yet: it gives signs of life to those that still work, and follows who
// leaves.
void Engine::TendBrokenLinks() {
  for (int rank = 0; rank < config_.size; ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (!peer.control || !peer.control->open()) continue;
    const size_t before = peer.inbox.size();
    peer.control->Receive(&peer.inbox);
    if (heartbeat_ && peer.inbox.size() > before) heartbeat_->Heard(rank, Clock::now());
    for (const Frame& frame : peer.inbox) {
      if (frame.type == FrameType::kGoodbye) NoteDeparture(rank, Goodbye{});
      if (frame.type == FrameType::kHeartbeat && heartbeat_) heartbeat_->WatchedBy(rank, Clock::now());
    }
    peer.inbox.clear();
    if (!peer.control->open()) LinkEnded(rank);
  }
  // Nobody hears of one that is lost now. It is forgotten, since its clock, which has run out, would wake the thread
  // again and again.
  lost_rank_ = -1;
  if (!TickHeartbeat().ok() && lost_rank_ >= 0) heartbeat_->Forget(lost_rank_, Clock::now());
}

// The thread's last act, when the engine is broken or this rank leaves. Whatever fails here for want of memory is left
// out: others wait for the end.
void Engine::EndJob() noexcept {
  {
    Lock lock(mutex_);
    while (driving_) {
      const ScopedCount waits(waiting_);
      changed_.wait_for(lock, kLetGo);
    }
    driving_ = true;  // for good
  }
  if (!is_broken_) Break(shut_down_);
  if (broken_.code() != SE_SHUT_DOWN) TellPeers(broken_);
  // A broken engine keeps its links until it is shut down: peers that have not seen the culprit yet would take our end
  // of file for another death. And whoever leaves stays until its GPU is through: the others' need it until then.
  const Time give_up = After(gpu_->deadline());
  bool gpu_goes_on = broken_.code() == SE_SHUT_DOWN;
  for (;;) {
    gpu_goes_on = gpu_goes_on && gpu_->IsBusy() && Clock::now() < give_up;
    if (stopping_ && !gpu_goes_on) break;
    if (gpu_goes_on) {
      if (const Status failed = Contained([&] { return WatchPeers(); }); !failed.ok()) {
        (void)Contained([&] {
          gpu_->Abort(failed);
          return Status::Ok();
        });
        gpu_goes_on = false;
      }
      continue;
    }
    (void)Contained([&] {
      TendBrokenLinks();
      return Status::Ok();
    });
    FlushControl();
    Time next = heartbeat_ ? heartbeat_->NextWake() : Time::max();
    // Rarely: a frozen peer may never take it in.
    if (HasUnsent()) next = std::min(next, After(kLetGo));
    AwaitWork(next);
  }
  coordinator_.reset();
  // After an abort the peers know already; the goodbye spares those that have left in order from being taken for dead.
  if (broken_.code() == SE_SHUT_DOWN) SayGoodbye();
}

}  // namespace spark_estimator
