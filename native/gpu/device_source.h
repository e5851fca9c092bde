// The text of device_code.h and of the header that it includes, as it was when this library was built.
#ifndef SPARK_ESTIMATOR_GPU_DEVICE_SOURCE_H_
#define SPARK_ESTIMATOR_GPU_DEVICE_SOURCE_H_

namespace spark_estimator {

extern const char* const kDeviceCode;
extern const char* const kDeviceArguments;
inline constexpr const char* kDeviceArgumentsName = "gpu/device_arguments.h";

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_DEVICE_SOURCE_H_
