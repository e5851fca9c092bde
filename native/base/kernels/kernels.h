// Element-wise arithmetic of the reductions, in the best instruction set that this processor has.
#ifndef SPARK_ESTIMATOR_BASE_KERNELS_KERNELS_H_
#define SPARK_ESTIMATOR_BASE_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace spark_estimator {

// What happens to a value once it is fully reduced. Floating point: multiplied by factor / divisor, in float32 for the
// 16-bit types. Integers: multiplied by factor and truncated toward zero (when it is not 1), then divided by divisor,
// truncating. bool: nothing.
struct Finish {
  double factor = 1.0;
  int64_t divisor = 1;
  bool nothing() const { return factor == 1.0 && divisor == 1; }
};

struct Kernels {
  const char* instruction_set;
  // destination[i] = finish(sources[0][i] op sources[1][i] op ...), evaluated in the order of the sources, so that all
  // ranks compute the same bits. float16 and bfloat16 accumulate in float32 and are rounded once; integers wrap.
  // `reduce_op` is sum, min, max or product (average is sum and a Finish). destination is one of the sources exactly,
  // or overlaps none.
  void (*combine)(int32_t dtype, int32_t reduce_op, void* destination, const void* const* sources, int num_sources,
                  size_t count, Finish finish);
  // The same, written to several places in one pass. Each destination is one of the sources exactly, or overlaps none.
  void (*combine_into)(int32_t dtype, int32_t reduce_op, void* const* destinations, int num_destinations,
                       const void* const* sources, int num_sources, size_t count, Finish finish);
  // Copies past the caches, where the processor can: the destination's lines are neither fetched nor kept. All of it is
  // visible before any later store. The two do not overlap.
  void (*copy_past_caches)(void* destination, const void* source, size_t bytes);
  // destination[i] = finish(source[i]); the two may be the same.
  void (*finish)(int32_t dtype, void* destination, const void* source, size_t count, Finish finish);
  // To and from int64, for sums that the narrow type cannot hold. `narrow` is uint8, int8, int16 or int32.
  void (*widen)(int32_t narrow, int64_t* destination, const void* source, size_t count);
  void (*narrow)(int32_t narrow, void* destination, const int64_t* source, size_t count);
  // Encodes x = values * factor + addend to blocks of int8, see int8_block.h. Writes the rounding error of x to
  // `residue`, and the decoded values of the blocks to `decoded`. `addend`, `residue` and `decoded` may be null, and
  // each may be identical to another one or to `values`; else nothing overlaps. A block with a value that is not finite
  // has no error.
  void (*encode_int8)(const float* values, const float* addend, float factor, float* residue, float* decoded,
                      uint8_t* blocks, size_t count);
  // to = (addend + what the blocks hold) * factor; no `addend`: null. It may be `to` exactly. `residue`, where it is
  // not null, becomes zero in blocks that are not finite: their gradients are lost, and so is what was left out of
  // them.
  void (*decode_int8)(float* to, const float* addend, float* residue, const uint8_t* blocks, size_t count,
                      float factor);
};

// Chosen once, when first called.
const Kernels& GetKernels();

// The variants, for tests; nullptr when it was not built or this processor lacks it.
const Kernels* BaselineKernels();
const Kernels* Avx2Kernels();
const Kernels* Avx512Kernels();

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_KERNELS_KERNELS_H_
