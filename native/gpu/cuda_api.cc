#include "gpu/cuda_api.h"

#include <utility>

namespace spark_estimator {
namespace {

constexpr const char* kPackages =
    "install the package that belongs to your framework's CUDA (pip install nvidia-cuda-runtime for CUDA 13, "
    "nvidia-cuda-runtime-cu12 for CUDA 12), or give the path of a libcudart.so";

Status ResolveAll(CudaApi* api) {
  Status status;
  const auto find = [&](const char* symbol, auto** function) {
    if (status.ok()) status = api->library.Resolve(symbol, function);
  };
  find("cudaRuntimeGetVersion", &api->RuntimeGetVersion);
  find("cudaDriverGetVersion", &api->DriverGetVersion);
  find("cudaGetDeviceCount", &api->GetDeviceCount);
  find("cudaSetDevice", &api->SetDevice);
  find("cudaGetDevice", &api->GetDevice);
  find("cudaDeviceGetPCIBusId", &api->DeviceGetPCIBusId);
  find("cudaDeviceCanAccessPeer", &api->DeviceCanAccessPeer);
  find("cudaDeviceGetStreamPriorityRange", &api->DeviceGetStreamPriorityRange);
  find("cudaStreamCreateWithPriority", &api->StreamCreateWithPriority);
  find("cudaStreamDestroy", &api->StreamDestroy);
  find("cudaStreamWaitEvent", &api->StreamWaitEvent);
  find("cudaStreamQuery", &api->StreamQuery);
  find("cudaStreamIsCapturing", &api->StreamIsCapturing);
  find("cudaThreadExchangeStreamCaptureMode", &api->ThreadExchangeStreamCaptureMode);
  find("cudaEventCreateWithFlags", &api->EventCreateWithFlags);
  find("cudaEventRecord", &api->EventRecord);
  find("cudaEventQuery", &api->EventQuery);
  find("cudaEventSynchronize", &api->EventSynchronize);
  find("cudaEventDestroy", &api->EventDestroy);
  find("cudaMalloc", &api->Malloc);
  find("cudaFree", &api->Free);
  find("cudaHostAlloc", &api->HostAlloc);
  find("cudaFreeHost", &api->FreeHost);
  find("cudaHostRegister", &api->HostRegister);
  find("cudaHostUnregister", &api->HostUnregister);
  find("cudaMemcpyAsync", &api->MemcpyAsync);
  find("cudaMemsetAsync", &api->MemsetAsync);
  find("cudaGetErrorName", &api->GetErrorName);
  find("cudaGetErrorString", &api->GetErrorString);
  find("cudaGetLastError", &api->GetLastError);
  return status;
}

}  // namespace

std::string CudaVersionName(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Status CudaApi::Open(const std::string& path, CudaApi* api) {
  CudaApi opened;
  Status status = SharedObject::Open(path, &opened.library);
  if (status.ok()) status = ResolveAll(&opened);
  if (status.ok()) status = opened.Check(opened.RuntimeGetVersion(&opened.version), "cudaRuntimeGetVersion");
  if (!status.ok()) return Status(status.code(), "no CUDA runtime: " + status.message() + "; " + kPackages);
  if (opened.version < kMinimumVersion) {
    return Status(SE_SYSTEM_ERROR, "the CUDA runtime in " + opened.library.path() + " is " +
                                       CudaVersionName(opened.version) + ", needed is " +
                                       CudaVersionName(kMinimumVersion) + " or newer; " + kPackages);
  }
  *api = std::move(opened);
  return Status::Ok();
}

Status CudaApi::Probe(CudaMachine* machine) const {
  machine->runtime_version = version;
  SE_RETURN_IF_ERROR(Check(DriverGetVersion(&machine->driver_version), "asking for the driver's version"));
  if (machine->driver_version == 0) {
    return Status(SE_SYSTEM_ERROR,
                  "no NVIDIA driver was found (libcuda.so.1): install one on this machine, or start the container with "
                  "its GPUs (docker run --gpus all)");
  }
  const int code = GetDeviceCount(&machine->devices);
  if (code != kCudaSuccess) {
    machine->devices = 0;
    GetLastError();  // it is returned here
  }
  switch (code) {
    case kCudaSuccess:
      if (machine->devices > 0) return Status::Ok();
      [[fallthrough]];
    case kCudaNoDevice:
      return Status(SE_SYSTEM_ERROR,
                    "there is an NVIDIA driver (for CUDA up to " + CudaVersionName(machine->driver_version) +
                        ") but this process sees no GPU: look at CUDA_VISIBLE_DEVICES, which hides all of them when it "
                        "is empty or names one that does not exist, and at what nvidia-smi lists");
    case kCudaInsufficientDriver:
      return Status(SE_SYSTEM_ERROR, "the NVIDIA driver is too old: it knows CUDA up to " +
                                         CudaVersionName(machine->driver_version) + ", and the runtime in " +
                                         library.path() + " is " + CudaVersionName(version) +
                                         "; install a newer driver, or a framework for an older CUDA");
    case kCudaStubLibrary:
      return Status(SE_SYSTEM_ERROR,
                    "the libcuda.so.1 that was found is the toolkit's stub, which is for linking only: take its folder "
                    "out of LD_LIBRARY_PATH");
    case kCudaSystemDriverMismatch:
      return Status(SE_SYSTEM_ERROR,
                    "libcuda.so.1 and the NVIDIA kernel module are of different versions: restart the machine after "
                    "the driver's update, or take the container's own libcuda.so.1 away");
    case kCudaSystemNotReady:
      return Status(SE_SYSTEM_ERROR,
                    "the GPUs are not ready yet: on machines with NVSwitch the service nvidia-fabricmanager must run");
    default:
      return Check(code, "asking for the number of devices");
  }
}

int CudaApi::QueryEvent(CudaEvent event) const {
  const CudaCaptureScope scope(*this);
  const int code = EventQuery(event);
  if (code == kCudaNotReady) GetLastError();
  return code;
}

int CudaApi::QueryStream(CudaStream stream) const {
  const CudaCaptureScope scope(*this);
  const int code = StreamQuery(stream);
  if (code == kCudaNotReady) GetLastError();
  return code;
}

Status CudaApi::Check(int code, const std::string& what) const {
  if (code == kCudaSuccess) return Status::Ok();
  GetLastError();  // it is returned here
  return Status(
      code == kCudaMemoryAllocation ? SE_NO_MEMORY : SE_SYSTEM_ERROR,
      what + ": " + GetErrorString(code) + " (" + GetErrorName(code) + ", CUDA error " + std::to_string(code) + ")");
}

CudaDeviceScope::CudaDeviceScope(const CudaApi& cuda, int device) : cuda_(cuda), unharmed_(cuda) {
  int current = -1;
  status_ = cuda.Check(cuda.GetDevice(&current), "asking for the current device");
  if (!status_.ok() || current == device) return;
  status_ = cuda.Check(cuda.SetDevice(device), "choosing device " + std::to_string(device));
  if (status_.ok()) before_ = current;
}

CudaDeviceScope::~CudaDeviceScope() {
  if (before_ >= 0) cuda_.SetDevice(before_);
}

Status CheckNotCapturing(const CudaApi& cuda, CudaStream stream) {
  int status = kCudaStreamCaptureStatusNone;
  SE_RETURN_IF_ERROR(cuda.Check(cuda.StreamIsCapturing(stream, &status), "asking whether the stream is captured"));
  if (status == kCudaStreamCaptureStatusNone) return Status::Ok();
  return Status(SE_INVALID_ARGUMENT,
                "the stream is being captured into a CUDA graph: a collective is agreed on by the ranks each time that "
                "it runs, so it cannot be part of a graph; call it outside of the capture");
}

}  // namespace spark_estimator
