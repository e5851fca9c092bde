#define SE_KERNELS_NAMESPACE kernels_baseline
#define SE_KERNELS_NAME "baseline"
#include "base/kernels/kernels_body.h"

namespace spark_estimator {

const Kernels* BaselineKernels() { return &kernels_baseline::kTable; }

}  // namespace spark_estimator
