#include "engine/wire/validity.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace {

// More than any machine holds, and a thousand times of it still fits 64 bits.
constexpr int64_t kMostBytes = int64_t{1} << 52;

bool IsBetween(int64_t value, int64_t least, int64_t most) { return value >= least && value <= most; }

// Product of the dimensions from `first` on with the size of an element; none when it is beyond all memory. An empty
// dimension counts as one: the others are multiplied without it as well.
std::optional<int64_t> Bytes(const Part& part, size_t first) {
  int64_t bytes = static_cast<int64_t>(DtypeBytes(part.dtype));
  for (size_t i = first; i < part.dims.size(); ++i) {
    const int64_t dim = part.dims[i];
    if (dim < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes) || bytes > kMostBytes) {
      return std::nullopt;
    }
  }
  return bytes;
}

// Whether this number of rows fits into memory.
bool SharesFit(const int64_t* rows, size_t count, int64_t row_bytes) {
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!IsBetween(rows[i], 0, kMostBytes) || __builtin_add_overflow(total, rows[i], &total)) return false;
  }
  return !__builtin_mul_overflow(total, row_bytes, &total) && total <= kMostBytes;
}

// Why one tensor cannot take part in the op; empty when it can.
std::string Unfit(const Signature& signature, const Part& part) {
  const bool reduces = signature.op == SE_ALLREDUCE || signature.op == SE_REDUCESCATTER;
  if (reduces && part.dtype == SE_BOOL && signature.reduce_op == SE_AVERAGE) {
    return "the average of bool tensors is not defined; use op=Sum (or), Min (and), or another dtype";
  }
  if (reduces && part.dtype == SE_BOOL && (signature.prescale != 1.0 || signature.postscale != 1.0)) {
    return "bool tensors cannot be scaled; use another dtype";
  }
  if (reduces && signature.reduce_op == SE_ADASUM && !IsFloatingPoint(part.dtype)) {
    return "Adasum is defined for floating point only, not for " + DtypeName(part.dtype);
  }
  const bool sums = signature.reduce_op == SE_SUM || signature.reduce_op == SE_AVERAGE;
  if (part.int8 && (signature.op != SE_ALLREDUCE || !sums || part.dtype != SE_FLOAT32 || signature.place != SE_HOST)) {
    return "only the sum or average of float32 tensors in host memory can be sent as int8";
  }
  if (!part.dims.empty()) return "";
  if (signature.op == SE_ALLGATHER) {
    return "allgather joins tensors along their first dimension, and a 0-d tensor has none; reshape it to [1]";
  }
  if (signature.op == SE_ALLTOALL || signature.op == SE_REDUCESCATTER) {
    return OpName(signature.op) + " cuts tensors along their first dimension, and a 0-d tensor has none; reshape it";
  }
  return "";
}

bool PartsFit(const Signature& signature) {
  const size_t parts = signature.parts.size();
  switch (signature.op) {
    case SE_BARRIER:
    case SE_JOIN:
      return parts == 0;
    case SE_BROADCAST:
    case SE_ALLTOALL:
      return parts == 1;
    default:
      return parts > 0;
  }
}

}  // namespace

std::string WhyImpossible(const Signature& signature, int size) {
  if (signature.op == SE_BROADCAST && !IsBetween(signature.root_rank, 0, size - 1)) {
    return "root rank " + std::to_string(signature.root_rank) + " is outside 0.." + std::to_string(size - 1);
  }
  if (signature.op == SE_REDUCESCATTER && signature.reduce_op != SE_SUM && signature.reduce_op != SE_AVERAGE) {
    return "reducescatter supports Average and Sum, not " + ReduceOpName(signature.reduce_op);
  }
  if (signature.op == SE_ALLREDUCE && signature.reduce_op == SE_ADASUM &&
      !std::has_single_bit(static_cast<unsigned>(size))) {
    return "Adasum needs a number of ranks that is a power of two, and there are " + std::to_string(size) +
           "; use Average or Sum";
  }
  for (size_t i = 0; i < signature.parts.size(); ++i) {
    const std::string why = Unfit(signature, signature.parts[i]);
    if (!why.empty()) return (signature.parts.size() > 1 ? "tensor " + std::to_string(i) + ": " : "") + why;
  }
  return "";
}

bool IsPossible(const Signature& signature, int size) {
  if (!IsBetween(signature.op, SE_ALLREDUCE, SE_JOIN) || !IsBetween(signature.reduce_op, SE_AVERAGE, SE_PRODUCT) ||
      !IsBetween(signature.place, SE_HOST, SE_GPU) || signature.name.empty() || signature.number < Signature::kNamed ||
      !PartsFit(signature)) {
    return false;
  }
  int64_t total = 0;
  for (const Part& part : signature.parts) {
    const std::optional<int64_t> bytes =
        IsBetween(part.dtype, SE_UINT8, SE_UINT16) ? Bytes(part, 0) : std::optional<int64_t>();
    if (!bytes || (total += *bytes) > kMostBytes) return false;
  }
  if (!WhyImpossible(signature, size).empty()) return false;
  if (signature.splits.empty()) return true;
  if (signature.op != SE_ALLTOALL || signature.splits.size() != static_cast<size_t>(size)) return false;
  const Part& part = signature.parts[0];
  int64_t rows = 0;
  for (const int64_t split : signature.splits) {
    if (!IsBetween(split, 0, part.dims[0])) return false;
    rows += split;
  }
  return rows == part.dims[0];
}

