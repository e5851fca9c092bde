#include "base/kernels/kernels.h"

namespace spark_estimator {

const Kernels& GetKernels() {
  static const Kernels& chosen = [&]() -> const Kernels& {
    if (const Kernels* best = Avx512Kernels()) return *best;
    if (const Kernels* good = Avx2Kernels()) return *good;
    return *BaselineKernels();
  }();
  return chosen;
}

}  // namespace spark_estimator
