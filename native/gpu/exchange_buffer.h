// Device memory that the processes on one GPU map from one another: what each of them puts there for the others, and
// counters by which they tell each other how far they are.
#ifndef SPARK_ESTIMATOR_GPU_EXCHANGE_BUFFER_H_
#define SPARK_ESTIMATOR_GPU_EXCHANGE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "gpu/cuda_api.h"
#include "gpu/device_arguments.h"

namespace spark_estimator {

// This rank's buffer, and the other ranks' as this process sees them. Calls need the device's context as the thread's.
class ExchangeBuffer {
 public:
  // What a counter counts, in chunks.
  enum Progress : int {
    kFilled = 0,  // its writer's slots hold so many
    kRead = 1     // its writer has read so many from everybody's slots
  };

  // For a few numbers of this rank's own; the others do not look at it.
  static constexpr size_t kPrivateBytes = 4096;

  ExchangeBuffer(const CudaApi& cuda, int rank, int size, int slots, size_t slot_bytes);
  // Frees nothing: whether that is allowed is for the ranks to agree on.
  ~ExchangeBuffer() = default;
  ExchangeBuffer(const ExchangeBuffer&) = delete;
  ExchangeBuffer& operator=(const ExchangeBuffer&) = delete;

  // Makes this rank's buffer and clears its counters, on that stream: it must have ended before others may map it.
  Status Allocate(CudaStream stream);
  // For another process's Open.
  Status Export(CudaMemoryHandle* handle) const;
  Status Open(int rank, const CudaMemoryHandle& handle);
  void CloseOthers();
  void Free();

  bool allocated() const { return bases_[own_] != nullptr; }
  void* Slot(int rank, uint64_t chunk) const;
  // In `owner`'s buffer; raised by `writer`.
  device::Word* Counter(int owner, int writer, Progress progress) const;
  // Of this rank's own buffer. Other than 0: its kernels write nothing any more that others could read.
  const device::Word* broken() const { return reinterpret_cast<const device::Word*>(bases_[own_]); }
  void* private_memory() const { return bases_[own_] + kControlBytes; }

  // Says so to this rank's kernels, and then lets everything pass that waits for counters of this buffer. On a stream
  // that waits for nothing.
  Status Break(CudaStream stream) const;

 private:
  static constexpr size_t kCountersOffset = 128;
  static constexpr size_t kControlBytes = 4096;
  static constexpr size_t kSlotsOffset = kControlBytes + kPrivateBytes;
  // Sharing one is sharing the whole block that the driver has taken it from.
  static constexpr size_t kBlockBytes = size_t{2} << 20;
  static_assert(kCountersOffset + 2 * sizeof(device::Word) * device::kMostSources <= kControlBytes);

  size_t CounterBytes() const { return 2 * sizeof(device::Word) * bases_.size(); }

  const CudaApi& cuda_;
  const size_t own_;
  const uint64_t slots_;
  const size_t slot_bytes_;
  std::vector<uint8_t*> bases_;  // by rank
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_EXCHANGE_BUFFER_H_
