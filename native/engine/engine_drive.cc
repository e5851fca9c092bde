// Going on by rounds: what all ranks are ready to run is run, in the thread of whoever waits for it.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/dtype.h"
#include "base/scoped.h"
#include "engine/engine.h"
#include "engine/frame_rounds.h"
#include "engine/validity.h"

namespace spark_estimator {
namespace {

// How long a wait for others goes on without a look at the time that it has taken.
constexpr Seconds kLook{0.05};

bool InlineOp(int32_t op) { return op == SE_ALLREDUCE || op == SE_BROADCAST || op == SE_ALLGATHER || op == SE_BARRIER; }

// A request's full name, made without an allocation where it is as short as usual.
class RecordedName {
 public:
  explicit RecordedName(const Request& request) : text_(request.signature->name) {
    if (request.number == Signature::kNamed) return;
    if (text_.size() + kDigits > sizeof(short_)) {
      long_ = FullName(request);
      text_ = long_;
      return;
    }
    char* at = std::copy(text_.begin(), text_.end(), short_);
    *at++ = '.';
    at = std::to_chars(at, short_ + sizeof(short_), request.number).ptr;
    text_ = std::string_view(short_, static_cast<size_t>(at - short_));
  }
  RecordedName(const RecordedName&) = delete;
  RecordedName& operator=(const RecordedName&) = delete;
  std::string_view text() const { return text_; }

 private:
  static constexpr size_t kDigits = 20;
  std::string_view text_;
  std::string long_;
  char short_[64];
};

int32_t FirstOf(const IdSet& ids) {
  int32_t first = -1;
  ids.ForEach([&](int32_t id) { first = first < 0 ? id : first; });
  return first;
}

}  // namespace

// Puts what was submitted where the rounds look for it.
void Engine::Classify(std::vector<RequestPtr>& submitted) {
  for (RequestPtr& request : submitted) {
    const ResponseCache::Entry* entry = nullptr;
    Plan* plan = request->plan;
    if (plan != nullptr && plan->cache_generation == cache_->generation()) {
      entry = cache_->At(plan->cache_id);
    } else if (request->signature->op != SE_JOIN) {
      entry = cache_->Find(*request->signature);
      if (plan != nullptr) {
        plan->cache_generation = cache_->generation();
        plan->cache_id = entry != nullptr ? entry->id : -1;
      }
    }
    if (entry == nullptr) {
      Increase(counters_.cache_misses);
      unknown_.push_back(std::move(request));
      continue;
    }
    Increase(counters_.cache_hits);
    request->cache_id = entry->id;
    if (Unnamed* kind = request->unnamed; kind != nullptr && kind->is_proposed) {
      request->had_to_queue = true;
      kind->younger.push_back(std::move(request));
      num_younger_ += 1;
      continue;
    }
    MakeReady(std::move(request));
  }
  submitted.clear();
}

// From now on this rank proposes it.
void Engine::MakeReady(RequestPtr request) {
  const int32_t id = request->cache_id;
  if (request->unnamed != nullptr) request->unnamed->is_proposed = true;
  pending_ids_.Add(id);
  num_pending_ids_ += 1;
  by_id_[static_cast<size_t>(id)] = std::move(request);
}

RequestPtr Engine::Forget(int32_t id) {
  pending_ids_.Remove(id);
  num_pending_ids_ -= 1;
  RequestPtr forgotten = std::move(by_id_[static_cast<size_t>(id)]);
  Unnamed* kind = forgotten->unnamed;
  if (kind == nullptr) return forgotten;
  kind->is_proposed = false;
  if (kind->younger.empty()) return forgotten;
  RequestPtr next = std::move(kind->younger.front());
  kind->younger.pop_front();
  num_younger_ -= 1;
  MakeReady(std::move(next));
  return forgotten;
}

// All that the rounds would have gone on with.
std::vector<RequestPtr> Engine::TakePending() {
  std::vector<RequestPtr> pending;
  pending_ids_.ForEach([&](int32_t id) {
    RequestPtr request = std::exchange(by_id_[static_cast<size_t>(id)], nullptr);
    Unnamed* kind = request->unnamed;
    pending.push_back(std::move(request));
    if (kind == nullptr) return;
    for (RequestPtr& younger : std::exchange(kind->younger, {})) pending.push_back(std::move(younger));
    kind->is_proposed = false;
  });
  pending_ids_.Clear();
  num_pending_ids_ = 0;
  num_younger_ = 0;
  for (RequestPtr& request : std::exchange(unknown_, {})) pending.push_back(std::move(request));
  return pending;
}

bool Engine::RoundsEndHere() const {
  if (slow_for_certain_) return true;
  return asked_to_go_slow_ && asked_to_go_slow_->epoch == place_.epoch &&
         asked_to_go_slow_->position == place_.position;
}

Status Engine::DriveRounds(const Request* until, Time deadline) {
  while (fast_) {
    if (!posted_) {
      if (any_goodbye_) SE_RETURN_IF_ERROR(CheckDepartures(executed_ + 1));
      if (stopping_) return Status(SE_SHUT_DOWN, "this rank has shut down");
      if (RoundsEndHere()) {
        PostSlow();
        LeaveRounds();
        break;
      }
      if (!unknown_.empty()) {
        PostSlow();
        LeaveRounds();
        break;
      }
      if (num_pending_ids_ == 0) break;
      PostProposal();
    }
    bool concluded = false;
    SE_RETURN_IF_ERROR(rounds_->Await(std::min(deadline, NextLook()), &concluded));
    if (!concluded) {
      if (Clock::now() >= deadline) return Status::Ok();
      TellOfLongWait();
      continue;
    }
    // Short waits cost more to measure than they matter; what leaves the rounds is counted when it is agreed on.
    if (nudged_peers_ && !rounds_->outcome().slow) {
      Increase(counters_.wait_nanoseconds,
               std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - posted_at_).count());
    }
    SE_RETURN_IF_ERROR(ConcludeRound());
    if (until != nullptr && until->done) break;
    Lock lock(mutex_);
    if (fast_ && !submitted_.empty()) Classify(submitted_);
  }
  return Status::Ok();
}

