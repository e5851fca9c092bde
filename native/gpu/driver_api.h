// The functions of the CUDA driver (libcuda) that the runtime has no like for, found while the program runs: launching
// kernels that were compiled at run time, streams that wait for a word of memory, and the name of a device that no
// other one has.
#ifndef SPARK_ESTIMATOR_GPU_DRIVER_API_H_
#define SPARK_ESTIMATOR_GPU_DRIVER_API_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "gpu/cuda_api.h"
#include "gpu/shared_object.h"

namespace spark_estimator {

using CudaContext = struct CudaContextObject*;
using CudaModule = struct CudaModuleObject*;
using CudaFunction = struct CudaFunctionObject*;
using CudaAddress = unsigned long long;  // CUdeviceptr

// cuda.h: CUuuid.
struct CudaUuid {
  std::array<unsigned char, 16> bytes{};
};

// Values of CUresult, CUdevice_attribute and CUstreamWaitValue_flags (cuda.h of 12.9; part of CUDA's ABI).
inline constexpr int kDriverSuccess = 0;
inline constexpr int kDriverUnifiedAddressing = 41;
inline constexpr int kDriverCapabilityMajor = 75;
inline constexpr int kDriverCapabilityMinor = 76;
inline constexpr int kDriverMemoryOperations64 = 122;
inline constexpr unsigned int kDriverWaitGreaterOrEqual = 0;

// Filled by Open as a whole or not at all. Each function is CUDA's of the same name after "cu", in the version that
// CUDA 12 and 13 call by that name, and returns a CUresult. Devices are ordinals: cuDeviceGet gives back what it gets.
struct DriverApi {
  int (*Init)(unsigned int flags) = nullptr;
  int (*DeviceGet)(int* device, int ordinal) = nullptr;
  int (*DeviceGetUuid)(CudaUuid* uuid, int device) = nullptr;
  int (*DeviceGetAttribute)(int* value, int attribute, int device) = nullptr;
  int (*DevicePrimaryCtxRetain)(CudaContext* context, int device) = nullptr;
  int (*DevicePrimaryCtxRelease)(int device) = nullptr;
  int (*CtxPushCurrent)(CudaContext context) = nullptr;
  int (*CtxPopCurrent)(CudaContext* context) = nullptr;
  int (*ModuleLoadData)(CudaModule* module, const void* image) = nullptr;
  int (*ModuleGetFunction)(CudaFunction* function, CudaModule module, const char* name) = nullptr;
  int (*LaunchKernel)(CudaFunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                      CudaStream stream, void** arguments, void** extra) = nullptr;
  int (*StreamWaitValue64)(CudaStream stream, CudaAddress address, uint64_t value, unsigned int flags) = nullptr;
  int (*GetErrorName)(int code, const char** name) = nullptr;
  int (*GetErrorString)(int code, const char** text) = nullptr;

  SharedObject library;

  // `path` is that of a libcuda.so.1; empty: the one that the linker finds. Initialises the driver.
  static Status Open(const std::string& path, DriverApi* api);

  // SE_OK for CUDA_SUCCESS; else `what`, and the driver's words for `code`. Out of memory is SE_NO_MEMORY.
  Status Check(int code, const std::string& what) const;
  Status Attribute(int device, int attribute, int* value) const;
};

// What tells a GPU, or a slice of one (MIG), from all others, wherever a process sees it and by whichever number:
// "GPU-6d2a..." without the prefix, in lower case. Ranks for which it is the same share that device. On drivers before
// 11.4, which know no slices, it is the whole GPU's.
Status DeviceUuid(const DriverApi& driver, int device, std::string* uuid);

// The primary context of a device, which the CUDA runtime and frameworks use, as the thread's current one for the
// length of a scope: for calls of the driver and of the runtime.
class DriverContextScope {
 public:
  DriverContextScope(const DriverApi& driver, CudaContext context);
  ~DriverContextScope();
  DriverContextScope(const DriverContextScope&) = delete;
  DriverContextScope& operator=(const DriverContextScope&) = delete;

  const Status& status() const { return status_; }

 private:
  const DriverApi& driver_;
  Status status_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_DRIVER_API_H_
