// What the fake CUDA driver offers beside CUDA's own functions: what a device is like, and failures on demand.
#ifndef SPARK_ESTIMATOR_TESTS_FAKES_FAKE_CUDA_DRIVER_H_
#define SPARK_ESTIMATOR_TESTS_FAKES_FAKE_CUDA_DRIVER_H_

#define FAKE_API __attribute__((visibility("default")))

extern "C" {

// What all devices answer for an attribute (cuda.h's number); 1 unless it is said, and compute capability 9.0.
FAKE_API void fake_driver_attribute(int attribute, int value);
// Devices differ by their ordinals, in all processes alike, unless FAKE_CUDA_UUIDS says "a,a,b": then device 0 and 1
// are the same. Or this does, from now on; empty: by their ordinals.
FAKE_API void fake_driver_uuids(const char* names);
// After so many further launches one fails with `code`, and the next ones are well; -1: none does.
FAKE_API void fake_driver_fail_launch(int after, int code);
// How many kernels have been launched.
FAKE_API int fake_driver_launches(void);

}  // extern "C"

#endif  // SPARK_ESTIMATOR_TESTS_FAKES_FAKE_CUDA_DRIVER_H_
