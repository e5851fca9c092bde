#include <span>

#include "gpu/shared_gpu_plan.h"

namespace spark_estimator {
namespace {

// As many as keep a large GPU's memory busy; a thread that finds more to do does it in a loop.
constexpr size_t kMostBlocks = 512;

}  // namespace

Status SharedGpuGroup::Chunks::Run() {
  const size_t slot = group_.options_.slot_bytes;
  size_t chunks = (plan_.bytes + slot - 1) / slot;
  if (plan_.meets) chunks = std::max(chunks, size_t{1});
  first_ = group_.chunks_done_;
  // So far ahead that a slot which is filled has been read two chunks before the one that is being read.
  constexpr size_t kAhead = kSlots - 1;
  for (size_t chunk = 0; chunk < std::min(chunks, kAhead); ++chunk) SE_RETURN_IF_ERROR(Fill(chunk));
  SE_RETURN_IF_ERROR(Copy(plan_.at_home));
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    SE_RETURN_IF_ERROR(group_.Healthy());
    SE_RETURN_IF_ERROR(Take(chunk));
    if (chunk + kAhead < chunks) SE_RETURN_IF_ERROR(Fill(chunk + kAhead));
  }
  group_.chunks_done_ += chunks;
  return Status::Ok();
}

Status SharedGpuGroup::Chunks::Fill(size_t chunk) {
  const uint64_t number = first_ + chunk;
  if (number >= kSlots) SE_RETURN_IF_ERROR(Await(ExchangeBuffer::kRead, number + 1 - kSlots));
  auto* slot = static_cast<uint8_t*>(group_.buffer_.Slot(group_.options_.rank, number));
  std::vector<device::CopyPiece> pieces;
  plan_.given.ForEachIn(chunk, group_.options_.slot_bytes, [&](size_t offset, const uint8_t* memory, size_t bytes) {
    pieces.push_back({memory, slot + offset, bytes});
  });
  SE_RETURN_IF_ERROR(Copy(pieces));
  return Tell(ExchangeBuffer::kFilled, number + 1);
}

Status SharedGpuGroup::Chunks::Take(size_t chunk) {
  const uint64_t number = first_ + chunk;
  SE_RETURN_IF_ERROR(Await(ExchangeBuffer::kFilled, number + 1));
  std::vector<device::CopyPiece> pieces;
  for (int rank = 0; rank < group_.options_.size; ++rank) {
    const auto* slot = static_cast<const uint8_t*>(group_.buffer_.Slot(rank, number));
    plan_.taken[static_cast<size_t>(rank)].ForEachIn(chunk, group_.options_.slot_bytes,
                                                     [&](size_t offset, uint8_t* memory, size_t bytes) {
                                                       if (memory != nullptr)
                                                         pieces.push_back({slot + offset, memory, bytes});
                                                     });
  }
  SE_RETURN_IF_ERROR(Copy(pieces));
  SE_RETURN_IF_ERROR(ReduceChunk(chunk));
  return Tell(ExchangeBuffer::kRead, number + 1);
}

Status SharedGpuGroup::Chunks::Await(ExchangeBuffer::Progress progress, uint64_t chunks) {
  const int rank = group_.options_.rank;
  const DriverApi& driver = group_.kernels_.driver();
  for (int other = 0; other < group_.options_.size; ++other) {
    if (other == rank) continue;
    const auto address = reinterpret_cast<CudaAddress>(group_.buffer_.Counter(rank, other, progress));
    SE_RETURN_IF_ERROR(
        driver.Check(driver.StreamWaitValue64(group_.stream_, address, chunks, kDriverWaitGreaterOrEqual),
                     "letting the stream wait for rank " + std::to_string(other)));
  }
  return Status::Ok();
}

Status SharedGpuGroup::Chunks::Tell(ExchangeBuffer::Progress progress, uint64_t chunks) {
  if (group_.alone()) return Status::Ok();
  const int rank = group_.options_.rank;
  device::TellArguments arguments{};
  for (int other = 0; other < group_.options_.size; ++other) {
    if (other != rank) arguments.counters[arguments.num_counters++] = group_.buffer_.Counter(other, rank, progress);
  }
  arguments.value = chunks;
  arguments.broken = group_.buffer_.broken();
  return Launch(group_.tell_, 1, 1, &arguments);
}

Status SharedGpuGroup::Chunks::Copy(const std::vector<device::CopyPiece>& pieces) {
  for (size_t done = 0; done < pieces.size(); done += device::kMostPieces) {
    const size_t count = std::min(pieces.size() - done, size_t{device::kMostPieces});
    device::CopyArguments arguments{};
    size_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      arguments.pieces[i] = pieces[done + i];
      most = std::max(most, static_cast<size_t>(pieces[done + i].bytes));
    }
    arguments.broken = group_.buffer_.broken();
    SE_RETURN_IF_ERROR(Launch(group_.copy_, most / device::kPacketBytes + 1, count, &arguments));
  }
  return Status::Ok();
}

Status SharedGpuGroup::Chunks::ReduceChunk(size_t chunk) {
  std::vector<device::ReducePiece> pieces;
  plan_.reduced.ForEachIn(chunk, group_.options_.slot_bytes, [&](size_t offset, uint8_t* memory, size_t bytes) {
    if (memory != nullptr) pieces.push_back({offset, memory, bytes / plan_.element_bytes});
  });
  if (pieces.empty()) return Status::Ok();
  device::ReduceArguments arguments = plan_.numbers;
  for (int rank = 0; rank < group_.options_.size; ++rank) {
    arguments.sources[rank] = group_.buffer_.Slot(rank, first_ + chunk);
  }
  arguments.num_sources = group_.options_.size;
  arguments.broken = group_.buffer_.broken();
  for (size_t done = 0; done < pieces.size(); done += device::kMostPieces) {
    const size_t count = std::min(pieces.size() - done, size_t{device::kMostPieces});
    size_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      arguments.pieces[i] = pieces[done + i];
      most = std::max(most, static_cast<size_t>(pieces[done + i].count) * plan_.element_bytes);
    }
    SE_RETURN_IF_ERROR(Launch(plan_.reduce, most / device::kPacketBytes + 1, count, &arguments));
  }
  return Status::Ok();
}

template <typename Arguments>
Status SharedGpuGroup::Chunks::Launch(CudaFunction kernel, size_t packets, size_t pieces, Arguments* arguments) {
  const DriverApi& driver = group_.kernels_.driver();
  const size_t blocks = std::min((packets + device::kThreadsInBlock - 1) / device::kThreadsInBlock, kMostBlocks);
  void* pointers[] = {arguments};
  return driver.Check(driver.LaunchKernel(kernel, static_cast<unsigned int>(blocks), static_cast<unsigned int>(pieces),
                                          1, device::kThreadsInBlock, 1, 1, 0, group_.stream_, pointers, nullptr),
                      "launching a kernel");
}

}  // namespace spark_estimator
