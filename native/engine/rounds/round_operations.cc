#include "engine/rounds/round_operations.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "engine/wire/validity.h"

namespace spark_estimator {

void RoundOperations::Post() {
  Proposal proposal;
  size_t data_bytes = 0;
  int64_t arena_offset = -1;
  const Request* request = parts_.pending->single();
  if (request != nullptr) {
    proposal.single = request->cache_id;
    if (InlineBytes(*request, *parts_.cache, self_) <= parts_.rounds->rounds().data_limit()) {
      proposal.carries_data = true;
      data_bytes = OwnInlineBytes(*request, self_);
    } else {
      arena_offset = ArenaOffset(*request);
    }
  } else {
    proposal.ids = &parts_.pending->ids();
    if (parts_.pending->has_queued()) proposal.lines = &parts_.pending->MakeLines();
  }
  // Reading the clock takes as long as a hand-off; the time of the last submission is available.
  const Time since = request != nullptr && !request->had_to_queue ? request->submitted : Clock::now();
  parts_.rounds->Post(
      proposal, data_bytes, [&](uint8_t* target) { WriteInline(*request, target); }, arena_offset, since);
}

int64_t RoundOperations::ArenaOffset(const Request& request) const {
  const Signature& signature = *request.signature;
  if (parts_.arena == nullptr || !parts_.arena->used() || signature.op != SE_ALLREDUCE || signature.place != SE_HOST ||
      request.memory.size() != 1) {
    return -1;
  }
  const TensorMemory& memory = request.memory[0];
  const int32_t dtype = signature.parts[0].dtype;
  const bool widened = signature.reduce_op == SE_AVERAGE && IsInteger(dtype) && dtype != SE_INT64;
  if (memory.input != memory.output || signature.prescale != 1.0 || widened || signature.reduce_op == SE_ADASUM) {
    return -1;
  }
  uint64_t offset = 0;
  const bool inside = parts_.arena->Find(memory.output, static_cast<size_t>(request.bytes), &offset);
  return inside ? static_cast<int64_t>(offset) : -1;
}

Status RoundOperations::RunOutcome() {
  const Outcome& outcome = parts_.rounds->rounds().outcome();
  if (outcome.single < 0) return RunSet(outcome);
  parts_.cache->Touch(outcome.single);
  return RunSingle(parts_.pending->Take(outcome.single), outcome);
}

Status RoundOperations::RunSingle(const RequestPtr& request, const Outcome& outcome) {
  if (outcome.carries_data) {
    SE_RETURN_IF_ERROR(RunWithInlineData(*request, RowsOf(*request)));
    parts_.runner->CompleteInline(request);
    return Status::Ok();
  }
  std::vector<uint8_t*> in_arenas;
  if (parts_.arena != nullptr && request->signature->op == SE_ALLREDUCE &&
      parts_.rounds->rounds().InArenas(static_cast<size_t>(request->bytes), &in_arenas)) {
    parts_.executor->UseArenas(std::move(in_arenas));
  }
  return parts_.runner->Run({request}, RowsOf(*request), OperationRunner::AgreedBy::kRounds);
}

Status RoundOperations::RunWithInlineData(Request& request, const std::vector<int64_t>& rows) {
  const Rounds& rounds = parts_.rounds->rounds();
  size_t agreed = 0;
  if (const int rank = FindWrongInlineBytes(request, rows, rounds, self_, &agreed); rank >= 0) {
    return parts_.membership->RankLost(rank, "brought along " + std::to_string(rounds.data_bytes_of(rank)) +
                                                 " bytes of " + LabelOf(request) + ", where " + std::to_string(agreed) +
                                                 " were agreed on");
  }
  return RunInline(request, rows, rounds, *parts_.executor, self_);
}

// In ascending order of id, each with the queued behind it, as on all ranks; neighbours that fit together run as one.
Status RoundOperations::RunSet(const Outcome& outcome) {
  std::vector<RequestPtr> batch;
  std::vector<int32_t> ids;
  outcome.agreed.ForEach([&](int32_t id) {
    const auto line = std::ranges::find(outcome.lines, id, [](const Line& candidate) { return candidate.front(); });
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
    return parts_.runner->Run(requests, RowsOf(*requests[0]), OperationRunner::AgreedBy::kRounds);
  };
  for (const int32_t id : ids) {
    const Request& request = parts_.pending->At(id);
    const int64_t bytes = request.bytes;
    const bool fits = !batch.empty() && CanFuse(*batch[0]->signature, *request.signature) &&
                      batch_bytes + bytes <= parts_.parameters->fusion_threshold_bytes;
    if (!fits) {
      SE_RETURN_IF_ERROR(flush());
      batch_bytes = 0;
    }
    parts_.cache->Touch(id);
    batch.push_back(parts_.pending->Take(id));
    batch_bytes += bytes;
  }
  return flush();
}

}  // namespace spark_estimator
