// What NCCL reduces and with which of its types and operators; pure functions.
#ifndef SPARK_ESTIMATOR_GPU_NCCL_REDUCE_H_
#define SPARK_ESTIMATOR_GPU_NCCL_REDUCE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "gpu/collective_tensors.h"
#include "gpu/nccl_api.h"

namespace spark_estimator {

// Whether a group of `size` ranks can do this with the result that the engine's own algorithms promise. Not offered:
// integers' averages and factors (the engine's truncate, NCCL's cannot), factors around a minimum, maximum or product,
// int16 (NCCL has none), Adasum, and a factor that is zero, subnormal or infinite in the tensor's own type, in which
// NCCL multiplies. `reduction` is looked at for allreduce and reducescatter; the others move bytes of any type.
bool NcclOffers(int32_t op, const Reduction& reduction, int size);

// The type to reduce as: bool is uint8 (its "or" is a maximum, its "and" a minimum). None for int16.
std::optional<NcclType> NcclTypeOf(int32_t dtype);

// The NCCL call for a supported reduction.
struct NcclReduction {
  NcclType type = kNcclFloat32;
  NcclReduceOp op = kNcclSum;
  double factor = 1;  // other than 1: the inputs are multiplied by it, then added up (op is kNcclSum)
};
NcclReduction NcclReductionOf(const Reduction& reduction, int size);

// A factor as the scalar of ncclRedOpCreatePreMulSum: in the type that is reduced.
struct NcclScalar {
  alignas(8) unsigned char bytes[8] = {};
};
NcclScalar NcclScalarOf(double factor, NcclType type);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_NCCL_REDUCE_H_
