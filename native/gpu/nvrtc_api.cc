#include "gpu/nvrtc_api.h"

#include <utility>

namespace spark_estimator {
namespace {

constexpr const char* kPackages =
    "install the package that belongs to your framework's CUDA (pip install nvidia-cuda-nvrtc for CUDA 13, "
    "nvidia-cuda-nvrtc-cu12 for CUDA 12), or give the path of a libnvrtc.so";

Status OpenNewest(SharedObject* library) {
  const Status newest = SharedObject::Open("libnvrtc.so.13", library);
  if (newest.ok()) return newest;
  const Status older = SharedObject::Open("libnvrtc.so.12", library);
  if (older.ok()) return older;
  return Status(SE_SYSTEM_ERROR, newest.message() + "; " + older.message());
}

Status ResolveAll(NvrtcApi* api) {
  Status status;
  const auto find = [&](const char* symbol, auto** function) {
    if (status.ok()) status = api->library.Resolve(symbol, function);
  };
  find("nvrtcVersion", &api->Version);
  find("nvrtcGetNumSupportedArchs", &api->GetNumSupportedArchs);
  find("nvrtcGetSupportedArchs", &api->GetSupportedArchs);
  find("nvrtcCreateProgram", &api->CreateProgram);
  find("nvrtcDestroyProgram", &api->DestroyProgram);
  find("nvrtcCompileProgram", &api->CompileProgram);
  find("nvrtcGetPTXSize", &api->GetPTXSize);
  find("nvrtcGetPTX", &api->GetPTX);
  find("nvrtcGetCUBINSize", &api->GetCUBINSize);
  find("nvrtcGetCUBIN", &api->GetCUBIN);
  find("nvrtcGetProgramLogSize", &api->GetProgramLogSize);
  find("nvrtcGetProgramLog", &api->GetProgramLog);
  find("nvrtcGetErrorString", &api->GetErrorString);
  return status;
}

}  // namespace

Status NvrtcApi::Open(const std::string& path, NvrtcApi* api) {
  NvrtcApi found;
  Status status = path.empty() ? OpenNewest(&found.library) : SharedObject::Open(path, &found.library);
  if (status.ok()) status = ResolveAll(&found);
  if (status.ok()) status = found.Check(found.Version(&found.major, &found.minor), "nvrtcVersion");
  if (!status.ok()) return Status(status.code(), "no NVRTC: " + status.message() + "; " + kPackages);
  if (found.major < kMinimumMajor) {
    return Status(SE_SYSTEM_ERROR, "the NVRTC in " + found.library.path() + " is " + std::to_string(found.major) + "." +
                                       std::to_string(found.minor) + ", needed is " + std::to_string(kMinimumMajor) +
                                       ".0 or newer; " + kPackages);
  }
  *api = std::move(found);
  return Status::Ok();
}

Status NvrtcApi::Check(int result, const std::string& what) const {
  if (result == kNvrtcSuccess) return Status::Ok();
  return Status(result == kNvrtcOutOfMemory ? SE_NO_MEMORY : SE_SYSTEM_ERROR,
                what + ": " + GetErrorString(result) + " (NVRTC result " + std::to_string(result) + ")");
}

}  // namespace spark_estimator
