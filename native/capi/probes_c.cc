// What there is for GPUs on this machine, for the C ABI.
#include <string>

#include "capi/guarded.h"
#include "gpu/cuda_api.h"
#include "gpu/nccl_api.h"
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

}  // extern "C"
