#include "algorithms/int8/parts.h"

#include <algorithm>
#include <cstring>

#include "base/kernels/int8_block.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace {

// In a core's own cache with the values that it is made from, and long against a call of the system.
constexpr size_t kPieceBytes = 32 << 10;
// So that shares, which are whole pieces, are nearly even.
constexpr size_t kPiecesOfShare = 4;

size_t WireBytes(size_t count, bool exact) {
  if (exact) return count * sizeof(float);
  const size_t whole = count / kInt8BlockValues;
  const size_t rest = count % kInt8BlockValues;
  return whole * Int8BlockBytes(kInt8BlockValues) + (rest > 0 ? Int8BlockBytes(rest) : 0);
}

}  // namespace

Int8Part Int8Part::Range(size_t start, size_t length) const {
  return {input + start, output + start, residue != nullptr ? residue + start : nullptr, length, exact};
}

Int8Pieces::Int8Pieces(std::span<const Int8Part> parts, int ranks) : parts_(parts), ranks_(static_cast<size_t>(ranks)) {
  size_t total = 0;
  for (const Int8Part& part : parts) total += WireBytes(part.count, part.exact);
  const size_t wanted = std::min(kPieceBytes, total / (ranks_ * kPiecesOfShare) + 1);
  for (size_t index = 0; index < parts.size(); ++index) {
    const Int8Part& part = parts[index];
    for (size_t start = 0; start < part.count;) {
      if (pieces_.empty() || pieces_.back().bytes >= wanted) pieces_.push_back({runs_.size(), 0, 0});
      Piece& piece = pieces_.back();
      const size_t block_bytes = WireBytes(kInt8BlockValues, part.exact);
      const size_t blocks = (wanted - piece.bytes + block_bytes - 1) / block_bytes;
      const size_t count = std::min(blocks * kInt8BlockValues, part.count - start);
      runs_.push_back({index, start, count});
      ++piece.runs;
      piece.bytes += WireBytes(count, part.exact);
      largest_bytes_ = std::max(largest_bytes_, piece.bytes);
      start += count;
    }
  }
}

size_t Int8Pieces::bytes(size_t first, size_t last) const {
  size_t total = 0;
  for (size_t piece = first; piece < last; ++piece) total += pieces_[piece].bytes;
  return total;
}

size_t Int8Pieces::share_begin(int rank) const { return pieces_.size() * static_cast<size_t>(rank) / ranks_; }

template <typename Visit>
void Int8Pieces::ForEachRun(size_t piece, Visit visit) const {
  size_t offset = 0;
  for (size_t i = 0; i < pieces_[piece].runs; ++i) {
    const Run& run = runs_[pieces_[piece].first_run + i];
    const Int8Part part = parts_[run.part].Range(run.start, run.count);
    visit(part, offset);
    offset += WireBytes(run.count, part.exact);
  }
}

void Int8Pieces::Encode(size_t piece, float prescale, uint8_t* wire, bool to_output) const {
  const Kernels& kernels = GetKernels();
  ForEachRun(piece, [&](const Int8Part& run, size_t offset) {
    if (!run.exact) {
      float* const decoded = to_output ? run.output : nullptr;
      kernels.encode_int8(run.input, run.residue, prescale, run.residue, decoded, wire + offset, run.count);
      return;
    }
    kernels.finish(SE_FLOAT32, wire + offset, run.input, run.count, Finish{prescale, 1});
    if (to_output) std::memcpy(run.output, wire + offset, run.count * sizeof(float));
  });
}

void Int8Pieces::Decode(size_t piece, const uint8_t* wire, float factor, bool add) const {
  const Kernels& kernels = GetKernels();
  ForEachRun(piece, [&](const Int8Part& run, size_t offset) {
    if (!run.exact) {
      kernels.decode_int8(run.output, add ? run.output : nullptr, run.residue, wire + offset, run.count, factor);
      return;
    }
    const void* sources[2] = {wire + offset, run.output};
    kernels.combine(SE_FLOAT32, SE_SUM, run.output, sources, add ? 2 : 1, run.count, Finish{factor, 1});
  });
}

void Int8Pieces::Reduce(size_t piece, float prescale, std::span<const uint8_t* const> sources, float factor,
                        uint8_t* wire) const {
  ForEachRun(piece, [&](const Int8Part& run, size_t offset) {
    ReduceRun(run, prescale, sources, offset, factor, wire + offset);
  });
}

void Int8Pieces::ReduceRun(const Int8Part& run, float prescale, std::span<const uint8_t* const> sources, size_t offset,
                           float factor, uint8_t* wire) const {
  const Kernels& kernels = GetKernels();
  float sum[kInt8BlockValues];
  for (size_t start = 0; start < run.count; start += kInt8BlockValues) {
    const Int8Part block = run.Range(start, std::min(kInt8BlockValues, run.count - start));
    kernels.finish(SE_FLOAT32, sum, block.input, block.count, Finish{prescale, 1});
    if (run.exact) {
      for (const uint8_t* source : sources) {
        const void* terms[2] = {sum, source + offset};
        kernels.combine(SE_FLOAT32, SE_SUM, sum, terms, 2, block.count, Finish{});
      }
      std::memcpy(wire, sum, block.count * sizeof(float));
    } else {
      if (block.residue != nullptr) {
        const void* terms[2] = {sum, block.residue};
        kernels.combine(SE_FLOAT32, SE_SUM, sum, terms, 2, block.count, Finish{});
      }
      for (const uint8_t* source : sources) {
        kernels.decode_int8(sum, sum, nullptr, source + offset, block.count, 1.0f);
      }
      kernels.encode_int8(sum, nullptr, 1.0f, block.residue, sum, wire, block.count);
    }
    kernels.finish(SE_FLOAT32, block.output, sum, block.count, Finish{factor, 1});
    const size_t bytes = WireBytes(block.count, run.exact);
    wire += bytes;
    offset += bytes;
  }
}

}  // namespace spark_estimator
