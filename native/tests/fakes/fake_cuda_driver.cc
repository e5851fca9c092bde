// A CUDA driver without a GPU, for tests: it knows the devices of the fake runtime by their UUIDs.
//
// Devices differ by their ordinals, in all processes, unless FAKE_CUDA_UUIDS is set, for example to "a,a,b": then
// device 0 and 1 are the same.
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "fake_cuda.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;

std::string NameOf(int ordinal) {
  const char* names = std::getenv("FAKE_CUDA_UUIDS");
  std::istringstream list(names != nullptr ? names : "");
  std::string name;
  for (int device = 0; std::getline(list, name, ','); ++device) {
    if (device == ordinal) return name;
  }
  return "device " + std::to_string(ordinal);
}

}  // namespace

extern "C" {

FAKE_API int cudaGetDeviceCount(int* count);

FAKE_API int cuInit(unsigned int flags) { return flags == 0 ? kSuccess : kInvalidValue; }

FAKE_API int cuDeviceGet(int* device, int ordinal) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != kSuccess || ordinal < 0 || ordinal >= count) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

FAKE_API int cuDeviceGetUuid_v2(char* uuid, int ordinal) {
  std::string name = NameOf(ordinal);
  name.resize(16, '\0');
  std::memcpy(uuid, name.data(), 16);
  return kSuccess;
}

FAKE_API int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return kSuccess;
}

FAKE_API int cuGetErrorString(int, const char** text) {
  *text = "a fake error of the driver";
  return kSuccess;
}

}  // extern "C"
