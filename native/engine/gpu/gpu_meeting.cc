#include "engine/gpu/gpu_meeting.h"

#include <algorithm>
#include <utility>

#include "gpu/nccl_group.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace {

// How rank 0 answers when it is asked for NCCL's id. As it is sent: all ranks run the same build.
struct NcclAnswer {
  NcclUniqueId id;
  int32_t code = SE_OK;
  std::array<char, 480> trouble{};  // ends in a NUL
};
static_assert(std::is_trivially_copyable_v<NcclAnswer>);

template <size_t kBytes>
void Put(std::string_view text, std::array<char, kBytes>* place) {
  const size_t bytes = std::min(text.size(), kBytes - 1);
  std::copy_n(text.data(), bytes, place->data());
  (*place)[bytes] = '\0';
}

template <size_t kBytes>
std::string Get(const std::array<char, kBytes>& place) {
  return std::string(place.data(), std::find(place.begin(), place.end(), '\0'));
}

// Why the ranks cannot use NCCL together; empty when they can.
std::string NcclTrouble(const std::vector<GpuFacts>& facts, const std::vector<std::string>& names) {
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (facts[rank].nccl_version == 0) return names[rank] + " has no NCCL: " + Get(facts[rank].nccl_trouble);
  }
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      const std::string pair = names[other] + " and " + names[rank];
      if (facts[rank].gpu == facts[other].gpu) {
        return pair + " share one GPU (" + Get(facts[rank].gpu) + "), which NCCL does not do";
      }
      if (facts[rank].board[0] != '\0' && facts[rank].board == facts[other].board) {
        return pair + " have parts (MIG) of one GPU (" + Get(facts[rank].board) + "), which NCCL takes for one";
      }
    }
  }
  return "";
}

// Settings of the ranks that contradict each other; empty: none.
std::string Contradiction(const std::vector<GpuFacts>& facts, const std::vector<std::string>& names) {
  constexpr std::array kNames{"auto", "nccl", "staged"};
  const auto name = [&](size_t rank) { return std::string(kNames[static_cast<size_t>(facts[rank].operations)]); };
  for (size_t rank = 1; rank < facts.size(); ++rank) {
    if (facts[rank].operations == facts[0].operations) continue;
    return "HOROVOD_GPU_OPERATIONS is " + name(0) + " on " + names[0] + " and " + name(rank) + " on " + names[rank] +
           ": give all ranks the same";
  }
  return "";
}

// Whether each rank of this one's host could have a separate GPU.
bool CouldBeAlone(const GpuFacts& facts) { return facts.visible > 1 && facts.ranks_on_host <= facts.visible; }

// Ranks that could each have a separate GPU but use the same one, as all do that use the default device; empty: none.
std::string Carelessness(const std::vector<GpuFacts>& facts, const std::vector<std::string>& names) {
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (facts[rank].gpu != facts[other].gpu || !CouldBeAlone(facts[rank]) || !CouldBeAlone(facts[other])) continue;
      return names[other] + " and " + names[rank] + " use the same GPU (" + Get(facts[rank].gpu) +
             "), and each of them sees " + std::to_string(facts[rank].visible) +
             ": call torch.cuda.set_device(hvd.local_rank()) before the first tensor is put on one. If they are to "
             "share it, set HOROVOD_GPU_OPERATIONS=staged";
    }
  }
  return "";
}

}  // namespace

GpuFacts LookAtGpu(const std::shared_ptr<GpuDevice>& device, const GpuLibraries& libraries, int size, NcclApi* nccl) {
  GpuFacts facts;
  if (!device) return facts;
  facts.device = device->number();
  facts.visible = device->visible();
  Put(device->Identity(), &facts.gpu);
  Put(device->Board(), &facts.board);
  if (size == 1) return facts;
  const Status opened = NcclApi::Open(libraries.nccl, nccl);
  if (opened.ok()) {
    facts.nccl_version = nccl->version;
  } else {
    Put(opened.message(), &facts.nccl_trouble);
  }
  return facts;
}

Status Decide(const std::vector<GpuFacts>& facts, const std::vector<std::string>& names, GpuDecision* decision) {
  const std::string contradiction = Contradiction(facts, names);
  if (!contradiction.empty()) return Status(SE_SYSTEM_ERROR, contradiction);
  const int32_t wanted = facts[0].operations;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (facts[rank].device >= 0) continue;
    *decision = {GpuWay::kOpen,
                 "GPU tensors go through host memory, as " + names[rank] + " has joined and has shown no GPU"};
    return Status::Ok();
  }
  if (facts.size() == 1) {
    *decision = {GpuWay::kAlone, "GPU tensors stay on the GPU of the only rank"};
    return Status::Ok();
  }
  if (wanted == SE_GPU_STAGED) {
    *decision = {GpuWay::kStaged, "GPU tensors go through pinned host memory, as was asked for"};
    return Status::Ok();
  }
  if (wanted == SE_GPU_AUTO) {
    const std::string careless = Carelessness(facts, names);
    if (!careless.empty()) return Status(SE_SYSTEM_ERROR, careless);
  }
  const std::string no_nccl = NcclTrouble(facts, names);
  if (no_nccl.empty()) {
    *decision = {GpuWay::kNccl, "GPU tensors go through NCCL " + NcclVersionName(facts[0].nccl_version)};
    return Status::Ok();
  }
  if (wanted == SE_GPU_NCCL) {
    return Status(SE_SYSTEM_ERROR, "NCCL was asked for, and cannot be used: " + no_nccl +
                                       "; mend that, or leave the way to us (HOROVOD_GPU_OPERATIONS=auto)");
  }
  *decision = {GpuWay::kStaged, "GPU tensors go through pinned host memory: " + no_nccl};
  return Status::Ok();
}

Status ShareNcclId(const NcclApi& nccl, const GpuDevice& device, int rank, int size, const HostExchange& exchange,
                   NcclUniqueId* id) {
  NcclAnswer answer;
  if (rank == 0) {
    const CudaDeviceScope scope(device.cuda(), device.number());
    const Status made = NcclGroup::MakeId(nccl, &answer.id);
    answer.code = made.code();
    Put(made.message(), &answer.trouble);
  }
  std::vector<NcclAnswer> answers(static_cast<size_t>(size));
  SE_RETURN_IF_ERROR(exchange(&answer, sizeof(answer), answers.data()));
  *id = answers[0].id;
  if (answers[0].code == SE_OK) return Status::Ok();
  return Status(static_cast<se_status>(answers[0].code), Get(answers[0].trouble));
}

}  // namespace spark_estimator
