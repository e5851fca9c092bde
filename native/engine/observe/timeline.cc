#include "engine/observe/timeline.h"

#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "base/contain.h"
#include "engine/observe/trace_file.h"

namespace spark_estimator {
namespace {

// How long recorded events are buffered: a reader sees them this late, and a killed process loses this time.
constexpr std::chrono::milliseconds kGathering{50};
// Two buffers of this number of events: together 5 MiB. At 10,000 ops a second, half of one lasts longer than
// kGathering.
constexpr size_t kMaxEvents = 16'384;
constexpr size_t kMaxNameBytes = size_t{1} << 20;

}  // namespace

Timeline::Timeline() = default;

Timeline::~Timeline() { Stop(); }

Status Timeline::Start(const std::string& path, int rank, int size, const std::string& rank_name, bool mark_cycles,
                       int process_set) {
  const std::lock_guard control(control_);
  if (on()) return Status(SE_INVALID_ARGUMENT, "a timeline is being written already, to " + file_->path());
  StopWriter();  // one that gave up because of its disk
  auto file = std::make_unique<TraceFile>();
  SE_RETURN_IF_ERROR(file->Open(path, {rank, size, process_set, rank_name}));
  file_ = std::move(file);
  rank_name_ = "rank " + std::to_string(rank) + ", " + rank_name;
  written_ = std::make_unique<TraceBuffer>(kMaxEvents, kMaxNameBytes);
  {
    const std::lock_guard lock(mutex_);
    filling_ = std::make_unique<TraceBuffer>(kMaxEvents, kMaxNameBytes);
    stopping_ = false;
  }
  SE_RETURN_IF_ERROR(StartWriter());
  marks_cycles_.store(mark_cycles, std::memory_order_relaxed);
  on_.store(true, std::memory_order_relaxed);
  return Status::Ok();
}

void Timeline::Stop() {
  const std::lock_guard control(control_);
  StopWriter();
}

Status Timeline::StartWriter() {
  // Signals are the application's: none shall interrupt a write.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const Status status = Contain(Status::OutOfMemory(), [this] {
    writer_ = std::thread([this] { WriteUntilStopped(); });
    return Status::Ok();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status.ok() ? status : status.Within("the timeline's thread cannot be started");
}

void Timeline::StopWriter() {
  if (!writer_.joinable()) return;
  marks_cycles_.store(false, std::memory_order_relaxed);
  on_.store(false, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  writer_.join();
  if (file_->dropped() > 0) {
    std::fprintf(stderr,
                 "[spark_estimator] %s: %lld events are missing in the timeline %s, which was written too slowly\n",
                 rank_name_.c_str(), static_cast<long long>(file_->dropped()), file_->path().c_str());
  }
  const std::lock_guard lock(mutex_);
  filling_.reset();
  written_.reset();
  file_.reset();
}

void Timeline::WriteUntilStopped() {
  Status status;
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !filling_->empty(); });
      wake_.wait_for(lock, kGathering, [this] { return stopping_ || filling_->half_full(); });
      std::swap(filling_, written_);
      last = stopping_;
    }
    if (status.ok()) {
      status = Contain(Status::OutOfMemory(), [&]() -> Status {
        SE_RETURN_IF_ERROR(file_->Write(*written_));
        return last ? file_->Close() : Status::Ok();
      });
      if (!status.ok()) GiveUp(status);
    }
    written_->Clear();
  }
}

void Timeline::GiveUp(const Status& status) {
  on_.store(false, std::memory_order_relaxed);
  std::fprintf(stderr, "[spark_estimator] %s: %s; the trace ends here, the job continues\n", rank_name_.c_str(),
               status.message().c_str());
}

void Timeline::Record(const TraceEvent& event, std::string_view name) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (filling_ == nullptr || stopping_) return;
    const bool was_empty = filling_->empty();
    const bool was_half_full = filling_->half_full();
    filling_->Add(event, name);
    wake = was_empty || (!was_half_full && filling_->half_full());
  }
  if (wake) wake_.notify_one();
}

void Timeline::Op(const OpRecord& record) {
  if (!on()) return;
  TraceEvent event;
  event.kind = TraceEvent::Kind::kOp;
  event.fast = record.fast;
  event.op = static_cast<int16_t>(record.op);
  event.dtype = static_cast<int16_t>(record.dtype);
  event.status = static_cast<int16_t>(record.status);
  event.num_requests = record.num_requests;
  event.label = record.algorithm;
  event.sequence = record.sequence;
  event.bytes = record.bytes;
  event.submitted = record.submitted;
  event.agreed = record.agreed;
  event.started = record.started;
  event.finished = record.finished;
  Record(event, record.name);
}

void Timeline::Cycle(Time at) {
  if (!on() || !marks_cycles()) return;
  TraceEvent event;
  event.kind = TraceEvent::Kind::kCycle;
  event.started = at;
  Record(event, {});
}

}  // namespace spark_estimator
