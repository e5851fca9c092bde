#include "engine/rounds/inline_data.h"

#include <algorithm>
#include <cstring>

#include "base/dtype.h"
#include "base/kernels/kernels.h"
#include "engine/wire/validity.h"

namespace spark_estimator {
namespace {

bool IsInlineOp(int32_t op) {
  return op == SE_ALLREDUCE || op == SE_BROADCAST || op == SE_ALLGATHER || op == SE_BARRIER;
}

void ReduceInline(Request& request, const Rounds& rounds, GroupRank self) {
  const Signature& signature = *request.signature;
  Finish finish;
  finish.factor = signature.postscale;
  if (signature.reduce_op == SE_AVERAGE) finish.divisor = self.size;
  const int32_t reduce_op = signature.reduce_op == SE_AVERAGE ? SE_SUM : signature.reduce_op;
  constexpr int kOnStack = 16;
  const void* few[kOnStack];
  std::vector<const void*> many;
  if (self.size > kOnStack) many.resize(static_cast<size_t>(self.size));
  const void** sources = self.size > kOnStack ? many.data() : few;
  size_t offset = 0;
  for (size_t i = 0; i < request.memory.size(); ++i) {
    const Part& part = signature.parts[i];
    const auto count = static_cast<size_t>(part.Elements());
    if (count == 0) continue;
    for (int rank = 0; rank < self.size; ++rank) sources[rank] = rounds.data_of(rank) + offset;
    GetKernels().combine(part.dtype, reduce_op, request.memory[i].output, sources, self.size, count, finish);
    offset += count * DtypeBytes(part.dtype);
  }
}

}  // namespace

size_t InlineBytes(const Request& request, const ResponseCache& cache, GroupRank self) {
  const Signature& signature = *request.signature;
  if (!IsInlineOp(signature.op) || self.size == 1 || signature.place != SE_HOST) return SIZE_MAX;
  if (signature.op == SE_ALLGATHER) {
    if (signature.parts.size() != 1) return SIZE_MAX;
    const Part& part = signature.parts[0];
    const std::vector<int64_t>& rows = cache.At(request.cache_id)->rows;
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

void WriteInline(const Request& request, uint8_t* target) {
  const Signature& signature = *request.signature;
  for (size_t i = 0; i < request.memory.size(); ++i) {
    const Part& part = signature.parts[i];
    const auto bytes = static_cast<size_t>(part.Bytes());
    if (bytes == 0) continue;
    if (signature.op == SE_ALLREDUCE && signature.prescale != 1.0) {
      GetKernels().finish(part.dtype, target, request.memory[i].input, static_cast<size_t>(part.Elements()),
                          Finish{signature.prescale, 1});
    } else {
      std::memcpy(target, request.memory[i].input, bytes);
    }
    target += bytes;
  }
}

int FindWrongInlineBytes(const Request& request, const std::vector<int64_t>& rows, const Rounds& rounds, GroupRank self,
                         size_t* agreed) {
  const int32_t op = request.signature->op;
  const bool alike = op != SE_BROADCAST && op != SE_ALLGATHER;
  for (int rank = 0; rank < self.size; ++rank) {
    const size_t bytes = alike ? static_cast<size_t>(request.bytes) : BytesBroughtBy(rank, *request.signature, rows);
    if (rounds.data_bytes_of(rank) == bytes) continue;
    *agreed = bytes;
    return rank;
  }
  return -1;
}

Status RunInline(Request& request, const std::vector<int64_t>& rows, const Rounds& rounds, Executor& executor,
                 GroupRank self) {
  const Signature& signature = *request.signature;
  switch (signature.op) {
    case SE_ALLREDUCE:
      ReduceInline(request, rounds, self);
      return Status::Ok();
    case SE_BROADCAST: {
      const TensorMemory* memory = request.memory.data();
      const bool in_place = self.rank == signature.root_rank && request.bytes > 0 && memory->output == memory->input;
      if (request.bytes > 0 && !in_place) {
        std::memcpy(memory->output, rounds.data_of(signature.root_rank), static_cast<size_t>(request.bytes));
      }
      return Status::Ok();
    }
    case SE_ALLGATHER:
      return executor.GatherFrom(request, rows, [&](int rank) { return rounds.data_of(rank); });
    default:
      return Status::Ok();
  }
}

}  // namespace spark_estimator
