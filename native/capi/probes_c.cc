// What there is for GPUs on this machine, for the C ABI.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/guarded.h"
#include "gpu/cuda_api.h"
#include "gpu/kernel_store.h"
#include "gpu/nccl_api.h"
#include "gpu/shared_gpu_group.h"
#include "spark_estimator/engine.h"

using namespace spark_estimator;

extern "C" {

int32_t se_cuda_probe(const char* path, int32_t* runtime_version, int32_t* driver_version, int32_t* devices) {
  *runtime_version = *driver_version = *devices = 0;
  return Guarded([&]() -> Status {
    CudaApi cuda;
    SE_RETURN_IF_ERROR(CudaApi::Open(path, &cuda));
    CudaMachine machine;
    const Status status = cuda.Probe(&machine);
    *runtime_version = machine.runtime_version;
    *driver_version = machine.driver_version;
    *devices = machine.devices;
    return status;
  });
}

int32_t se_nccl_probe(const char* path, int32_t* version) {
  *version = 0;
  return Guarded([&]() -> Status {
    NcclApi nccl;
    SE_RETURN_IF_ERROR(NcclApi::Open(path, &nccl));
    *version = nccl.version;
    return Status::Ok();
  });
}

int32_t se_cuda_peer_access(const char* path, int32_t device, int32_t peer, int32_t* can) {
  *can = 0;
  return Guarded([&]() -> Status {
    CudaApi cuda;
    SE_RETURN_IF_ERROR(CudaApi::Open(path, &cuda));
    return cuda.Check(
        cuda.DeviceCanAccessPeer(can, device, peer),
        "asking whether CUDA device " + std::to_string(device) + " reaches device " + std::to_string(peer));
  });
}

int32_t se_gpu_sharing_probe(const char* cuda_path, const char* nvrtc_path, int32_t device) {
  struct Used {
    CudaApi cuda;
    KernelStore store;
  };
  // The device is in use from here on: what it is used by is not closed any more.
  static auto* const used = new std::vector<std::unique_ptr<Used>>;
  return Guarded([&]() -> Status {
    auto made = std::make_unique<Used>();
    SE_RETURN_IF_ERROR(CudaApi::Open(cuda_path, &made->cuda));
    used->push_back(std::move(made));
    Used& now = *used->back();
    DeviceKernels* kernels = nullptr;
    SE_RETURN_IF_ERROR(now.store.Kernels(nvrtc_path, &kernels));
    const DriverApi& driver = kernels->driver();
    SE_RETURN_IF_ERROR(SharedGpuGroup::Usable(now.cuda, driver, device, 2));
    CudaContext context = nullptr;  // retained until the process ends, as the kernels are
    SE_RETURN_IF_ERROR(driver.Check(driver.DevicePrimaryCtxRetain(&context, device), "opening the device"));
    const DriverContextScope scope(driver, context);
    SE_RETURN_IF_ERROR(scope.status());
    CudaFunction sum = nullptr;
    return kernels->Find(device, SE_FLOAT32, DeviceKernels::NameOf(SE_FLOAT32, SE_SUM), &sum);
  });
}

}  // extern "C"
