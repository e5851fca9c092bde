// float16 and bfloat16 to and from float32, many at a time.
#ifndef SPARK_ESTIMATOR_BASE_KERNELS_HALVES_H_
#define SPARK_ESTIMATOR_BASE_KERNELS_HALVES_H_

#include <cstddef>
#include <cstdint>

#include "spark_estimator/engine.h"

namespace spark_estimator {

inline bool IsHalf(int32_t dtype) { return dtype == SE_FLOAT16 || dtype == SE_BFLOAT16; }

// `dtype` is SE_FLOAT16 or SE_BFLOAT16; `halves` holds `count` of them.
void HalvesToFloat32(int32_t dtype, float* floats, const void* halves, size_t count);
// Rounds to nearest, ties to even; NaN stays NaN, values that are too large become infinite.
void HalvesFromFloat32(int32_t dtype, void* halves, const float* floats, size_t count);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_KERNELS_HALVES_H_
