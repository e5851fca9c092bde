// What the ranks of a group use alike: rank 0's settings, fixed when the group starts but for se_order_ring.
#ifndef SPARK_ESTIMATOR_ENGINE_PARAMETERS_H_
#define SPARK_ESTIMATOR_ENGINE_PARAMETERS_H_

#include <cstdint>

#include "algorithms/choose.h"

namespace spark_estimator {

struct Parameters {
  int64_t fusion_threshold_bytes = 0;  // small allreduces are fused up to this number of bytes; 0: fusion is off
  Tuning tuning = {};
  bool operator==(const Parameters&) const = default;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_PARAMETERS_H_