// Until when a wait for the others' proposals may go on before there is something to tell.
Time Engine::NextLook() const {
  if (nudged_peers_) return After(kLook);
  return posted_at_ + std::chrono::duration_cast<Clock::duration>(kNudgeAfter);
}

void Engine::PostProposal() {
  Proposal proposal;
  size_t data_bytes = 0;
  int64_t arena_offset = -1;
  const Request* request = nullptr;
  if (num_pending_ids_ == 1 && num_younger_ == 0) {
    proposal.single = FirstOf(pending_ids_);
    request = by_id_[static_cast<size_t>(proposal.single)].get();
    const size_t most = InlineBytes(*request);
    if (most <= rounds_->data_limit()) {
      proposal.carries_data = true;
      const bool sends = request->signature->op != SE_BROADCAST || request->signature->root_rank == config_.rank;
      data_bytes = sends ? static_cast<size_t>(request->bytes) : 0;
    } else {
      arena_offset = ArenaOffset(*request);
    }
  } else {
    proposal.ids = &pending_ids_;
    if (num_younger_ > 0) {
      DrawLines();
      proposal.lines = &lines_;
    }
  }
  rounds_->Post(place_, proposal, data_bytes, [&](uint8_t* place) { WriteInline(*request, place); }, arena_offset);
  posted_ = true;
  // Reading the clock takes as long as a hand-off; the time of the last submission is at hand.
  posted_at_ = request != nullptr && !request->had_to_queue ? request->submitted : Clock::now();
  nudged_peers_ = false;
  told_of_long_wait_ = false;
}

// Unnamed requests that wait behind others of their kind, as many as a proposal holds.
void Engine::DrawLines() {
  lines_.clear();
  size_t room = kMostInLines;
  pending_ids_.ForEach([&](int32_t id) {
    const Unnamed* kind = by_id_[static_cast<size_t>(id)]->unnamed;
    if (kind == nullptr || kind->younger.empty() || room < 3) return;
    Line& line = lines_.emplace_back(1, id);
    room -= 2;  // for its length, and the oldest
    for (const RequestPtr& younger : kind->younger) {
      if (room == 0) break;
      line.push_back(younger->cache_id);
      room -= 1;
    }
  });
}

