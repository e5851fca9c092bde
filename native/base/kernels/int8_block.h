// The form in which float32 values are sent as int8: blocks with a scale each.
#ifndef SPARK_ESTIMATOR_BASE_KERNELS_INT8_BLOCK_H_
#define SPARK_ESTIMATOR_BASE_KERNELS_INT8_BLOCK_H_

#include <stddef.h>

namespace spark_estimator {

// A block is a float32 scale, then one int8 code a value: value = code * scale. The largest magnitude has the code 127
// or -127. A scale of NaN: a value was not finite, and all values of the block are NaN. Zeros fill it up to a multiple
// of four bytes.
constexpr size_t kInt8BlockValues = 256;

constexpr size_t Int8BlockBytes(size_t values) { return sizeof(float) + (values + 3) / 4 * 4; }

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_KERNELS_INT8_BLOCK_H_
