// The kernels' source, compiled once for each instruction set by the kernels_<set>.cc files.
//
// No include guard on purpose: each includer defines SE_KERNELS_NAMESPACE and compiles this text with its own machine
// flags. Everything lives in that namespace and only C headers are used, so that no inline function compiled
// for a newer processor can be merged by the linker into code that older ones run.

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/kernels/int8_block.h"
#include "base/kernels/kernels.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace SE_KERNELS_NAMESPACE {

// Small enough for the accumulators to stay in L1.
constexpr size_t kBlock = 1024;

#include "base/kernels/kernels_elements.h"

// --- combining -------------------------------------------------------------------------------------------------------

template <typename T>
static const T* At(const void* data, size_t start) {
  return static_cast<const T*>(data) + start;
}
template <typename T>
static T* At(void* data, size_t start) {
  return static_cast<T*>(data) + start;
}

static inline float Factor(const float*, Finish finish) {
  return static_cast<float>(finish.factor / static_cast<double>(finish.divisor));
}
static inline double Factor(const double*, Finish finish) {
  return finish.factor / static_cast<double>(finish.divisor);
}

// The sums that training is made of: a fixed number of floating-point sources, in registers from load to store.
template <typename Element, size_t kSources, size_t kDestinations>
static void SumInRegisters(void* const* destinations, const void* const* sources, size_t count,
                           typename Element::Computed factor) {
  using Stored = typename Element::Stored;
  const Stored* from[kSources];
  for (size_t s = 0; s < kSources; ++s) from[s] = At<Stored>(sources[s], 0);
  Stored* to[kDestinations];
  for (size_t d = 0; d < kDestinations; ++d) to[d] = At<Stored>(destinations[d], 0);
  size_t i = 0;
  for (; i + Element::kPack <= count; i += Element::kPack) {
    auto sum = Element::LoadPack(from[0] + i);
    for (size_t s = 1; s < kSources; ++s) sum += Element::LoadPack(from[s] + i);
    sum *= factor;
    for (size_t d = 0; d < kDestinations; ++d) Element::StorePack(to[d] + i, sum);
  }
  for (; i < count; ++i) {
    auto sum = Element::Load(from[0][i]);
    for (size_t s = 1; s < kSources; ++s) sum += Element::Load(from[s][i]);
    const Stored result = Element::Store(sum * factor);
    for (size_t d = 0; d < kDestinations; ++d) to[d][i] = result;
  }
}

// Whether it was one of the sums above, which is then done.
template <typename Element>
static bool SummedInRegisters(void* const* destinations, int num_destinations, const void* const* sources,
                              int num_sources, size_t count, Finish finish) {
  const auto factor = Factor(static_cast<const typename Element::Computed*>(nullptr), finish);
  if (num_destinations == 1) {
    if (num_sources == 2) return SumInRegisters<Element, 2, 1>(destinations, sources, count, factor), true;
    if (num_sources == 3) return SumInRegisters<Element, 3, 1>(destinations, sources, count, factor), true;
    if (num_sources == 4) return SumInRegisters<Element, 4, 1>(destinations, sources, count, factor), true;
  } else if (num_destinations == 2) {
    if (num_sources == 2) return SumInRegisters<Element, 2, 2>(destinations, sources, count, factor), true;
    if (num_sources == 3) return SumInRegisters<Element, 3, 2>(destinations, sources, count, factor), true;
    if (num_sources == 4) return SumInRegisters<Element, 4, 2>(destinations, sources, count, factor), true;
  }
  return false;
}