void Engine::PostSlow() {
  if (posted_) return;
  Proposal proposal;
  proposal.slow = true;
  rounds_->Post(place_, proposal, 0, nullptr, -1);
  posted_ = true;
}

// Bytes of the largest share that any rank brings along; the same on all ranks. Too many for what never comes along.
size_t Engine::InlineBytes(const Request& request) const {
  const Signature& signature = *request.signature;
  if (!InlineOp(signature.op) || config_.size == 1 || signature.place != SE_HOST) return SIZE_MAX;
  if (signature.op == SE_ALLGATHER) {
    if (signature.parts.size() != 1) return SIZE_MAX;
    const Part& part = signature.parts[0];
    const std::vector<int64_t>& rows = cache_->At(request.cache_id)->rows;
    size_t row_bytes = DtypeBytes(part.dtype);
    for (size_t i = 1; i < part.dims.size(); ++i) row_bytes *= static_cast<size_t>(part.dims[i]);
    return static_cast<size_t>(*std::max_element(rows.begin(), rows.end())) * row_bytes;
  }
  if (signature.op == SE_ALLREDUCE) {
    if (signature.reduce_op == SE_ADASUM) return SIZE_MAX;
    const int32_t dtype = signature.parts[0].dtype;
    // Averages of narrow integers need wider sums.
    if (signature.reduce_op == SE_AVERAGE && IsInteger(dtype) && dtype != SE_INT64) return SIZE_MAX;
    for (const Part& part : signature.parts) {
      if (part.dtype != dtype) return SIZE_MAX;
    }
  }
  return static_cast<size_t>(request.bytes);
}

void Engine::WriteInline(const Request& request, uint8_t* place) const {
  const Signature& signature = *request.signature;
  for (size_t i = 0; i < request.memory.size(); ++i) {
    const Part& part = signature.parts[i];
    const auto bytes = static_cast<size_t>(part.Bytes());
    if (bytes == 0) continue;
    if (signature.op == SE_ALLREDUCE && signature.prescale != 1.0) {
      GetKernels().finish(part.dtype, place, request.memory[i].input, static_cast<size_t>(part.Elements()),
                          Finish{signature.prescale, 1});
    } else {
      std::memcpy(place, request.memory[i].input, bytes);
    }
    place += bytes;
  }
}

// Where the one tensor of an allreduce in place lies in this rank's arena; -1 when it does not.
int64_t Engine::ArenaOffset(const Request& request) const {
  const Signature& signature = *request.signature;
  if (!all_share_ || !arena_used_.load(std::memory_order_relaxed) || signature.op != SE_ALLREDUCE ||
      signature.place != SE_HOST || request.memory.size() != 1) {
    return -1;
  }
  const TensorMemory& memory = request.memory[0];
  const int32_t dtype = signature.parts[0].dtype;
  const bool widened = signature.reduce_op == SE_AVERAGE && IsInteger(dtype) && dtype != SE_INT64;
  if (memory.input != memory.output || signature.prescale != 1.0 || widened || signature.reduce_op == SE_ADASUM) {
    return -1;
  }
  uint64_t offset = 0;
  return arena_->Find(memory.output, static_cast<size_t>(request.bytes), &offset) ? static_cast<int64_t>(offset) : -1;
}

Status Engine::ConcludeRound() {
  const Outcome& outcome = rounds_->outcome();
  Increase(counters_.rounds);
  posted_ = false;
  if (outcome.slow) {
    LeaveRounds();
    return Status::Ok();
  }
  place_.position += 1;
  if (nudged_) nudged_ = static_cast<int32_t>(nudged_at_ - place_.position) >= 0;
  if (outcome.single >= 0) {
    cache_->Touch(outcome.single);
    return ExecuteSingle(Forget(outcome.single), outcome);
  }
  return ExecuteSet(outcome);
}

Status Engine::ExecuteSingle(const RequestPtr& request, const Outcome& outcome) {
  if (outcome.carries_data) {
    SE_RETURN_IF_ERROR(ExecuteInline(*request));
    Increase(counters_.operations);
    Increase(counters_.inline_operations);
    executed_ += 1;
    const Time now = Clock::now();
    Note(*request, 1, "inline", now, now, SE_OK, true);
    if (autotune_) Tune({request});
    Lock lock(mutex_);
    CompleteLocked(*request, Status::Ok());
    return Status::Ok();
  }
  std::vector<uint8_t*> in_arenas;
  if (all_share_ && request->signature->op == SE_ALLREDUCE &&
      rounds_->InArenas(static_cast<size_t>(request->bytes), &in_arenas)) {
    executor_->UseArenas(std::move(in_arenas));
  }
  return Execute({request}, cache_->At(request->cache_id)->rows, true);
}

