// The kernels' source, compiled once for each instruction set by the kernels_<set>.cc files.
//
// No include guard on purpose: each includer defines SE_KERNELS_NAMESPACE and compiles this text with its own machine
// flags. Everything lives in that namespace and only C headers are used, so that no inline function compiled
// for a newer processor can be merged by the linker into code that older ones run.

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "base/kernels.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace SE_KERNELS_NAMESPACE {

// Small enough for the accumulators to stay in L1.
constexpr size_t kBlock = 1024;

// --- 16-bit floating point -------------------------------------------------------------------------------------------

static inline float FromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
static inline uint32_t ToBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

struct Bfloat16 {
  static float Load(uint16_t bits) { return FromBits(static_cast<uint32_t>(bits) << 16); }
  static uint16_t Store(float value) {  // rounds to nearest, ties to even
    const uint32_t bits = ToBits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // keeps a NaN a NaN
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  static void LoadBlock(float* to, const uint16_t* from, size_t n) {
    for (size_t i = 0; i < n; ++i) to[i] = Load(from[i]);
  }
  static void StoreBlock(uint16_t* to, const float* from, size_t n) {
    for (size_t i = 0; i < n; ++i) to[i] = Store(from[i]);
  }
};

struct Float16 {
  static float Load(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu) return FromBits(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return FromBits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    const float magnitude = static_cast<float>(mantissa) * FromBits(0x33800000u);  // 2^-24, exact
    return sign ? -magnitude : magnitude;
  }
  static uint16_t Store(float value) {  // rounds to nearest, ties to even
    const uint32_t bits = ToBits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and more
    if (magnitude >= 0x38800000u) {                                              // normal
      const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
      return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
    }
    // Adding 0.5 lines the mantissa up with half's smallest step, 2^-24, and the processor rounds it.
    const uint32_t subnormal = ToBits(FromBits(magnitude) + 0.5f) - 0x3f000000u;
    return static_cast<uint16_t>(sign | subnormal);
  }
  static void LoadBlock(float* to, const uint16_t* from, size_t n) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
    for (; i < n; ++i) to[i] = Load(from[i]);
  }
  static void StoreBlock(uint16_t* to, const float* from, size_t n) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
    for (; i < n; ++i) to[i] = Store(from[i]);
  }
};

// --- the reduce ops --------------------------------------------------------------------------------------------------

// Integer arithmetic is done unsigned, where wrapping is defined, and in at least 32 bits, where no promotion to int
// can overflow.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<uint8_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<int8_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<int16_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<int32_t> {
  using Type = uint32_t;
};
template <>
struct Wrapping<int64_t> {
  using Type = uint64_t;
};

struct Sum {
  template <typename T>
  static T Apply(T a, T b) {
    using W = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
};
struct Product {
  template <typename T>
  static T Apply(T a, T b) {
    using W = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  }
};
struct Min {  // a NaN on either side is kept, as torch does
  template <typename T>
  static T Apply(T a, T b) {
    return (b < a || b != b) ? b : a;
  }
};
struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    return (b > a || b != b) ? b : a;
  }
};
struct Or {
  static uint8_t Apply(uint8_t a, uint8_t b) { return (a | b) != 0; }
};
struct And {
  static uint8_t Apply(uint8_t a, uint8_t b) { return (a != 0) & (b != 0); }
};

// --- finishing -------------------------------------------------------------------------------------------------------

// The ends of an integer type, also as doubles: `beyond` is the first whole number above the highest.
template <typename T>
struct Limits {
  static constexpr bool is_signed = static_cast<T>(-1) < 0;
  static constexpr int value_bits = static_cast<int>(sizeof(T)) * 8 - (is_signed ? 1 : 0);
  static constexpr T highest = static_cast<T>(~uint64_t{0} >> (64 - value_bits));
  static constexpr T lowest = is_signed ? static_cast<T>(-highest - 1) : T{0};
  static constexpr double beyond = 2.0 * static_cast<double>(uint64_t{1} << (value_bits - 1));
};

// Conversion of a value that the type cannot hold is undefined in C++; it gives the nearest end of the range here.
template <typename T>
static inline T Truncate(double value) {
  if (value >= Limits<T>::beyond) return Limits<T>::highest;
  if (!(value > static_cast<double>(Limits<T>::lowest))) return Limits<T>::lowest;
  return static_cast<T>(value);
}

