// The results of NCCL's calls on a non-blocking communicator.
#ifndef SPARK_ESTIMATOR_GPU_NCCL_CALLS_H_
#define SPARK_ESTIMATOR_GPU_NCCL_CALLS_H_

#include "gpu/nccl_api.h"

namespace spark_estimator {

// "In progress" means: accepted, and not done yet.
inline bool NcclHasTaken(int result) { return result == kNcclSuccess || result == kNcclInProgress; }

// A row of calls that ends with the first that is refused.
class NcclCalls {
 public:
  void Add(int result) {
    if (NcclHasTaken(result_)) result_ = result;
  }
  bool going_on() const { return NcclHasTaken(result_); }
  int result() const { return result_; }

 private:
  int result_ = kNcclSuccess;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_NCCL_CALLS_H_