template <typename T>
static inline void LoadBlock(Plain<T>, T* to, const T* from, size_t n) {
  memcpy(to, from, n * sizeof(T));
}
// In the order of the pack's registers, which StoreBlock undoes; nothing in between looks at an element's place.
template <typename Half>
static inline void LoadBlock(Half, float* to, const uint16_t* from, size_t n) {
  size_t i = 0;
  for (; i + Half::kPack <= n; i += Half::kPack) {
    const auto values = Half::LoadPack(from + i);
    static_assert(sizeof(values) == Half::kPack * sizeof(float));
    memcpy(to + i, &values, sizeof(values));
  }
  for (; i < n; ++i) to[i] = Half::Load(from[i]);
}
template <typename T>
static inline void StoreBlock(Plain<T>, T* to, const T* from, size_t n) {
  memcpy(to, from, n * sizeof(T));
}
template <typename Half>
static inline void StoreBlock(Half, uint16_t* to, const float* from, size_t n) {
  size_t i = 0;
  for (; i + Half::kPack <= n; i += Half::kPack) {
    decltype(Half::LoadPack(to)) values;
    memcpy(&values, from + i, sizeof(values));
    Half::StorePack(to + i, values);
  }
  for (; i < n; ++i) to[i] = Half::Store(from[i]);
}

// Not inlined: GCC interchanges the loops over sources and elements, and then does one element at a time.
template <typename Op, typename T>
__attribute__((noinline)) static void ApplyBlock(Plain<T>, T* __restrict result, T*, const T* __restrict next,
                                                 size_t n) {
  for (size_t i = 0; i < n; ++i) result[i] = Op::Apply(result[i], next[i]);
}
template <typename Op, typename Half>
static inline void ApplyBlock(Half, float* result, float* scratch, const uint16_t* next, size_t n) {
  LoadBlock(Half(), scratch, next, n);
  ApplyBlock<Op>(Plain<float>(), result, static_cast<float*>(nullptr), scratch, n);
}

// Any number of sources and destinations, block by block.
template <typename Element, typename Op>
static void Combine(void* const* destinations, int num_destinations, const void* const* sources, int num_sources,
                    size_t count, Finish finish) {
  using Stored = typename Element::Stored;
  using Computed = typename Element::Computed;
  Computed result[kBlock];
  Computed scratch[kBlock];
  for (size_t start = 0; start < count; start += kBlock) {
    const size_t n = count - start < kBlock ? count - start : kBlock;
    LoadBlock(Element(), result, At<Stored>(sources[0], start), n);
    for (int s = 1; s < num_sources; ++s) {
      ApplyBlock<Op>(Element(), result, scratch, At<Stored>(sources[s], start), n);
    }
    if (!finish.nothing()) FinishValues(result, result, n, finish);
    for (int d = 0; d < num_destinations; ++d) StoreBlock(Element(), At<Stored>(destinations[d], start), result, n);
  }
}

template <typename Element>
static void CombineBy(int32_t reduce_op, void* const* destinations, int num_destinations, const void* const* sources,
                      int num_sources, size_t count, Finish finish) {
  switch (reduce_op) {
    case SE_MIN:
      return Combine<Element, Min>(destinations, num_destinations, sources, num_sources, count, finish);
    case SE_MAX:
      return Combine<Element, Max>(destinations, num_destinations, sources, num_sources, count, finish);
    case SE_PRODUCT:
      return Combine<Element, Product>(destinations, num_destinations, sources, num_sources, count, finish);
    default:
      return Combine<Element, Sum>(destinations, num_destinations, sources, num_sources, count, finish);
  }
}

template <typename Element>
static void CombineFloats(int32_t reduce_op, void* const* destinations, int num_destinations,
                          const void* const* sources, int num_sources, size_t count, Finish finish) {
  if (reduce_op == SE_SUM &&
      SummedInRegisters<Element>(destinations, num_destinations, sources, num_sources, count, finish)) {
    return;
  }
  CombineBy<Element>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
}

// --- the table -------------------------------------------------------------------------------------------------------

