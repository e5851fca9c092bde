#include "engine/requests/request.h"

#include "base/dtype.h"

namespace spark_estimator {

std::string LabelOf(const Signature& signature, int64_t number) {
  return OpName(signature.op) + " '" + FullName(signature.name, number) + "'";
}

}  // namespace spark_estimator
