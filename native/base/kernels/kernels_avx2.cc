#define SE_KERNELS_NAMESPACE kernels_avx2
#define SE_KERNELS_NAME "AVX2"
#include "base/kernels/kernels_body.h"
#include "base/kernels/processor.h"

namespace spark_estimator {

const Kernels* Avx2Kernels() { return HasAvx2() ? &kernels_avx2::kTable : nullptr; }

}  // namespace spark_estimator
