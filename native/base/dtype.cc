#include "base/dtype.h"

#include <array>

namespace spark_estimator {
namespace {

struct DtypeRow {
  const char* name;
  size_t bytes;
};

// Indexed by se_dtype.
constexpr std::array<DtypeRow, 11> kDtypes = {{{"uint8", 1},
                                               {"int8", 1},
                                               {"int16", 2},
                                               {"int32", 4},
                                               {"int64", 8},
                                               {"float16", 2},
                                               {"bfloat16", 2},
                                               {"float32", 4},
                                               {"float64", 8},
                                               {"bool", 1},
                                               {"uint16", 2}}};

bool Known(int32_t dtype) { return dtype >= 0 && dtype < static_cast<int32_t>(kDtypes.size()); }

}  // namespace

size_t DtypeBytes(int32_t dtype) { return Known(dtype) ? kDtypes[static_cast<size_t>(dtype)].bytes : 0; }

std::string DtypeName(int32_t dtype) {
  return Known(dtype) ? kDtypes[static_cast<size_t>(dtype)].name : "dtype code " + std::to_string(dtype);
}

std::string ReduceOpName(int32_t reduce_op) {
  switch (reduce_op) {
    case SE_AVERAGE:
      return "Average";
    case SE_SUM:
      return "Sum";
    case SE_ADASUM:
      return "Adasum";
    case SE_MIN:
      return "Min";
    case SE_MAX:
      return "Max";
    case SE_PRODUCT:
      return "Product";
    default:
      return "reduce op code " + std::to_string(reduce_op);
  }
}

std::string OpName(int32_t op) {
  switch (op) {
    case SE_ALLREDUCE:
      return "allreduce";
    case SE_ALLGATHER:
      return "allgather";
    case SE_BROADCAST:
      return "broadcast";
    case SE_BARRIER:
      return "barrier";
    case SE_ALLTOALL:
      return "alltoall";
    case SE_REDUCESCATTER:
      return "reducescatter";
    case SE_JOIN:
      return "join";
    default:
      return "op code " + std::to_string(op);
  }
}

bool IsReduceOp(int32_t reduce_op) { return reduce_op >= SE_AVERAGE && reduce_op <= SE_PRODUCT; }

bool IsInteger(int32_t dtype) { return (dtype >= SE_UINT8 && dtype <= SE_INT64) || dtype == SE_UINT16; }

bool IsFloatingPoint(int32_t dtype) { return dtype >= SE_FLOAT16 && dtype <= SE_FLOAT64; }

}  // namespace spark_estimator
