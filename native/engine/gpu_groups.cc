#include "engine/gpu_groups.h"

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/nccl_group.h"
#include "gpu/shared_gpu_group.h"

namespace spark_estimator {
namespace {

// As it travels: all ranks run the same build.
struct Invitation {
  NcclUniqueId id;
  int32_t code = SE_OK;
  std::array<char, 480> trouble{};  // ends in a NUL
};
static_assert(std::is_trivially_copyable_v<Invitation>);

template <typename Options>
Options Common(const GpuGroupOptions& told) {
  Options options;
  options.rank = told.rank;
  options.size = told.size;
  options.device = told.device->number();
  options.deadline = told.deadline;
  options.farewell = told.farewell;
  options.abandoned = told.abandoned;
  return options;
}

}  // namespace

Status InviteToNccl(const NcclApi& nccl, const GpuGroupOptions& options, NcclUniqueId* id) {
  Invitation mine;
  if (options.rank == 0) {
    const CudaDeviceScope scope(options.device->cuda(), options.device->number());
    const Status made = NcclGroup::MakeId(nccl, &mine.id);
    mine.code = made.code();
    made.message().copy(mine.trouble.data(), mine.trouble.size() - 1);
  }
  std::vector<Invitation> all(static_cast<size_t>(options.size));
  SE_RETURN_IF_ERROR(options.exchange(&mine, sizeof(mine), all.data()));
  *id = all[0].id;
  if (all[0].code == SE_OK) return Status::Ok();
  return Status(static_cast<se_status>(all[0].code), all[0].trouble.data());
}

Status MakeNcclGroup(const NcclApi& nccl, const NcclUniqueId& id, const GpuGroupOptions& options,
                     std::unique_ptr<GpuGroup>* group) {
  auto told = Common<NcclGroup::Options>(options);
  told.id = id;
  std::unique_ptr<NcclGroup> made;
  SE_RETURN_IF_ERROR(NcclGroup::Create(nccl, options.device->cuda(), std::move(told), &made)
                         .Within("making a group of GPUs by NCCL (HOROVOD_GPU_OPERATIONS=staged does without it)"));
  *group = std::move(made);
  return Status::Ok();
}

Status MakeSharedGroup(DeviceKernels& kernels, const GpuGroupOptions& options, std::unique_ptr<GpuGroup>* group) {
  auto told = Common<SharedGpuGroup::Options>(options);
  told.exchange = options.exchange;
  std::unique_ptr<SharedGpuGroup> made;
  SE_RETURN_IF_ERROR(SharedGpuGroup::Create(options.device->cuda(), kernels, std::move(told), &made)
                         .Within("making a group of ranks that share a GPU"));
  *group = std::move(made);
  return Status::Ok();
}

}  // namespace spark_estimator
