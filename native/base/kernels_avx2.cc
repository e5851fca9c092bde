#define SE_KERNELS_NAMESPACE kernels_avx2
#define SE_KERNELS_NAME "AVX2"
#include "base/kernels_body.h"

namespace spark_estimator {

const Kernels* Avx2Kernels() {
  const bool here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return here ? &kernels_avx2::kTable : nullptr;
}

}  // namespace spark_estimator
