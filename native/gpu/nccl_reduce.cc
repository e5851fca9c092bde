#include "gpu/nccl_reduce.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/dtype.h"
#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

bool IsFloat(NcclType type) {
  return type == kNcclFloat16 || type == kNcclBfloat16 || type == kNcclFloat32 || type == kNcclFloat64;
}

double FactorOf(const Reduction& reduction, int size) {
  const double factor = reduction.prescale * reduction.postscale;
  return reduction.reduce_op == SE_AVERAGE ? factor / size : factor;
}

// Whether it survives in the type: neither lost to zero nor to infinity, nor robbed of its digits.
bool FitsNormally(double factor, NcclType type) {
  const double size = std::fabs(factor);
  switch (type) {
    case kNcclFloat16:
      return size >= 0x1p-14 && size <= 65504;
    case kNcclBfloat16:
      return size >= std::numeric_limits<float>::min() && size <= 0x1.fep127;
    case kNcclFloat32:
      return size >= std::numeric_limits<float>::min() && size <= std::numeric_limits<float>::max();
    default:
      return size >= std::numeric_limits<double>::min() && size <= std::numeric_limits<double>::max();
  }
}

bool OffersReduction(const Reduction& reduction, int size) {
  const auto type = NcclTypeOf(reduction.dtype);
  if (!type || !IsReduceOp(reduction.reduce_op) || reduction.reduce_op == SE_ADASUM) return false;
  const bool scaled = reduction.prescale != 1 || reduction.postscale != 1;
  if (!IsFloat(*type)) return reduction.reduce_op != SE_AVERAGE && !scaled;
  if (reduction.reduce_op != SE_SUM && reduction.reduce_op != SE_AVERAGE) return !scaled;
  return FitsNormally(FactorOf(reduction, size), *type);
}

}  // namespace

bool NcclOffers(int32_t op, const Reduction& reduction, int size) {
  switch (op) {
    case SE_ALLREDUCE:
    case SE_REDUCESCATTER:
      return OffersReduction(reduction, size);
    case SE_ALLGATHER:
    case SE_BROADCAST:
    case SE_ALLTOALL:
    case SE_BARRIER:
      return true;
    default:
      return false;
  }
}

std::optional<NcclType> NcclTypeOf(int32_t dtype) {
  switch (dtype) {
    case SE_UINT8:
    case SE_BOOL:
      return kNcclUint8;
    case SE_INT8:
      return kNcclInt8;
    case SE_INT32:
      return kNcclInt32;
    case SE_INT64:
      return kNcclInt64;
    case SE_FLOAT16:
      return kNcclFloat16;
    case SE_BFLOAT16:
      return kNcclBfloat16;
    case SE_FLOAT32:
      return kNcclFloat32;
    case SE_FLOAT64:
      return kNcclFloat64;
    default:
      return std::nullopt;
  }
}

NcclReduction NcclReductionOf(const Reduction& reduction, int size) {
  NcclReduction result;
  result.type = NcclTypeOf(reduction.dtype).value_or(kNcclFloat32);
  const bool is_bool = reduction.dtype == SE_BOOL;
  switch (reduction.reduce_op) {
    case SE_MIN:
      result.op = kNcclMin;
      break;
    case SE_MAX:
      result.op = kNcclMax;
      break;
    case SE_PRODUCT:
      result.op = is_bool ? kNcclMin : kNcclProduct;
      break;
    default:
      result.op = is_bool ? kNcclMax : kNcclSum;
      result.factor = FactorOf(reduction, size);
      break;
  }
  return result;
}

NcclScalar NcclScalarOf(double factor, NcclType type) {
  NcclScalar scalar;
  const auto narrow = static_cast<float>(factor);
  switch (type) {
    case kNcclFloat16:
      HalvesFromFloat32(SE_FLOAT16, scalar.bytes, &narrow, 1);
      break;
    case kNcclBfloat16:
      HalvesFromFloat32(SE_BFLOAT16, scalar.bytes, &narrow, 1);
      break;
    case kNcclFloat32:
      std::memcpy(scalar.bytes, &narrow, sizeof(narrow));
      break;
    default:
      std::memcpy(scalar.bytes, &factor, sizeof(factor));
      break;
  }
  return scalar;
}

}  // namespace spark_estimator
