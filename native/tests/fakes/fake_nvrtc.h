// What the fake NVRTC offers beside NVRTC's own functions.
#ifndef SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NVRTC_H_
#define SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NVRTC_H_

#define FAKE_API __attribute__((visibility("default")))

extern "C" {

// 12.4 unless it is said.
FAKE_API void fake_nvrtc_version(int major, int minor);
// The processors that it compiles for: 70, 80 and 90 unless it is said, ascending from `oldest` to `newest` by tens.
FAKE_API void fake_nvrtc_processors(int oldest, int newest);
// From now on compiling kernels of that dtype fails, with a log; -2: all are compiled.
FAKE_API void fake_nvrtc_fail(int dtype);
FAKE_API int fake_nvrtc_compilations(void);
FAKE_API int fake_nvrtc_live_programs(void);

}  // extern "C"

#endif  // SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NVRTC_H_
