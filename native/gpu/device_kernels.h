// The project's own kernels on the GPUs of one process: compiled by NVRTC when they are first needed, and launched
// through the driver.
//
// What is compiled is device_code.h, for the very processor that the device has; the library carries it as text, so
// neither building nor installing needs a CUDA toolkit. All groups of a process share one object of these.
#ifndef SPARK_ESTIMATOR_GPU_DEVICE_KERNELS_H_
#define SPARK_ESTIMATOR_GPU_DEVICE_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "gpu/cuda_api.h"
#include "gpu/driver_api.h"
#include "gpu/nvrtc_api.h"

namespace spark_estimator {

class DeviceKernels {
 public:
  // `driver` and `nvrtc` must outlive it.
  DeviceKernels(const DriverApi& driver, const NvrtcApi& nvrtc) : driver_(driver), nvrtc_(nvrtc) {}
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  // The kernel of that name in the device's primary context, which must be the thread's current one. The first kernel
  // of a unit is compiled, which takes about a second; another thread that wants one waits for that. From any thread.
  Status Find(int device, const std::string& unit, const std::string& name, CudaFunction* function);

  // One unit of device_code.h for a processor (90 is compute capability 9.0): machine code, or, where NVRTC is older
  // than the processor, PTX for the driver to translate. No GPU is needed.
  static Status Compile(const NvrtcApi& nvrtc, const std::string& unit, int processor, std::vector<char>* image);

  const DriverApi& driver() const { return driver_; }

 private:
  struct Module {
    CudaModule handle = nullptr;
    std::map<std::string, CudaFunction> functions;
  };

  Status Load(int device, const std::string& unit, Module* module);

  const DriverApi& driver_;
  const NvrtcApi& nvrtc_;
  std::mutex mutex_;
  std::map<std::pair<int, std::string>, Module> modules_;  // by device and unit; never unloaded
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_DEVICE_KERNELS_H_
