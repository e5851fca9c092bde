#define SE_KERNELS_NAMESPACE kernels_avx2
#define SE_KERNELS_NAME "AVX2"
#include <cpuid.h>

#include "base/kernels/kernels_body.h"

namespace spark_estimator {
namespace {

// Clang before 17 does not know "f16c" in __builtin_cpu_supports.
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

const Kernels* Avx2Kernels() {
  const bool here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
  return here ? &kernels_avx2::kTable : nullptr;
}

}  // namespace spark_estimator