// Memory is read by what was agreed on, not by what a peer says now: the two must be the same.
Status Engine::CheckBrought(const Request& request) {
  const std::vector<int64_t>& rows = cache_->At(request.cache_id)->rows;
  const int32_t op = request.signature->op;
  const bool alike = op != SE_BROADCAST && op != SE_ALLGATHER;
  for (int rank = 0; rank < config_.size; ++rank) {
    const size_t agreed = alike ? static_cast<size_t>(request.bytes) : BytesBroughtBy(rank, *request.signature, rows);
    if (rounds_->data_bytes_of(rank) == agreed) continue;
    lost_rank_ = rank;
    return Status(SE_PEER_LOST, NameOf(rank) + " brought along " + std::to_string(rounds_->data_bytes_of(rank)) +
                                    " bytes of " + LabelOf(request) + ", where " + std::to_string(agreed) +
                                    " were agreed on");
  }
  return Status::Ok();
}

Status Engine::ExecuteInline(Request& request) {
  const Signature& signature = *request.signature;
  SE_RETURN_IF_ERROR(CheckBrought(request));
  switch (signature.op) {
    case SE_ALLREDUCE: {
      Finish finish;
      finish.factor = signature.postscale;
      if (signature.reduce_op == SE_AVERAGE) finish.divisor = config_.size;
      const int32_t reduce_op = signature.reduce_op == SE_AVERAGE ? SE_SUM : signature.reduce_op;
      constexpr int kOnStack = 16;
      const void* few[kOnStack];
      std::vector<const void*> many;
      if (config_.size > kOnStack) many.resize(static_cast<size_t>(config_.size));
      const void** sources = config_.size > kOnStack ? many.data() : few;
      size_t offset = 0;
      for (size_t i = 0; i < request.memory.size(); ++i) {
        const Part& part = signature.parts[i];
        const auto count = static_cast<size_t>(part.Elements());
        if (count == 0) continue;
        for (int rank = 0; rank < config_.size; ++rank) sources[rank] = rounds_->data_of(rank) + offset;
        GetKernels().combine(part.dtype, reduce_op, request.memory[i].output, sources, config_.size, count, finish);
        offset += count * DtypeBytes(part.dtype);
      }
      return Status::Ok();
    }
    case SE_BROADCAST:
      if (request.bytes > 0 &&
          !(config_.rank == signature.root_rank && request.memory[0].output == request.memory[0].input)) {
        std::memcpy(request.memory[0].output, rounds_->data_of(signature.root_rank),
                    static_cast<size_t>(request.bytes));
      }
      return Status::Ok();
    case SE_ALLGATHER:
      return executor_->GatherFrom(request, cache_->At(request.cache_id)->rows,
                                   [&](int rank) { return rounds_->data_of(rank); });
    default:
      return Status::Ok();
  }
}

Status Engine::ExecuteSet(const Outcome& outcome) {
  // In ascending order of id, each with its line, as on all ranks; neighbours that fit together run as one.
  std::vector<RequestPtr> batch;
  std::vector<int32_t> ids;
  outcome.agreed.ForEach([&](int32_t id) {
    const auto line = std::ranges::find(outcome.lines, id, [](const Line& one) { return one.front(); });
    if (line == outcome.lines.end()) {
      ids.push_back(id);
    } else {
      ids.insert(ids.end(), line->begin(), line->end());
    }
  });
  int64_t batch_bytes = 0;
  const auto flush = [&]() -> Status {
    if (batch.empty()) return Status::Ok();
    const std::vector<RequestPtr> requests = std::exchange(batch, {});
    return Execute(requests, cache_->At(requests[0]->cache_id)->rows, true);
  };
  for (const int32_t id : ids) {
    const Request& request = *by_id_[static_cast<size_t>(id)];
    const int64_t bytes = request.bytes;
    const bool fits = !batch.empty() && CanFuse(*batch[0]->signature, *request.signature) &&
                      batch_bytes + bytes <= parameters_.fusion_threshold_bytes;
    if (!fits) {
      SE_RETURN_IF_ERROR(flush());
      batch_bytes = 0;
    }
    cache_->Touch(id);
    batch.push_back(Forget(id));
    batch_bytes += bytes;
  }
  return flush();
}

