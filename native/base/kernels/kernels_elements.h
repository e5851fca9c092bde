// The kernels' elements: 16-bit floating point, packs of lanes, wrapping integers. Part of kernels_body.h, see there.

// As many float32 as one register holds.
#if defined(__AVX512F__)
constexpr size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr size_t kLanes = 8;
#else
constexpr size_t kLanes = 4;
#endif
typedef float FloatPack __attribute__((vector_size(kLanes * 4)));
typedef double DoublePack __attribute__((vector_size(kLanes * 4)));
typedef uint32_t WordPack __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntPack __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfPack __attribute__((vector_size(kLanes * 2)));

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

// Words that fit into 16 bits, from and to memory. Compilers' own conversion of vectors is several times slower.
static inline WordPack Widened(const uint16_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<WordPack>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
  return reinterpret_cast<WordPack>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  HalfPack halves;
  memcpy(&halves, from, sizeof(halves));
  return __builtin_convertvector(halves, WordPack);
#endif
}
static inline void Narrowed(uint16_t* to, WordPack words) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(words)));
#elif defined(__AVX2__)
  const __m256i all = reinterpret_cast<__m256i>(words);
  const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(pairs));
#else
  const HalfPack halves = __builtin_convertvector(words, HalfPack);
  memcpy(to, &halves, sizeof(halves));
#endif
}

// Twice as many values as one register holds: those at even and those at odd places.
struct FloatPairs {
  FloatPack even;
  FloatPack odd;

  FloatPairs& operator+=(const FloatPairs& other) {
    even += other.even;
    odd += other.odd;
    return *this;
  }
  FloatPairs& operator*=(float factor) {
    even *= factor;
    odd *= factor;
    return *this;
  }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Computed = float;
  static constexpr size_t kPack = 2 * kLanes;

  static float Load(uint16_t bits) { return FromBits(static_cast<uint32_t>(bits) << 16); }
  static uint16_t Store(float value) {  // rounds to nearest, ties to even
    const uint32_t bits = ToBits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;  // keeps a NaN a NaN
    return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
  // A bfloat16 is the upper half of a float32: a word holds two values that need no shuffling.
  static FloatPairs LoadPack(const uint16_t* from) {
    WordPack words;
    memcpy(&words, from, sizeof(words));
    return {reinterpret_cast<FloatPack>(words << 16), reinterpret_cast<FloatPack>(words & 0xffff0000u)};
  }
  static WordPack Rounded(FloatPack values) {  // in the upper half of each word; the lower is to be cut off
    const WordPack bits = reinterpret_cast<WordPack>(values);
    return values != values ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  }
  static void StorePack(uint16_t* to, const FloatPairs& values) {
    const WordPack words = (Rounded(values.even) >> 16) | (Rounded(values.odd) & 0xffff0000u);
    memcpy(to, &words, sizeof(words));
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Computed = float;
  static constexpr size_t kPack = kLanes;

  // Selections instead of branches, so that compilers vectorise it. No float32 subnormal is computed with: the result
  // does not depend on the thread's flush-to-zero mode.
  static float Load(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    const uint32_t normal = (exponent == 0x1fu ? 0x7f800000u : (exponent + 112u) << 23) | (mantissa << 13);
    const uint32_t quiet = exponent == 0x1fu && mantissa != 0 ? 0x400000u : 0u;
    const uint32_t subnormal = ToBits(static_cast<float>(static_cast<int32_t>(mantissa)) * 0x1p-24f);  // exact
    return FromBits(sign | (exponent == 0 ? subnormal : normal | quiet));
  }
  static uint16_t Store(float value) {  // rounds to nearest, ties to even
    const uint32_t bits = ToBits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    // Adding 0.5 lines the mantissa up with half's smallest step, 2^-24, and the processor rounds it.
    const uint32_t subnormal = ToBits(FromBits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t finite = magnitude >= 0x38800000u ? normal : subnormal;
    const uint32_t number = magnitude >= 0x47800000u ? 0x7c00u : finite;  // 65536 and more
    return static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? nan : number));
  }
#if defined(__AVX512F__)
  static FloatPack LoadPack(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void StorePack(uint16_t* to, FloatPack values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#elif defined(__F16C__)
  static FloatPack LoadPack(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void StorePack(uint16_t* to, FloatPack values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#else  // as Load and Store, lane by lane
  static FloatPack LoadPack(const uint16_t* from) {
    const WordPack half = Widened(from);
    const WordPack sign = (half & 0x8000u) << 16;
    const WordPack exponent = (half >> 10) & 0x1fu;
    const WordPack mantissa = half & 0x3ffu;
    const WordPack zero = half ^ half;
    const WordPack special = (mantissa != zero ? zero + 0x7fc00000u : zero + 0x7f800000u) | (mantissa << 13);
    const WordPack normal = ((exponent + 112u) << 23) | (mantissa << 13);
    const FloatPack counted = __builtin_convertvector(reinterpret_cast<IntPack>(mantissa), FloatPack);
    const WordPack subnormal = reinterpret_cast<WordPack>(counted * 0x1p-24f);
    const WordPack number = exponent == zero ? subnormal : normal;
    return reinterpret_cast<FloatPack>(sign | (exponent == 0x1fu ? special : number));
  }
  static void StorePack(uint16_t* to, FloatPack values) {
    const WordPack bits = reinterpret_cast<WordPack>(values);
    const WordPack sign = (bits >> 16) & 0x8000u;
    const WordPack magnitude = bits & 0x7fffffffu;
    const WordPack nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const WordPack normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    const WordPack subnormal = reinterpret_cast<WordPack>(reinterpret_cast<FloatPack>(magnitude) + 0.5f) - 0x3f000000u;
    const WordPack finite = magnitude >= 0x38800000u ? normal : subnormal;
    const WordPack number = magnitude >= 0x47800000u ? (bits ^ bits) + 0x7c00u : finite;
    Narrowed(to, sign | (magnitude > 0x7f800000u ? nan : number));
  }
#endif
};

// A type that is computed with as it is stored.
template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
};
template <typename T, typename Pack>
struct PlainFloat {
  using Stored = T;
  using Computed = T;
  static constexpr size_t kPack = sizeof(Pack) / sizeof(T);
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
  static Pack LoadPack(const T* from) {
    Pack pack;
    memcpy(&pack, from, sizeof(pack));
    return pack;
  }
  static void StorePack(T* to, Pack pack) { memcpy(to, &pack, sizeof(pack)); }
};
template <>
struct Plain<float> : PlainFloat<float, FloatPack> {};
template <>
struct Plain<double> : PlainFloat<double, DoublePack> {};

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
    return ((b < a) | (b != b)) ? b : a;
  }
};
struct Max {
  template <typename T>
  static T Apply(T a, T b) {
    return ((b > a) | (b != b)) ? b : a;
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
