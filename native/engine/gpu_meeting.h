// What ranks tell one another about their GPUs, and the way that all of them conclude from it.
#ifndef SPARK_ESTIMATOR_ENGINE_GPU_MEETING_H_
#define SPARK_ESTIMATOR_ENGINE_GPU_MEETING_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "gpu/device.h"
#include "gpu/kernel_store.h"
#include "gpu/nccl_api.h"

namespace spark_estimator {

// Paths; empty: what the process has loaded, else what the linker finds.
struct GpuLibraries {
  std::string cuda;
  std::string nccl;
  std::string nvrtc;
};

enum class GpuWay {
  kOpen,   // not agreed on yet
  kAlone,  // one rank
  kNccl,   // see gpu_executor.h
  kShared,
  kStaged,
};

// One rank's account of itself, as it travels: all ranks run the same build.
struct GpuFacts {
  static constexpr size_t kTextBytes = 320;
  using Text = std::array<char, kTextBytes>;  // ends in a NUL

  int32_t visible = 0;           // how many GPUs its process sees
  int32_t device = -1;           // -1: it has joined, and shown none
  int32_t ranks_on_host = 0;     // of the job; 0: not known
  int32_t operations = 0;        // se_gpu_operations that it was told to use
  int32_t nccl_version = 0;      // 0: it cannot use NCCL
  int32_t can_share = 0;         // 1: it can pass device memory to other processes
  std::array<char, 64> gpu{};    // the same for two ranks when theirs is the same GPU; ends in a NUL
  std::array<char, 64> board{};  // the same when theirs are slices of one GPU; may be empty; ends in a NUL
  Text nccl_trouble{};
  Text share_trouble{};
};
static_assert(std::is_trivially_copyable_v<GpuFacts>);

// What this rank has, but for sharing. `device` is null for one that has joined. Opens NCCL into `nccl` if it is there
// and there are ranks to talk to.
GpuFacts LookAtGpu(const std::shared_ptr<GpuDevice>& device, const GpuLibraries& libraries, int size,
                   KernelStore& store, NcclApi* nccl);

// Whether it is worth finding out if the ranks can meet on one GPU; the same on all of them.
bool MayShare(const std::vector<GpuFacts>& facts);
// Finds that out as far as this rank goes, and gives the kernels where it can.
void LookAtSharing(const GpuDevice& device, const GpuLibraries& libraries, int size, KernelStore& store,
                   GpuFacts* facts, DeviceKernels** kernels);

struct GpuDecision {
  GpuWay way = GpuWay::kStaged;
  std::string text;  // for people: which way, and why not a faster one
};

// Pure: the same on all ranks. An error when the ranks were told different things, or a way was demanded that they
// cannot go, or is not gone by mistake; it names one of them.
// `names`: what to call the ranks.
Status Decide(const std::vector<GpuFacts>& facts, const std::vector<std::string>& names, GpuDecision* decision);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_GPU_MEETING_H_