void Engine::Note(const Request& request, int num_requests, const char* algorithm, Time started, Time finished,
                  int32_t status, bool fast) {
  const Signature& signature = *request.signature;
  const RecordedName name(request);
  OpRecord record;
  record.sequence = executed_;
  record.name = name.text();
  record.num_requests = num_requests;
  record.op = signature.op;
  record.dtype = signature.parts.empty() ? SE_UINT8 : signature.parts[0].dtype;
  record.bytes = request.bytes;
  record.algorithm = algorithm;
  record.submitted = request.submitted == Time{} ? started : request.submitted;
  // A plan's request may still have the time at which an earlier submission of it was agreed on.
  record.agreed = fast || request.agreed < record.submitted ? started : request.agreed;
  record.started = started;
  record.finished = finished;
  record.status = status;
  record.fast = fast;
  if (num_requests > 0) recorder_.Add(record);
  if (timeline_.on()) timeline_.Op(record);
}

Status Engine::Execute(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows, bool fast) {
  const Time began = Clock::now();
  const bool on_gpu = requests[0]->signature->place == SE_GPU;
  Status status;
  {
    const ScopedValue executing(executing_, true);
    status = on_gpu ? gpu_->Run(requests, rows) : executor_->Run(requests, rows);
  }
  const char* algorithm = on_gpu ? gpu_->algorithm() : executor_->algorithm();
  if (!status.ok()) {
    for (const RequestPtr& request : requests) request->recorded = true;
    Note(*requests[0], static_cast<int>(requests.size()), algorithm, began, Clock::now(), status.code(), fast);
    return status;
  }
  executed_ += 1;
  const Time ended = Clock::now();
  Increase(counters_.execution_nanoseconds,
           std::chrono::duration_cast<std::chrono::nanoseconds>(ended - began).count());
  // One line in the flight recorder, but each tensor has its row in the timeline.
  auto told = static_cast<int>(requests.size());
  for (const RequestPtr& request : requests) {
    Note(*request, std::exchange(told, 0), algorithm, began, ended, SE_OK, fast);
  }
  if (autotune_) Tune(requests);
  Complete(requests, Status::Ok());
  return Status::Ok();
}

void Engine::Complete(const std::vector<RequestPtr>& requests, const Status& outcome) {
  Lock lock(mutex_);
  for (const RequestPtr& request : requests) CompleteLocked(*request, outcome);
}

void Engine::CompleteLocked(Request& request, const Status& outcome) noexcept {
  const RequestPtr held = live_.Remove(request);
  if (!request.signature->unnamed()) Unregister(request);
  request.gpu.ready.reset();  // its event is used again
  request.outcome = outcome;
  request.done = true;
  if (waiting_ > 0) changed_.notify_all();
}

void Engine::TellOfLongWait() {
  const Seconds waited = Clock::now() - posted_at_;
  if (!nudged_peers_ && waited >= kNudgeAfter) {
    nudged_peers_ = true;
    SendToAll(FrameType::kNudge, Encode(place_));
  }
  if (told_of_long_wait_ || waited < kLongWait) return;
  told_of_long_wait_ = true;
  if (coordinator_) {
    SendToAll(FrameType::kGoSlow, Encode(place_));
  } else {
    peers_[0].control->Send(FrameType::kStuck, Encode(place_));
  }
}

// From here to Resume() the coordinator says what is run.
void Engine::LeaveRounds() {
  Increase(counters_.slow_phases);
  fast_ = false;
  posted_ = false;
  slow_for_certain_ = false;
  asked_to_go_slow_.reset();
  std::vector<RequestPtr> pending = TakePending();
  std::ranges::sort(pending, {}, &Request::order);
  SendRequests(pending);
  if (coordinator_) left_rounds_[static_cast<size_t>(config_.rank)] = true;
  Wake();
}

}  // namespace spark_estimator