template <typename T>
static void FinishIntegers(T* to, const T* from, size_t n, Finish finish) {
  if (finish.factor == 1.0) {
    for (size_t i = 0; i < n; ++i) to[i] = static_cast<T>(static_cast<int64_t>(from[i]) / finish.divisor);
  } else {
    const double factor = finish.factor / static_cast<double>(finish.divisor);
    for (size_t i = 0; i < n; ++i) to[i] = Truncate<T>(static_cast<double>(from[i]) * factor);
  }
}

template <typename T>
static void FinishValues(T* to, const T* from, size_t n, Finish finish) {
  FinishIntegers(to, from, n, finish);
}
template <>
void FinishValues(float* to, const float* from, size_t n, Finish finish) {
  const float factor = static_cast<float>(finish.factor / static_cast<double>(finish.divisor));
  for (size_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}
template <>
void FinishValues(double* to, const double* from, size_t n, Finish finish) {
  const double factor = finish.factor / static_cast<double>(finish.divisor);
  for (size_t i = 0; i < n; ++i) to[i] = from[i] * factor;
}

// --- combining -------------------------------------------------------------------------------------------------------

template <typename T, typename Op>
static void Combine(T* to, const void* const* sources, int num_sources, size_t count, Finish finish) {
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t n = count - start < kBlock ? count - start : kBlock;
    T* out = to + start;
    const T* first = static_cast<const T*>(sources[0]) + start;
    if (num_sources == 1) {
      memmove(out, first, n * sizeof(T));
    } else {
      const T* second = static_cast<const T*>(sources[1]) + start;
      for (size_t i = 0; i < n; ++i) out[i] = Op::Apply(first[i], second[i]);
    }
    for (int s = 2; s < num_sources; ++s) {
      const T* next = static_cast<const T*>(sources[s]) + start;
      for (size_t i = 0; i < n; ++i) out[i] = Op::Apply(out[i], next[i]);
    }
    if (!finish.nothing()) FinishValues(out, out, n, finish);
  }
}

static void CombineBools(int32_t reduce_op, uint8_t* to, const void* const* sources, int num_sources, size_t count) {
  if (reduce_op == SE_SUM || reduce_op == SE_MAX) {
    Combine<uint8_t, Or>(to, sources, num_sources, count, Finish{});
  } else {
    Combine<uint8_t, And>(to, sources, num_sources, count, Finish{});
  }
}

template <typename Half, typename Op>
static void CombineHalves(uint16_t* to, const void* const* sources, int num_sources, size_t count, Finish finish) {
  float sum[kBlock];
  float next[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t n = count - start < kBlock ? count - start : kBlock;
    Half::LoadBlock(sum, static_cast<const uint16_t*>(sources[0]) + start, n);
    for (int s = 1; s < num_sources; ++s) {
      Half::LoadBlock(next, static_cast<const uint16_t*>(sources[s]) + start, n);
      for (size_t i = 0; i < n; ++i) sum[i] = Op::Apply(sum[i], next[i]);
    }
    if (!finish.nothing()) FinishValues(sum, sum, n, finish);
    Half::StoreBlock(to + start, sum, n);
  }
}

template <typename T>
static void CombineBy(int32_t reduce_op, void* to, const void* const* sources, int num_sources, size_t count,
                      Finish finish) {
  T* out = static_cast<T*>(to);
  switch (reduce_op) {
    case SE_MIN:
      return Combine<T, Min>(out, sources, num_sources, count, finish);
    case SE_MAX:
      return Combine<T, Max>(out, sources, num_sources, count, finish);
    case SE_PRODUCT:
      return Combine<T, Product>(out, sources, num_sources, count, finish);
    default:
      return Combine<T, Sum>(out, sources, num_sources, count, finish);
  }
}

template <typename Half>
static void CombineHalvesBy(int32_t reduce_op, void* to, const void* const* sources, int num_sources, size_t count,
                            Finish finish) {
  uint16_t* out = static_cast<uint16_t*>(to);
  switch (reduce_op) {
    case SE_MIN:
      return CombineHalves<Half, Min>(out, sources, num_sources, count, finish);
    case SE_MAX:
      return CombineHalves<Half, Max>(out, sources, num_sources, count, finish);
    case SE_PRODUCT:
      return CombineHalves<Half, Product>(out, sources, num_sources, count, finish);
    default:
      return CombineHalves<Half, Sum>(out, sources, num_sources, count, finish);
  }
}

