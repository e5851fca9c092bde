// The kernels themselves: copies and reductions over what several ranks have put into memory that all of them map.
//
// This text goes two ways: NVRTC compiles it for the GPU, and the tests' stand-in for the driver compiles it for the
// host, where a handful of words (__device__, blockIdx, atomicMax_system...) get a meaning. So it includes nothing but
// its arguments, uses no type of CUDA's, and what it computes is proved right without a GPU. Arithmetic is that of
// base/kernels_elements.h, element by element; it must be compiled without contraction of a * b + c.
#include "gpu/device_arguments.h"

namespace spark_estimator {
namespace device {

// --- elements --------------------------------------------------------------------------------------------------------

__device__ inline unsigned int BitsOf(float value) {
  unsigned int bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
__device__ inline float FloatOf(unsigned int bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// A type that is computed with as it is stored.
template <typename T>
struct Plain {
  typedef T Stored;
  typedef T Computed;
  __device__ static T Load(T value) { return value; }
  __device__ static T Store(T value) { return value; }
};

// Nothing is asked of factors.
struct Bool : Plain<unsigned char> {};

// Sums of a narrow integer may not fit although their average does.
template <typename T>
struct Widened {
  typedef T Stored;
  typedef long long Computed;
  __device__ static long long Load(T value) { return value; }
  __device__ static T Store(long long value) { return static_cast<T>(value); }
};

// 16-bit floating point is computed with as float32; storing rounds to nearest, ties to even.
struct Bfloat16 {
  typedef unsigned short Stored;
  typedef float Computed;
  __device__ static float Load(unsigned short bits) { return FloatOf(static_cast<unsigned int>(bits) << 16); }
  __device__ static unsigned short Store(float value) {
    const unsigned int bits = BitsOf(value);
    const unsigned int rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const unsigned int quiet = (bits >> 16) | 0x40u;  // keeps a NaN a NaN
    return static_cast<unsigned short>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
};

struct Float16 {
  typedef unsigned short Stored;
  typedef float Computed;
  __device__ static float Load(unsigned short half) {
    const unsigned int sign = static_cast<unsigned int>(half & 0x8000u) << 16;
    const unsigned int exponent = (half >> 10) & 0x1fu;
    const unsigned int mantissa = half & 0x3ffu;
    const unsigned int normal = (exponent == 0x1fu ? 0x7f800000u : (exponent + 112u) << 23) | (mantissa << 13);
    const unsigned int quiet = exponent == 0x1fu && mantissa != 0 ? 0x400000u : 0u;
    const unsigned int subnormal = BitsOf(static_cast<float>(static_cast<int>(mantissa)) * 5.9604644775390625e-8f);
    return FloatOf(sign | (exponent == 0 ? subnormal : normal | quiet));
  }
  __device__ static unsigned short Store(float value) {
    const unsigned int bits = BitsOf(value);
    const unsigned int sign = (bits >> 16) & 0x8000u;
    const unsigned int magnitude = bits & 0x7fffffffu;
    const unsigned int nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const unsigned int normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    // Adding 0.5 lines the mantissa up with half's smallest step, 2^-24, and the processor rounds it.
    const unsigned int subnormal = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u;
    const unsigned int finite = magnitude >= 0x38800000u ? normal : subnormal;
    const unsigned int number = magnitude >= 0x47800000u ? 0x7c00u : finite;  // 65536 and more
    return static_cast<unsigned short>(sign | (magnitude > 0x7f800000u ? nan : number));
  }
};

// --- what a reduction does with two of them --------------------------------------------------------------------------

// Integer arithmetic is done unsigned, where wrapping is defined, and in at least 32 bits.
template <typename T>
struct Wrapping {
  typedef unsigned int Type;
};
template <>
struct Wrapping<float> {
  typedef float Type;
};
template <>
struct Wrapping<double> {
  typedef double Type;
};
template <>
struct Wrapping<long long> {
  typedef Word Type;
};

struct Sum {
  template <typename T>
  __device__ static T Apply(T a, T b) {
    typedef typename Wrapping<T>::Type W;
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
};
struct Product {
  template <typename T>
  __device__ static T Apply(T a, T b) {
    typedef typename Wrapping<T>::Type W;
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  }
};
struct Min {  // a NaN on either side is kept
  template <typename T>
  __device__ static T Apply(T a, T b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};
struct Max {
  template <typename T>
  __device__ static T Apply(T a, T b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};
struct Or {
  __device__ static unsigned char Apply(unsigned char a, unsigned char b) { return (a | b) != 0; }
};
struct And {
  __device__ static unsigned char Apply(unsigned char a, unsigned char b) { return (a != 0) & (b != 0); }
};

// --- factors ---------------------------------------------------------------------------------------------------------

// A value that the type cannot hold becomes the nearest end of its range, a NaN the lowest.
template <typename T>
__device__ inline T Truncate(double value) {
  constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);
  constexpr int value_bits = static_cast<int>(sizeof(T)) * 8 - (is_signed ? 1 : 0);
  constexpr T highest = static_cast<T>(~Word{0} >> (64 - value_bits));
  constexpr T lowest = is_signed ? static_cast<T>(-highest - 1) : T{0};
  constexpr double beyond = 2.0 * static_cast<double>(Word{1} << (value_bits - 1));
  if (value >= beyond) return highest;
  if (!(value > static_cast<double>(lowest))) return lowest;
  return static_cast<T>(value);
}

template <typename T>
__device__ inline T Finish(T value, double factor, long long divisor) {
  if (factor == 1.0) return static_cast<T>(static_cast<long long>(value) / divisor);
  return Truncate<T>(static_cast<double>(value) * (factor / static_cast<double>(divisor)));
}
template <>
__device__ inline float Finish(float value, double factor, long long divisor) {
  return value * static_cast<float>(factor / static_cast<double>(divisor));
}
template <>
__device__ inline double Finish(double value, double factor, long long divisor) {
  return value * (factor / static_cast<double>(divisor));
}

// Rounded to the stored type, as if the input had been scaled in place before.
template <typename Element>
__device__ inline typename Element::Computed Prescaled(typename Element::Computed value, double prescale, Element) {
  return Finish(value, prescale, 1);
}
__device__ inline float Prescaled(float value, double prescale, Bfloat16) {
  return Bfloat16::Load(Bfloat16::Store(Finish(value, prescale, 1)));
}
__device__ inline float Prescaled(float value, double prescale, Float16) {
  return Float16::Load(Float16::Store(Finish(value, prescale, 1)));
}

template <typename Element>
__device__ inline typename Element::Computed Finished(typename Element::Computed value, double factor,
                                                      long long divisor, Element) {
  return factor == 1.0 && divisor == 1 ? value : Finish(value, factor, divisor);
}

__device__ inline unsigned char Prescaled(unsigned char value, double, Bool) { return value; }
__device__ inline unsigned char Finished(unsigned char value, double, long long, Bool) { return value; }

// --- kernels ---------------------------------------------------------------------------------------------------------

struct alignas(kPacketBytes) Packet {
  unsigned int words[4];
};

__device__ inline Packet PacketAt(const void* data, Word index) { return static_cast<const Packet*>(data)[index]; }

__device__ inline bool Aligned(Word addresses, int bytes) { return (addresses & static_cast<Word>(bytes - 1)) == 0; }
__device__ inline Word AddressOf(const void* data) { return reinterpret_cast<Word>(data); }
__device__ inline Word FirstOfThread() { return static_cast<Word>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline Word Threads() { return static_cast<Word>(gridDim.x) * blockDim.x; }
__device__ inline bool Broken(const Word* broken) { return __ldcv(broken) != 0; }

template <typename Element, typename Op>
struct Reduction {
  typedef typename Element::Stored Stored;
  typedef typename Element::Computed Computed;
  static constexpr int kElements = kPacketBytes / static_cast<int>(sizeof(Stored));

  __device__ static Computed Scaled(Stored stored, const ReduceArguments& arguments) {
    const Computed value = Element::Load(stored);
    return arguments.prescale == 1.0 ? value : Prescaled(value, arguments.prescale, Element());
  }
  __device__ static Stored ToStore(Computed value, const ReduceArguments& arguments) {
    return Element::Store(Finished(value, arguments.postscale, arguments.divisor, Element()));
  }
  __device__ static const char* Source(const ReduceArguments& arguments, int source, Word offset) {
    return static_cast<const char*>(arguments.sources[source]) + offset;
  }

  // One packet of all sources.
  __device__ static void One(const ReduceArguments& arguments, const ReducePiece& piece, Word index) {
    Computed result[kElements];
    Packet packet = PacketAt(Source(arguments, 0, piece.offset), index);
    Stored values[kElements];
    memcpy(values, &packet, sizeof(packet));
#pragma unroll
    for (int i = 0; i < kElements; ++i) result[i] = Scaled(values[i], arguments);
    for (int source = 1; source < arguments.num_sources; ++source) {
      packet = PacketAt(Source(arguments, source, piece.offset), index);
      memcpy(values, &packet, sizeof(packet));
#pragma unroll
      for (int i = 0; i < kElements; ++i) result[i] = Op::Apply(result[i], Scaled(values[i], arguments));
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] = ToStore(result[i], arguments);
    memcpy(&packet, values, sizeof(packet));
    static_cast<Packet*>(piece.output)[index] = packet;
  }

  __device__ static void Run(const ReduceArguments& arguments) {
    if (Broken(arguments.broken)) return;
    const ReducePiece piece = arguments.pieces[blockIdx.y];
    Word addresses = AddressOf(piece.output) | piece.offset;
    for (int source = 0; source < arguments.num_sources; ++source) addresses |= AddressOf(arguments.sources[source]);
    const Word packets = Aligned(addresses, kPacketBytes) ? piece.count / kElements : 0;
    for (Word i = FirstOfThread(); i < packets; i += Threads()) One(arguments, piece, i);
    for (Word i = packets * kElements + FirstOfThread(); i < piece.count; i += Threads()) {
      const Word place = piece.offset + i * sizeof(Stored);
      Computed result = Scaled(*reinterpret_cast<const Stored*>(Source(arguments, 0, place)), arguments);
      for (int source = 1; source < arguments.num_sources; ++source) {
        const Stored next = *reinterpret_cast<const Stored*>(Source(arguments, source, place));
        result = Op::Apply(result, Scaled(next, arguments));
      }
      static_cast<Stored*>(piece.output)[i] = ToStore(result, arguments);
    }
  }
};

template <typename T>
__device__ inline void CopyAs(const CopyPiece& piece, Word done) {
  const T* from = static_cast<const T*>(piece.from);
  T* to = static_cast<T*>(piece.to);
  const Word end = piece.bytes / sizeof(T);
  for (Word i = done / sizeof(T) + FirstOfThread(); i < end; i += Threads()) to[i] = from != nullptr ? from[i] : T();
}

}  // namespace device
}  // namespace spark_estimator

#define SE_KERNEL(name, type) \
  extern "C" __global__ void name(const spark_estimator::device::type __grid_constant__ arguments)

SE_KERNEL(se_copy, CopyArguments) {
  using namespace spark_estimator::device;
  if (Broken(arguments.broken)) return;
  const CopyPiece piece = arguments.pieces[blockIdx.y];
  const Word addresses = AddressOf(piece.from) | AddressOf(piece.to);
  Word done = 0;
  if (Aligned(addresses, kPacketBytes)) {
    CopyAs<Packet>(piece, 0);
    done = piece.bytes - piece.bytes % kPacketBytes;
  } else if (Aligned(addresses, sizeof(unsigned int))) {
    CopyAs<unsigned int>(piece, 0);
    done = piece.bytes - piece.bytes % sizeof(unsigned int);
  }
  CopyAs<unsigned char>(piece, done);
}

// What the stream's kernels before this one have written is seen by whoever sees the counter.
SE_KERNEL(se_tell, TellArguments) {
  using namespace spark_estimator::device;
  if (Broken(arguments.broken)) return;
  __threadfence_system();
  for (Word i = FirstOfThread(); i < static_cast<Word>(arguments.num_counters); i += Threads()) {
    atomicMax_system(arguments.counters[i], arguments.value);
  }
}

#define SE_REDUCE_KERNEL(name, element, op)                          \
  SE_KERNEL(se_reduce_##name, ReduceArguments) {                     \
    using namespace spark_estimator::device;                         \
    spark_estimator::device::Reduction<element, op>::Run(arguments); \
  }
#define SE_REDUCE_KERNELS(name, element)             \
  SE_REDUCE_KERNEL(name##_sum, element, Sum)         \
  SE_REDUCE_KERNEL(name##_product, element, Product) \
  SE_REDUCE_KERNEL(name##_min, element, Min)         \
  SE_REDUCE_KERNEL(name##_max, element, Max)

// All of them take NVRTC five seconds, so it is given one type at a time: SE_DTYPE is a code of se_dtype, -1 for none.
#ifdef SE_DTYPE
#define SE_WANTED(dtype) (SE_DTYPE == dtype)
#else
#define SE_WANTED(dtype) 1
#endif

#if SE_WANTED(0)
SE_REDUCE_KERNELS(uint8, Plain<unsigned char>)
SE_REDUCE_KERNEL(uint8_average, Widened<unsigned char>, Sum)
#endif
#if SE_WANTED(1)
SE_REDUCE_KERNELS(int8, Plain<signed char>)
SE_REDUCE_KERNEL(int8_average, Widened<signed char>, Sum)
#endif
#if SE_WANTED(2)
SE_REDUCE_KERNELS(int16, Plain<short>)
SE_REDUCE_KERNEL(int16_average, Widened<short>, Sum)
#endif
#if SE_WANTED(3)
SE_REDUCE_KERNELS(int32, Plain<int>)
SE_REDUCE_KERNEL(int32_average, Widened<int>, Sum)
#endif
#if SE_WANTED(4)
SE_REDUCE_KERNELS(int64, Plain<long long>)
#endif
#if SE_WANTED(5)
SE_REDUCE_KERNELS(float16, Float16)
#endif
#if SE_WANTED(6)
SE_REDUCE_KERNELS(bfloat16, Bfloat16)
#endif
#if SE_WANTED(7)
SE_REDUCE_KERNELS(float32, Plain<float>)
#endif
#if SE_WANTED(8)
SE_REDUCE_KERNELS(float64, Plain<double>)
#endif
#if SE_WANTED(9)
SE_REDUCE_KERNEL(bool_or, Bool, Or)
SE_REDUCE_KERNEL(bool_and, Bool, And)
#endif
