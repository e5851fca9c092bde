#include "gpu/driver_api.h"

#include <utility>

namespace spark_estimator {
namespace {

constexpr int kDriverOutOfMemory = 2;

Status ResolveAll(DriverApi* api) {
  Status status;
  const auto find = [&](const char* symbol, auto** function) {
    if (status.ok()) status = api->library.Resolve(symbol, function);
  };
  find("cuInit", &api->Init);
  find("cuDeviceGet", &api->DeviceGet);
  find("cuGetErrorName", &api->GetErrorName);
  find("cuGetErrorString", &api->GetErrorString);
  if (!status.ok()) return status;
  // Of 11.4 and newer; the older one does not know the slices of a GPU.
  if (api->library.Resolve("cuDeviceGetUuid_v2", &api->DeviceGetUuid).ok()) return Status::Ok();
  return api->library.Resolve("cuDeviceGetUuid", &api->DeviceGetUuid);
}

}  // namespace

Status DriverApi::Open(const std::string& path, DriverApi* api) {
  DriverApi opened;
  // By its name alone: the driver's library belongs to the machine, and each distribution and each container runtime
  // has it in another folder, which only the linker's cache knows. It gets no tensors, keys or addresses of peers from
  // here: it is asked for the UUID of a GPU. The CUDA runtime opens it by the same name.
  Status status = SharedObject::Open(path.empty() ? "libcuda.so.1" : path, &opened.library);
  if (status.ok()) status = ResolveAll(&opened);
  if (status.ok()) status = opened.Check(opened.Init(0), "cuInit of " + opened.library.path());
  if (!status.ok()) {
    return Status(status.code(), "no CUDA driver: " + status.message() +
                                     "; it comes with the NVIDIA driver (525 or newer, of CUDA 12) of the machine, not "
                                     "with a Python package; a container gets it by docker run --gpus all");
  }
  *api = std::move(opened);
  return Status::Ok();
}

Status DriverApi::Check(int code, const std::string& what) const {
  if (code == kDriverSuccess) return Status::Ok();
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(code, &name) != kDriverSuccess || name == nullptr) name = "of no name";
  if (GetErrorString(code, &text) != kDriverSuccess || text == nullptr)
    text = "an error that this driver does not know";
  return Status(code == kDriverOutOfMemory ? SE_NO_MEMORY : SE_SYSTEM_ERROR,
                what + ": " + text + " (" + name + ", CUDA driver error " + std::to_string(code) + ")");
}

Status DeviceUuid(const DriverApi& driver, int device, std::string* uuid) {
  int handle = 0;
  CudaUuid value;
  const std::string what = "asking for the UUID of device " + std::to_string(device);
  SE_RETURN_IF_ERROR(driver.Check(driver.DeviceGet(&handle, device), what));
  SE_RETURN_IF_ERROR(driver.Check(driver.DeviceGetUuid(&value, handle), what));
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < value.bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[value.bytes[i] >> 4];
    text += kDigits[value.bytes[i] & 15];
  }
  *uuid = text;
  return Status::Ok();
}

}  // namespace spark_estimator