// --- the table -------------------------------------------------------------------------------------------------------

static void CombineAny(int32_t dtype, int32_t reduce_op, void* to, const void* const* sources, int num_sources,
                       size_t count, Finish finish) {
  switch (dtype) {
    case SE_UINT8:
      return CombineBy<uint8_t>(reduce_op, to, sources, num_sources, count, finish);
    case SE_INT8:
      return CombineBy<int8_t>(reduce_op, to, sources, num_sources, count, finish);
    case SE_INT16:
      return CombineBy<int16_t>(reduce_op, to, sources, num_sources, count, finish);
    case SE_INT32:
      return CombineBy<int32_t>(reduce_op, to, sources, num_sources, count, finish);
    case SE_INT64:
      return CombineBy<int64_t>(reduce_op, to, sources, num_sources, count, finish);
    case SE_FLOAT16:
      return CombineHalvesBy<Float16>(reduce_op, to, sources, num_sources, count, finish);
    case SE_BFLOAT16:
      return CombineHalvesBy<Bfloat16>(reduce_op, to, sources, num_sources, count, finish);
    case SE_FLOAT32:
      return CombineBy<float>(reduce_op, to, sources, num_sources, count, finish);
    case SE_FLOAT64:
      return CombineBy<double>(reduce_op, to, sources, num_sources, count, finish);
    case SE_BOOL:
      return CombineBools(reduce_op, static_cast<uint8_t*>(to), sources, num_sources, count);
    default:
      return;
  }
}

template <typename Half>
static void FinishHalves(void* to, const void* from, size_t count, Finish finish) {
  CombineHalves<Half, Sum>(static_cast<uint16_t*>(to), &from, 1, count, finish);
}

template <typename T>
static void FinishAs(void* to, const void* from, size_t count, Finish finish) {
  FinishValues(static_cast<T*>(to), static_cast<const T*>(from), count, finish);
}

static void FinishAny(int32_t dtype, void* to, const void* from, size_t count, Finish finish) {
  switch (dtype) {
    case SE_UINT8:
      return FinishAs<uint8_t>(to, from, count, finish);
    case SE_INT8:
      return FinishAs<int8_t>(to, from, count, finish);
    case SE_INT16:
      return FinishAs<int16_t>(to, from, count, finish);
    case SE_INT32:
      return FinishAs<int32_t>(to, from, count, finish);
    case SE_INT64:
      return FinishAs<int64_t>(to, from, count, finish);
    case SE_FLOAT16:
      return FinishHalves<Float16>(to, from, count, finish);
    case SE_BFLOAT16:
      return FinishHalves<Bfloat16>(to, from, count, finish);
    case SE_FLOAT32:
      return FinishAs<float>(to, from, count, finish);
    case SE_FLOAT64:
      return FinishAs<double>(to, from, count, finish);
    default:
      if (to != from) memcpy(to, from, count);
  }
}

template <typename To, typename From>
static void Convert(To* to, const From* from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

static void Widen(int32_t narrow, int64_t* to, const void* from, size_t count) {
  switch (narrow) {
    case SE_UINT8:
      return Convert(to, static_cast<const uint8_t*>(from), count);
    case SE_INT8:
      return Convert(to, static_cast<const int8_t*>(from), count);
    case SE_INT16:
      return Convert(to, static_cast<const int16_t*>(from), count);
    default:
      return Convert(to, static_cast<const int32_t*>(from), count);
  }
}

static void Narrow(int32_t narrow, void* to, const int64_t* from, size_t count) {
  switch (narrow) {
    case SE_UINT8:
      return Convert(static_cast<uint8_t*>(to), from, count);
    case SE_INT8:
      return Convert(static_cast<int8_t*>(to), from, count);
    case SE_INT16:
      return Convert(static_cast<int16_t*>(to), from, count);
    default:
      return Convert(static_cast<int32_t*>(to), from, count);
  }
}

static const Kernels kTable = {SE_KERNELS_NAME, CombineAny, FinishAny, Widen, Narrow};

}  // namespace SE_KERNELS_NAMESPACE
}  // namespace spark_estimator
