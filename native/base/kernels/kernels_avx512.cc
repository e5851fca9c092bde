#define SE_KERNELS_NAMESPACE kernels_avx512
#define SE_KERNELS_NAME "AVX-512"
#include "base/kernels/kernels_body.h"

namespace spark_estimator {

const Kernels* Avx512Kernels() {
  const bool here = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return here ? &kernels_avx512::kTable : nullptr;
}

}  // namespace spark_estimator
