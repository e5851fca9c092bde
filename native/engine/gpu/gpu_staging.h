// Collectives on GPU tensors through pinned host memory: copied there, reduced by the host's algorithms, copied back.
//
// Reductions and broadcasts run in pieces, so that the copy of the next piece from the device, the work on one, and the
// copy back of the last overlap. Where all ranks are on one host, the pieces are in memory that all of them see, and an
// allreduce copies nothing but from and to the devices. The others run as a whole. The CPU waits here for the caller's
// stream, which has to write the tensors first: use this only if there is no other backend.
#ifndef SPARK_ESTIMATOR_ENGINE_GPU_STAGING_H_
#define SPARK_ESTIMATOR_ENGINE_GPU_STAGING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/kept_memory.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/gpu/gpu_meeting.h"
#include "engine/requests/request.h"
#include "gpu/device.h"
#include "transport/arena.h"
#include "transport/liveness.h"
#include "transport/shared_group.h"

namespace spark_estimator {

// The memory for the result of an allgather or alltoall: the tensor's own output if that suffices, else memory that the
// request owns from now on, for work on `stream`. `output` is null for a result without bytes.
Status PlaceOnGpu(GpuDevice& device, Request& request, size_t part, size_t bytes, CudaStream stream, void** output);

class GpuStaging {
 public:
  // All outlive it. `device`: null for a rank that has joined before it used any; it takes part with zeros.
  GpuStaging(std::shared_ptr<GpuDevice> device, Executor* host, Liveness* liveness, int rank, int size);
  // Puts the pieces where all ranks see them, if every rank can. All ranks call it, before the first Run. `shared` is
  // all ranks, and `arena` this one's part of it.
  Status ShareSlots(Arena* arena, SharedGroup* shared, const HostExchange& exchange);
  ~GpuStaging();
  GpuStaging(const GpuStaging&) = delete;
  GpuStaging& operator=(const GpuStaging&) = delete;

  // As Executor::Run. Sets `gpu.done` of the requests, and has seen their `gpu.ready`.
  Status Run(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows);
  bool has_device() const { return device_ != nullptr; }

 private:
  // A part of a tensor.
  struct Piece {
    const void* input;  // null: nothing to copy in
    void* output;       // null: not needed
    size_t bytes;
    bool zeros;  // without an input: it is zeros; else unspecified
  };
  using Chunk = std::vector<Piece>;
  // Host memory that the device copies to and from without the CPU.
  struct Pinned {
    void* data = nullptr;
    size_t bytes = 0;
    bool by_cuda = false;
    bool is_shared = false;  // part of what all ranks see
    GpuMarkPtr busy_until;   // the device still reads it
  };
  // What is done with a chunk in host memory; in place.
  using Work = std::function<Status(void* data, size_t bytes)>;

  Status Start(const std::vector<RequestPtr>& requests);
  Status Allreduce(const std::vector<RequestPtr>& requests, int32_t dtype);
  Status Broadcast(const Request& request);
  Status Whole(Request& request, const std::vector<int64_t>& rows);
  Status Pipeline(const std::vector<Chunk>& chunks, const Work& work);
  Status BringIn(const Chunk& chunk, Pinned& slot, GpuMarkPtr* there);
  Status TakeOut(const Chunk& chunk, Pinned& slot);
  Status RunOnHost(const Signature& like, int32_t dtype, size_t count, void* data);
  void AwaitCopies();
  void UnshareSlots();
  size_t OutputBytes(const Request& request, size_t part, const std::vector<int64_t>& rows) const;
  Status Pin(size_t bytes, Pinned* memory);
  void Unpin(Pinned* memory);
  Status AwaitOnCpu(const GpuMarkPtr& mark);
  static std::vector<Chunk> Cut(const std::vector<Piece>& pieces);

  static constexpr size_t kSlots = 3;
  static constexpr size_t kSlotBytes = size_t{4} << 20;
  // Memory for whole tensors beyond this is freed after use.
  static constexpr size_t kKeptBytes = size_t{64} << 20;

  const std::shared_ptr<GpuDevice> device_;
  Executor* const host_;
  Liveness* const liveness_;
  const int rank_;
  const int size_;
  CudaStream in_ = nullptr;   // device to host
  CudaStream out_ = nullptr;  // host to device
  std::array<Pinned, kSlots> slots_;
  size_t next_slot_ = 0;
  Arena* arena_ = nullptr;    // whose memory the slots are; null: they are allocated one by one
  void* shared_ = nullptr;    // that memory
  std::vector<uint8_t*> of_;  // [size] it, by rank, as this process sees it
  Pinned whole_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_GPU_STAGING_H_
