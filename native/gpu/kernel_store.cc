#include "gpu/kernel_store.h"

#include <utility>

namespace spark_estimator {

Status KernelStore::Driver(const DriverApi** driver) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!driver_) {
    auto opened = std::make_unique<DriverApi>();
    SE_RETURN_IF_ERROR(DriverApi::Open("", opened.get()));
    driver_ = std::move(opened);
  }
  *driver = driver_.get();
  return Status::Ok();
}

Status KernelStore::Kernels(const std::string& nvrtc_library, DeviceKernels** kernels) {
  const DriverApi* driver = nullptr;
  SE_RETURN_IF_ERROR(Driver(&driver));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!kernels_) {
    auto opened = std::make_unique<NvrtcApi>();
    SE_RETURN_IF_ERROR(NvrtcApi::Open(nvrtc_library, opened.get()));
    nvrtc_ = std::move(opened);
    kernels_ = std::make_unique<DeviceKernels>(*driver, *nvrtc_);
  }
  *kernels = kernels_.get();
  return Status::Ok();
}

}  // namespace spark_estimator
