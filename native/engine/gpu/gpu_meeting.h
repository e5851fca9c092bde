// The facts about GPUs that ranks exchange, and the backend that all of them choose from it.
#ifndef SPARK_ESTIMATOR_ENGINE_GPU_MEETING_H_
#define SPARK_ESTIMATOR_ENGINE_GPU_MEETING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "gpu/device.h"
#include "gpu/nccl_api.h"

namespace spark_estimator {

// Sends every rank's `bytes` bytes to every rank, through the host: `all` receives [size][bytes]. All ranks call it.
// With no bytes it is a barrier.
using HostExchange = std::function<Status(const void* mine, size_t bytes, void* all)>;

// Paths; empty: the copy that the process has loaded, else the one that the linker finds.
struct GpuLibraries {
  std::string cuda;
  std::string nccl;
};

enum class GpuWay {
  kOpen,   // not agreed on yet
  kAlone,  // one rank
  kNccl,   // see gpu_executor.h
  kStaged,
};

// One rank's facts, as they are sent: all ranks run the same build.
struct GpuFacts {
  static constexpr size_t kTextBytes = 320;
  using Text = std::array<char, kTextBytes>;  // ends in a NUL

  int32_t visible = 0;           // how many GPUs its process sees
  int32_t device = -1;           // -1: it has joined, and shown none
  int32_t ranks_on_host = 0;     // of the job; 0: not known
  int32_t operations = 0;        // se_gpu_operations of its settings
  int32_t nccl_version = 0;      // 0: it cannot use NCCL
  std::array<char, 64> gpu{};    // the same for two ranks when theirs is the same GPU; ends in a NUL
  std::array<char, 64> board{};  // the same when theirs are slices of one GPU; may be empty; ends in a NUL
  Text nccl_trouble{};
};
static_assert(std::is_trivially_copyable_v<GpuFacts>);

// What this rank has. `device` is null for one that has joined. Opens NCCL into `nccl` if it is there and there are
// ranks to talk to.
GpuFacts LookAtGpu(const std::shared_ptr<GpuDevice>& device, const GpuLibraries& libraries, int size, NcclApi* nccl);

struct GpuDecision {
  GpuWay way = GpuWay::kStaged;
  std::string text;  // for messages: the backend, and why not a faster one
};

// Pure: the same on all ranks. An error if the ranks' settings differ, or if a demanded backend is not available, or
// not used by mistake; it names one of them.
// `names`: what to call the ranks.
Status Decide(const std::vector<GpuFacts>& facts, const std::vector<std::string>& names, GpuDecision* decision);

// Rank 0 makes the id by which NCCL's communicators connect, and all get it. Only after NCCL was chosen: from then on
// it listens for connections. If rank 0 cannot make it, all ranks get the error.
Status ShareNcclId(const NcclApi& nccl, const GpuDevice& device, int rank, int size, const HostExchange& exchange,
                   NcclUniqueId* id);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_GPU_MEETING_H_
