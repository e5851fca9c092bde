// The functions of NVRTC, CUDA's compiler as a library, found while the program runs.
#ifndef SPARK_ESTIMATOR_GPU_NVRTC_API_H_
#define SPARK_ESTIMATOR_GPU_NVRTC_API_H_

#include <cstddef>
#include <string>

#include "base/status.h"
#include "gpu/shared_object.h"

namespace spark_estimator {

using NvrtcProgram = struct NvrtcProgramObject*;

inline constexpr int kNvrtcSuccess = 0;
inline constexpr int kNvrtcOutOfMemory = 1;

// Filled by Open as a whole or not at all. Each function is NVRTC's of the same name after "nvrtc" and returns an
// nvrtcResult.
struct NvrtcApi {
  static constexpr int kMinimumMajor = 12;

  int (*Version)(int* major, int* minor) = nullptr;
  int (*GetNumSupportedArchs)(int* count) = nullptr;
  int (*GetSupportedArchs)(int* processors) = nullptr;  // ascending: 75, 80, ...
  int (*CreateProgram)(NvrtcProgram* program, const char* source, const char* name, int num_headers,
                       const char* const* headers, const char* const* header_names) = nullptr;
  int (*DestroyProgram)(NvrtcProgram* program) = nullptr;
  int (*CompileProgram)(NvrtcProgram program, int num_options, const char* const* options) = nullptr;
  int (*GetPTXSize)(NvrtcProgram program, size_t* bytes) = nullptr;
  int (*GetPTX)(NvrtcProgram program, char* text) = nullptr;
  int (*GetCUBINSize)(NvrtcProgram program, size_t* bytes) = nullptr;
  int (*GetCUBIN)(NvrtcProgram program, char* image) = nullptr;
  int (*GetProgramLogSize)(NvrtcProgram program, size_t* bytes) = nullptr;
  int (*GetProgramLog)(NvrtcProgram program, char* text) = nullptr;
  const char* (*GetErrorString)(int result) = nullptr;

  SharedObject library;
  int major = 0;
  int minor = 0;

  // `path` is that of a libnvrtc.so; empty: the one that the process has loaded or the linker finds, of CUDA 13 or 12.
  // Says which package is missing.
  static Status Open(const std::string& path, NvrtcApi* api);

  // SE_OK for NVRTC_SUCCESS; else `what`, and NVRTC's words for `result`. Out of memory is SE_NO_MEMORY.
  Status Check(int result, const std::string& what) const;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_NVRTC_API_H_
