// Element types: sizes and the names that users know them by.
#ifndef SPARK_ESTIMATOR_BASE_DTYPE_H_
#define SPARK_ESTIMATOR_BASE_DTYPE_H_

#include <cstddef>
#include <string>

#include "spark_estimator/engine.h"

namespace spark_estimator {

// Bytes of one element; 0 for a code that is no dtype.
size_t DtypeBytes(int32_t dtype);
std::string DtypeName(int32_t dtype);
std::string ReduceOpName(int32_t reduce_op);
// "allreduce", "allgather", ...
std::string OpName(int32_t op);
bool IsReduceOp(int32_t reduce_op);
// uint8 to int64, and uint16; bool is none.
bool IsInteger(int32_t dtype);
// float16, bfloat16, float32, float64.
bool IsFloatingPoint(int32_t dtype);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_DTYPE_H_
