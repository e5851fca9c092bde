// Which instruction sets this processor and this kernel have.
#ifndef SPARK_ESTIMATOR_BASE_KERNELS_PROCESSOR_H_
#define SPARK_ESTIMATOR_BASE_KERNELS_PROCESSOR_H_

namespace spark_estimator {

// AVX2, FMA and F16C.
bool HasAvx2();
// F, BW, DQ and VL, with all that HasAvx2() includes.
bool HasAvx512();

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_KERNELS_PROCESSOR_H_
