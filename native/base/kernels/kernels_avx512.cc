#define SE_KERNELS_NAMESPACE kernels_avx512
#define SE_KERNELS_NAME "AVX-512"
#include "base/kernels/kernels_body.h"
#include "base/kernels/processor.h"

namespace spark_estimator {

const Kernels* Avx512Kernels() { return HasAvx512() ? &kernels_avx512::kTable : nullptr; }

}  // namespace spark_estimator
