// Recursive doubling: both partners have both vectors and compute the same, the lower ranks' vector first.
#include "algorithms/adasum.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/dtype.h"
#include "base/kernels/halves.h"
#include "base/kernels/kernels.h"

namespace spark_estimator {
namespace {

// Tensors are sent together up to here; each one's values and its partner's are in memory at once.
constexpr size_t kBatchBytes = size_t{4} << 20;
// Independent sums, so that the compiler can keep them in vector registers; the order of additions is fixed by it.
constexpr size_t kLanes = 8;

struct Products {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

template <typename T>
Products DotProducts(const T* a, const T* b, size_t count) {
  std::array<Products, kLanes> lanes{};
  size_t i = 0;
  const auto add = [&](Products& sum, size_t at) {
    const auto x = static_cast<double>(a[at]);
    const auto y = static_cast<double>(b[at]);
    sum.ab += x * y;
    sum.aa += x * x;
    sum.bb += y * y;
  };
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(lanes[lane], i + lane);
  }
  for (; i < count; ++i) add(lanes[0], i);
  Products sum;
  for (const Products& lane : lanes) {
    sum.ab += lane.ab;
    sum.aa += lane.aa;
    sum.bb += lane.bb;
  }
  return sum;
}

// A vector so short that its square vanishes has no direction that could be agreed with.
double Coefficient(double dot, double square) {
  static const double kVanishing = std::sqrt(std::numeric_limits<double>::min());
  return square < kVanishing ? 1.0 : 1.0 - dot / square / 2;
}

template <typename T>
void Combine(T* to, const T* a, const T* b, size_t count) {
  const Products products = DotProducts(a, b, count);
  const double of_a = Coefficient(products.ab, products.aa);
  const double of_b = Coefficient(products.ab, products.bb);
  for (size_t i = 0; i < count; ++i) {
    to[i] = static_cast<T>(of_a * static_cast<double>(a[i]) + of_b * static_cast<double>(b[i]));
  }
}

// `T` is what the values are sent as.
template <typename T>
class Adasum {
 public:
  Adasum(StreamGroup& group, int32_t dtype, double prescale, double postscale)
      : group_(group),
        dtype_(dtype),
        travels_as_(sizeof(T) == sizeof(double) ? SE_FLOAT64 : SE_FLOAT32),
        prescale_(prescale),
        postscale_(postscale) {}

  Status Run(std::span<const AdasumPart> parts) {
    while (!parts.empty()) {
      size_t taken = 0;
      size_t count = 0;
      while (taken < parts.size() && (taken == 0 || (count + parts[taken].count) * sizeof(T) <= kBatchBytes)) {
        count += parts[taken++].count;
      }
      SE_RETURN_IF_ERROR(RunBatch(parts.first(taken), count));
      parts = parts.subspan(taken);
    }
    return Status::Ok();
  }

 private:
  Status RunBatch(std::span<const AdasumPart> parts, size_t count) {
    uint8_t* memory = nullptr;
    SE_RETURN_IF_ERROR(group_.Scratch(2 * count * sizeof(T), &memory));
    T* mine = reinterpret_cast<T*>(memory);
    T* theirs = mine + count;
    size_t start = 0;
    for (const AdasumPart& part : parts) {
      Load(mine + start, part);
      start += part.count;
    }
    for (int distance = 1; distance < group_.size(); distance *= 2) {
      const int partner = group_.rank() ^ distance;
      const size_t bytes = count * sizeof(T);
      const std::array<SendPart, 1> sends = {{{partner, reinterpret_cast<const uint8_t*>(mine), bytes}}};
      const std::array<ReceivePart, 1> receives = {{{partner, reinterpret_cast<uint8_t*>(theirs), bytes}}};
      SE_RETURN_IF_ERROR(group_.Exchange(sends, receives));
      start = 0;
      for (const AdasumPart& part : parts) {
        const bool first = group_.rank() < partner;
        Combine(mine + start, (first ? mine : theirs) + start, (first ? theirs : mine) + start, part.count);
        start += part.count;
      }
    }
    start = 0;
    for (const AdasumPart& part : parts) {
      Store(part, mine + start);
      start += part.count;
    }
    return Status::Ok();
  }

  void Load(T* to, const AdasumPart& part) const {
    if (part.count == 0) return;
    if (IsHalf(dtype_)) {
      HalvesToFloat32(dtype_, reinterpret_cast<float*>(to), part.input, part.count);
    } else {
      std::memcpy(to, part.input, part.count * sizeof(T));
    }
    if (prescale_ != 1.0) GetKernels().finish(travels_as_, to, to, part.count, Finish{prescale_, 1});
  }

  void Store(const AdasumPart& part, T* from) const {
    if (part.count == 0) return;
    if (postscale_ != 1.0) GetKernels().finish(travels_as_, from, from, part.count, Finish{postscale_, 1});
    if (IsHalf(dtype_)) {
      HalvesFromFloat32(dtype_, part.output, reinterpret_cast<const float*>(from), part.count);
    } else {
      std::memcpy(part.output, from, part.count * sizeof(T));
    }
  }

  StreamGroup& group_;
  const int32_t dtype_;
  const int32_t travels_as_;
  const double prescale_;
  const double postscale_;
};

}  // namespace

Status AdasumAllreduce(StreamGroup& group, std::span<const AdasumPart> parts, int32_t dtype, double prescale,
                       double postscale) {
  if (!std::has_single_bit(static_cast<unsigned>(group.size()))) {
    return Status(SE_INVALID_ARGUMENT, "Adasum needs a number of ranks that is a power of two, not " +
                                           std::to_string(group.size()) + "; use Average, or another number of ranks");
  }
  if (!IsHalf(dtype) && dtype != SE_FLOAT32 && dtype != SE_FLOAT64) {
    return Status(SE_INVALID_ARGUMENT, "Adasum is for floating-point tensors, not for " + DtypeName(dtype));
  }
  if (dtype == SE_FLOAT64) return Adasum<double>(group, dtype, prescale, postscale).Run(parts);
  return Adasum<float>(group, dtype, prescale, postscale).Run(parts);
}

}  // namespace spark_estimator
