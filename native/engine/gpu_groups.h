// Makes the group of GPUs that ranks have decided on, with what the host's connections have to carry for it.
#ifndef SPARK_ESTIMATOR_ENGINE_GPU_GROUPS_H_
#define SPARK_ESTIMATOR_ENGINE_GPU_GROUPS_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "gpu/device.h"
#include "gpu/device_kernels.h"
#include "gpu/gpu_group.h"
#include "gpu/nccl_api.h"

namespace spark_estimator {

// What all kinds of groups are told.
struct GpuGroupOptions {
  int rank = 0;
  int size = 1;
  std::shared_ptr<GpuDevice> device;
  Seconds deadline{60};               // for each wait of the CPU
  Seconds farewell{2};                // for leaving
  std::function<Status()> abandoned;  // other than SE_OK: stop waiting, for this reason
  // The ranks' allgather on the host: all[i] becomes rank i's `bytes` bytes; 0 bytes: a barrier.
  std::function<Status(const void* mine, size_t bytes, void* all)> exchange;
};

// Rank 0 makes what NCCL's communicators find each other by, and all get it. Only where NCCL has been decided on: from
// then on it listens for connections. Where rank 0 cannot make it, all ranks get the error that says so.
Status InviteToNccl(const NcclApi& nccl, const GpuGroupOptions& options, NcclUniqueId* id);
// `nccl` and the device's CUDA must outlive the group.
Status MakeNcclGroup(const NcclApi& nccl, const NcclUniqueId& id, const GpuGroupOptions& options,
                     std::unique_ptr<GpuGroup>* group);

// Fails on all ranks or on none, unless a peer is lost. `kernels` must outlive the group.
Status MakeSharedGroup(DeviceKernels& kernels, const GpuGroupOptions& options, std::unique_ptr<GpuGroup>* group);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_GPU_GROUPS_H_
