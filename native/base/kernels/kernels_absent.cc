// Replaces the x86 variants on other processors: the build chooses this file there.
#include "base/kernels/kernels.h"

namespace spark_estimator {

const Kernels* Avx2Kernels() { return nullptr; }
const Kernels* Avx512Kernels() { return nullptr; }

}  // namespace spark_estimator
