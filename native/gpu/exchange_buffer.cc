#include "gpu/exchange_buffer.h"

#include <string>
#include <utility>

namespace spark_estimator {

ExchangeBuffer::ExchangeBuffer(const CudaApi& cuda, int rank, int size, int slots, size_t slot_bytes)
    : cuda_(cuda),
      own_(static_cast<size_t>(rank)),
      slots_(static_cast<uint64_t>(slots)),
      slot_bytes_(slot_bytes),
      bases_(static_cast<size_t>(size)) {}

Status ExchangeBuffer::Allocate(CudaStream stream) {
  const size_t needed = kSlotsOffset + slots_ * slot_bytes_;
  const size_t bytes = (needed + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  void* data = nullptr;
  SE_RETURN_IF_ERROR(
      cuda_.Check(cuda_.Malloc(&data, bytes), "allocating " + std::to_string(bytes) + " bytes on the device"));
  bases_[own_] = static_cast<uint8_t*>(data);
  return cuda_.Check(cuda_.MemsetAsync(data, 0, kControlBytes, stream), "clearing the counters");
}

Status ExchangeBuffer::Export(CudaMemoryHandle* handle) const {
  return cuda_.Check(cuda_.IpcGetMemHandle(handle, bases_[own_]), "offering device memory to other processes");
}

Status ExchangeBuffer::Open(int rank, const CudaMemoryHandle& handle) {
  void* data = nullptr;
  SE_RETURN_IF_ERROR(cuda_.Check(cuda_.IpcOpenMemHandle(&data, handle, kCudaIpcMemLazyEnablePeerAccess),
                                 "mapping the device memory of rank " + std::to_string(rank)));
  bases_[static_cast<size_t>(rank)] = static_cast<uint8_t*>(data);
  return Status::Ok();
}

void ExchangeBuffer::CloseOthers() {
  for (size_t rank = 0; rank < bases_.size(); ++rank) {
    if (rank != own_ && bases_[rank] != nullptr) cuda_.IpcCloseMemHandle(std::exchange(bases_[rank], nullptr));
  }
}

void ExchangeBuffer::Free() {
  if (allocated()) cuda_.Free(std::exchange(bases_[own_], nullptr));
}

void* ExchangeBuffer::Slot(int rank, uint64_t chunk) const {
  return bases_[static_cast<size_t>(rank)] + kSlotsOffset + (chunk % slots_) * slot_bytes_;
}

device::Word* ExchangeBuffer::Counter(int owner, int writer, Progress progress) const {
  uint8_t* counters = bases_[static_cast<size_t>(owner)] + kCountersOffset;
  return reinterpret_cast<device::Word*>(counters) + 2 * writer + progress;
}

Status ExchangeBuffer::Break(CudaStream stream) const {
  // As a signed number, for which the waits take it, it is greater than what any chunk will have; and telling raises
  // counters only, so it stays.
  constexpr int kEachByte = 0x7f;
  Status status = cuda_.Check(cuda_.MemsetAsync(bases_[own_], kEachByte, sizeof(device::Word), stream),
                              "telling the kernels that the group is broken");
  if (!status.ok()) return status;
  return cuda_.Check(cuda_.MemsetAsync(bases_[own_] + kCountersOffset, kEachByte, CounterBytes(), stream),
                     "releasing what waits for other ranks");
}

}  // namespace spark_estimator
