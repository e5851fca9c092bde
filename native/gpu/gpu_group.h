// Collectives on GPU tensors among one group of ranks: what each way to do them promises.
//
// A group has one stream. Its operations run on that stream, in the order in which they are called, which must be the
// same on all ranks. An operation is a chain on the device:
//
//   the caller's stream:   ... writes inputs | record `ready`              wait `done` | reads outputs ...
//   the group's stream:                            wait `ready` | work | record `done`
//
// The CPU hands it over; it waits for other ranks where the way needs that, and never for a caller's stream. So calls
// of one group come from one thread, or one after the other, and no rank waits in another group's call meanwhile.
//
// What fails how. A call that makes no sense (an op that is not offered, a root that does not exist) returns
// SE_INVALID_ARGUMENT and leaves the group as it was. Any other failure is the group's: it is broken for good, nothing
// of it waits for peers any more, and the events of what was under way come, with nonsense in the outputs. So whoever
// has seen `done` asks AsyncError() before believing the data. The first failure is kept, and every later call returns
// it.
#ifndef SPARK_ESTIMATOR_GPU_GPU_GROUP_H_
#define SPARK_ESTIMATOR_GPU_GPU_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "gpu/cuda_api.h"

namespace spark_estimator {

// What an allreduce or reducescatter does to its elements, in the words of the C ABI.
struct Reduction {
  int32_t dtype = 0;
  int32_t reduce_op = 0;
  double prescale = 1;
  double postscale = 1;
};

// One tensor of an allreduce.
struct ReduceTensor {
  const void* input = nullptr;  // null: this rank has joined and takes part with zeros
  void* output = nullptr;       // may be the input; null with a null input: nobody wants the result here
  size_t count = 0;             // elements, the same on all ranks
};

// One tensor of a broadcast.
struct BroadcastTensor {
  const void* input = nullptr;  // read on the root; may be the output
  void* output = nullptr;
  size_t bytes = 0;
};

// One tensor of an allgather.
struct GatherTensor {
  const void* input = nullptr;  // bytes_of[rank]; may be where it belongs in the output
  void* output = nullptr;       // bytes_of[0] of rank 0, then those of rank 1, ...
  std::span<const size_t> bytes_of;
};

// One tensor of a reducescatter.
struct ScatterTensor {
  const void* input = nullptr;  // count_of[0] elements for rank 0, then those for rank 1, ...; null: zeros
  void* output = nullptr;       // count_of[rank] elements; may be this rank's part of the input; null as above
  std::span<const size_t> count_of;
};

class GpuGroup {
 public:
  virtual ~GpuGroup() = default;
  GpuGroup() = default;
  GpuGroup(const GpuGroup&) = delete;
  GpuGroup& operator=(const GpuGroup&) = delete;

  // Whether the group can do this with the result that the engine's own algorithms promise; the same on all ranks.
  // `reduction` is looked at for allreduce and reducescatter; the others move bytes of any type.
  virtual bool Offers(int32_t op, const Reduction& reduction) const = 0;
  // For the flight recorder: "NCCL". Static storage.
  virtual const char* name() const = 0;

  // `ready`: an event that the caller's stream has recorded behind the inputs; null: they are there. `done`: recorded
  // when the outputs are there; null: nobody asks. `ready` may be recorded anew as soon as the call returns, and `done`
  // as soon as whoever looks at it has been told to wait for it.
  virtual Status Allreduce(std::span<const ReduceTensor> tensors, const Reduction& reduction, CudaEvent ready,
                           CudaEvent done) = 0;
  virtual Status Broadcast(std::span<const BroadcastTensor> tensors, int root, CudaEvent ready, CudaEvent done) = 0;
  virtual Status Allgather(std::span<const GatherTensor> tensors, CudaEvent ready, CudaEvent done) = 0;
  virtual Status Reducescatter(std::span<const ScatterTensor> tensors, const Reduction& reduction, CudaEvent ready,
                               CudaEvent done) = 0;
  // `input` holds send_bytes[0] bytes for rank 0, then those for rank 1, ...; `output` receives receive_bytes[0] bytes
  // of rank 0, ... They do not overlap.
  virtual Status Alltoall(const void* input, std::span<const size_t> send_bytes, void* output,
                          std::span<const size_t> receive_bytes, CudaEvent ready, CudaEvent done) = 0;
  // `done` comes when all ranks' `ready` has come.
  virtual Status Barrier(CudaEvent ready, CudaEvent done) = 0;

  // What has gone wrong since: for the heartbeat and for whoever has seen `done`. From any thread.
  virtual Status AsyncError() = 0;
  // Breaks the group for a reason that its later calls give. From any thread, also while another one is in an
  // operation, but not in the destructor; a second time it does nothing.
  virtual void Abort(const Status& why) = 0;

  // The group's stream, for what goes between its operations.
  virtual CudaStream stream() const = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_GPU_GROUP_H_