static void CombineInto(int32_t dtype, int32_t reduce_op, void* const* destinations, int num_destinations,
                        const void* const* sources, int num_sources, size_t count, Finish finish) {
  switch (dtype) {
    case SE_UINT8:
      return CombineBy<Plain<uint8_t>>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
    case SE_INT8:
      return CombineBy<Plain<int8_t>>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
    case SE_INT16:
      return CombineBy<Plain<int16_t>>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
    case SE_UINT16:
      return CombineBy<Plain<uint16_t>>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
    case SE_INT32:
      return CombineBy<Plain<int32_t>>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
    case SE_INT64:
      return CombineBy<Plain<int64_t>>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
    case SE_FLOAT16:
      return CombineFloats<Float16>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
    case SE_BFLOAT16:
      return CombineFloats<Bfloat16>(reduce_op, destinations, num_destinations, sources, num_sources, count, finish);
    case SE_FLOAT32:
      return CombineFloats<Plain<float>>(reduce_op, destinations, num_destinations, sources, num_sources, count,
                                         finish);
    case SE_FLOAT64:
      return CombineFloats<Plain<double>>(reduce_op, destinations, num_destinations, sources, num_sources, count,
                                          finish);
    case SE_BOOL:
      if (reduce_op == SE_SUM || reduce_op == SE_MAX) {
        return Combine<Plain<uint8_t>, Or>(destinations, num_destinations, sources, num_sources, count, Finish{});
      }
      return Combine<Plain<uint8_t>, And>(destinations, num_destinations, sources, num_sources, count, Finish{});
    default:
      return;
  }
}

static void CombineOne(int32_t dtype, int32_t reduce_op, void* to, const void* const* sources, int num_sources,
                       size_t count, Finish finish) {
  CombineInto(dtype, reduce_op, &to, 1, sources, num_sources, count, finish);
}

#if defined(__AVX512F__)
constexpr size_t kStoreBytes = 64;
static inline void StorePast(uint8_t* to, const uint8_t* from) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
#elif defined(__AVX2__)
constexpr size_t kStoreBytes = 32;
static inline void StorePast(uint8_t* to, const uint8_t* from) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
#elif defined(__SSE2__)
constexpr size_t kStoreBytes = 16;
static inline void StorePast(uint8_t* to, const uint8_t* from) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#endif

static void CopyPastCaches(void* destination, const void* source, size_t bytes) {
#if defined(__SSE2__)
  auto* to = static_cast<uint8_t*>(destination);
  const auto* from = static_cast<const uint8_t*>(source);
  // Whole lines only: a line that is written in part this way costs more than one that is written through the caches.
  const size_t past_line = reinterpret_cast<uintptr_t>(to) % 64;
  const size_t head = past_line == 0 ? 0 : 64 - past_line < bytes ? 64 - past_line : bytes;
  const size_t lines_end = head + (bytes - head) / 64 * 64;
  memcpy(to, from, head);
  for (size_t i = head; i < lines_end; i += kStoreBytes) StorePast(to + i, from + i);
  memcpy(to + lines_end, from + lines_end, bytes - lines_end);
  _mm_sfence();
#else
  memcpy(destination, source, bytes);
#endif
}

template <typename Half>
static void FinishHalves(void* to, const void* from, size_t count, Finish finish) {
  Combine<Half, Sum>(&to, 1, &from, 1, count, finish);
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
    case SE_UINT16:
      return FinishAs<uint16_t>(to, from, count, finish);
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
    case SE_UINT16:
      return Convert(to, static_cast<const uint16_t*>(from), count);
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
    case SE_UINT16:
      return Convert(static_cast<uint16_t*>(to), from, count);
    default:
      return Convert(static_cast<int32_t*>(to), from, count);
  }
}

#include "base/kernels/kernels_int8.h"

static const Kernels kTable = {SE_KERNELS_NAME, CombineOne, CombineInto, CopyPastCaches, FinishAny,
                               Widen,           Narrow,     EncodeInt8,  DecodeInt8};

}  // namespace SE_KERNELS_NAMESPACE
}  // namespace spark_estimator