bool IsPossible(const Response& response, int size) {
  switch (response.kind) {
    case Response::Kind::kRun:
      if (response.names.empty()) return false;
      if (response.signatures.empty()) return true;
      return std::ranges::equal(response.names, response.signatures, [&](const auto& name, const Signature& signature) {
        return FullName(signature) == name && IsPossible(signature, size);
      });
    case Response::Kind::kFail:
      if (response.names.empty() || response.number < Signature::kNamed) return false;
      // Whom it does not concern.
      if (!std::ranges::all_of(response.rows, [&](int64_t rank) { return IsBetween(rank, 0, size - 1); })) return false;
      return response.number == Signature::kNamed ||
             (response.names.size() == 1 && response.names[0].ends_with(FullName("", response.number)));
    case Response::Kind::kJoined:
      return IsBetween(response.last_joined, 0, size - 1);
    case Response::Kind::kResume:
      return true;
  }
  return false;
}

bool TakesZeros(const Signature& signature) {
  return signature.op == SE_BARRIER ||
         (signature.op == SE_ALLREDUCE && (signature.reduce_op == SE_SUM || signature.reduce_op == SE_AVERAGE));
}

bool CanFuse(const Signature& a, const Signature& b) {
  // Nor one that may be sent as int8: that depends on its bytes, and would on which others happen to be there.
  const auto one_dtype = [&](const Signature& s) {
    return std::all_of(s.parts.begin(), s.parts.end(),
                       [&](const Part& p) { return p.dtype == a.parts[0].dtype && !p.int8; });
  };
  return a.op == SE_ALLREDUCE && b.op == SE_ALLREDUCE && a.place == b.place && a.reduce_op == b.reduce_op &&
         a.reduce_op != SE_ADASUM && a.prescale == b.prescale && a.postscale == b.postscale && one_dtype(a) &&
         one_dtype(b);
}

bool MayBeOne(const std::vector<const Signature*>& signatures, int64_t fusion_threshold_bytes) {
  if (signatures.size() == 1) return true;
  int64_t total = 0;
  return std::ranges::all_of(signatures, [&](const Signature* signature) {
    if (!CanFuse(*signatures[0], *signature)) return false;
    const int64_t bytes = signature->Bytes();
    return bytes <= fusion_threshold_bytes && (total += bytes) <= fusion_threshold_bytes;
  });
}

bool RowsFit(const std::vector<int64_t>& rows, const Signature& signature, int rank, int size) {
  const auto ranks = static_cast<size_t>(size);
  const auto me = static_cast<size_t>(rank);
  if (signature.op == SE_ALLGATHER) {
    if (rows.size() != signature.parts.size() * ranks) return false;
    for (size_t i = 0; i < signature.parts.size(); ++i) {
      const Part& part = signature.parts[i];
      const int64_t* shares = rows.data() + i * ranks;
      if (part.dims.empty() || shares[me] != part.dims[0] || !SharesFit(shares, ranks, *Bytes(part, 1))) return false;
    }
    return true;
  }
  if (signature.op == SE_ALLTOALL) {
    if (rows.size() != ranks * ranks || signature.parts[0].dims.empty()) return false;
    int64_t sent = 0;
    for (size_t to = 0; to < ranks; ++to) {
      if (!IsBetween(rows[me * ranks + to], 0, signature.parts[0].dims[0])) return false;
      sent += rows[me * ranks + to];
    }
    return sent == signature.parts[0].dims[0] && SharesFit(rows.data(), rows.size(), *Bytes(signature.parts[0], 1));
  }
  return rows.empty();
}

size_t BytesBroughtBy(int rank, const Signature& signature, const std::vector<int64_t>& rows) {
  switch (signature.op) {
    case SE_BROADCAST:
      return rank == signature.root_rank ? static_cast<size_t>(signature.Bytes()) : 0;
    case SE_ALLGATHER: {
      const Part& part = signature.parts[0];
      auto bytes = static_cast<size_t>(rows[static_cast<size_t>(rank)]) * DtypeBytes(part.dtype);
      for (size_t i = 1; i < part.dims.size(); ++i) bytes *= static_cast<size_t>(part.dims[i]);
      return bytes;
    }
    default:
      return static_cast<size_t>(signature.Bytes());
  }
}

}  // namespace spark_estimator
