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
#include <utility>
#include <vector>

#include "base/status.h"
#include "gpu/cuda_api.h"
#include "gpu/driver_api.h"
#include "gpu/nvrtc_api.h"

namespace spark_estimator {

// What is compiled at a time: a dtype's reductions, or the kernels that belong to none.
inline constexpr int32_t kNoDtype = -1;

class DeviceKernels {
 public:
  // `driver` and `nvrtc` must outlive it.
  DeviceKernels(const DriverApi& driver, const NvrtcApi& nvrtc) : driver_(driver), nvrtc_(nvrtc) {}
  DeviceKernels(const DeviceKernels&) = delete;
  DeviceKernels& operator=(const DeviceKernels&) = delete;

  // The kernel in the device's primary context, which must be the thread's current one. Of each dtype the first is
  // compiled, which takes up to a second; whoever wants one meanwhile waits for that. From any thread.
  Status Find(int device, int32_t dtype, const std::string& name, CudaFunction* function);

  // A dtype's kernels for a processor (90 is compute capability 9.0): machine code, or, where NVRTC is older than the
  // processor, PTX for the driver to translate. Needs no GPU.
  static Status Compile(const NvrtcApi& nvrtc, int32_t dtype, int processor, std::vector<char>* image);

  // The name of the kernel for a reduction; empty when there is none.
  static std::string NameOf(int32_t dtype, int32_t reduce_op);

  const DriverApi& driver() const { return driver_; }

 private:
  struct Module {
    CudaModule handle = nullptr;
    std::map<std::string, CudaFunction> functions;
  };

  Status Load(int device, int32_t dtype, CudaModule* module) const;

  const DriverApi& driver_;
  const NvrtcApi& nvrtc_;
  std::mutex mutex_;
  std::map<std::pair<int, int32_t>, Module> modules_;  // by device and dtype; they stay until the process ends
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_DEVICE_KERNELS_H_
