// The functions of the CUDA driver (libcuda) that the runtime has no like for, found while the program runs: the UUID
// of a device.
#ifndef SPARK_ESTIMATOR_GPU_DRIVER_API_H_
#define SPARK_ESTIMATOR_GPU_DRIVER_API_H_

#include <array>
#include <string>

#include "base/shared_object.h"
#include "base/status.h"

namespace spark_estimator {

// cuda.h: CUuuid.
struct CudaUuid {
  std::array<unsigned char, 16> bytes{};
};

inline constexpr int kDriverSuccess = 0;  // of CUresult (cuda.h of 12.9; part of CUDA's ABI)

// Filled by Open as a whole or not at all. Each function is CUDA's of the same name after "cu", in the version that
// CUDA 12 and 13 call by that name, and returns a CUresult. Devices are ordinals: cuDeviceGet gives back what it gets.
struct DriverApi {
  int (*Init)(unsigned int flags) = nullptr;
  int (*DeviceGet)(int* device, int ordinal) = nullptr;
  int (*DeviceGetUuid)(CudaUuid* uuid, int device) = nullptr;
  int (*GetErrorName)(int code, const char** name) = nullptr;
  int (*GetErrorString)(int code, const char** text) = nullptr;

  SharedObject library;

  // `path` is that of a libcuda.so.1; empty: the one that the linker finds. Initialises the driver.
  static Status Open(const std::string& path, DriverApi* api);

  // SE_OK for CUDA_SUCCESS; else `what`, and the driver's words for `code`. Out of memory is SE_NO_MEMORY.
  Status Check(int code, const std::string& what) const;
};

// Identifies a GPU, or a slice of one (MIG), in every process and under any number: "GPU-6d2a..." without the prefix,
// in lower case. Ranks for which it is the same share that device. On drivers before 11.4, which know no slices, it is
// the whole GPU's.
Status DeviceUuid(const DriverApi& driver, int device, std::string* uuid);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_DRIVER_API_H_
