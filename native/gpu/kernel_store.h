// Where a process keeps its own kernels on GPUs, and the driver and compiler that they come from.
#ifndef SPARK_ESTIMATOR_GPU_KERNEL_STORE_H_
#define SPARK_ESTIMATOR_GPU_KERNEL_STORE_H_

#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "gpu/device_kernels.h"
#include "gpu/driver_api.h"
#include "gpu/nvrtc_api.h"

namespace spark_estimator {

// One for a process, which groups share and outlive at most: what is compiled and loaded once serves all of them.
class KernelStore {
 public:
  // The driver, opened on first use. What fails is tried again by the next who asks.
  Status Driver(const DriverApi** driver);
  // The kernels; `nvrtc_library` is looked at until NVRTC has been opened once (see NvrtcApi::Open).
  Status Kernels(const std::string& nvrtc_library, DeviceKernels** kernels);

 private:
  std::mutex mutex_;
  std::unique_ptr<const DriverApi> driver_;
  std::unique_ptr<const NvrtcApi> nvrtc_;
  std::unique_ptr<DeviceKernels> kernels_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_KERNEL_STORE_H_
