// Collectives on GPU tensors by NCCL: one rank's part of one group of ranks, each with a separate device.
//
// A group has one NCCL communicator and one stream. Its operations run on that stream, in the order in which they are
// called, which must be the same on all ranks. An operation is a chain on the device:
//
//   the caller's stream:   ... writes inputs | record `ready`              wait `done` | reads outputs ...
//   the group's stream:                            wait `ready` | work | record `done`
//
// The CPU never waits for a caller's stream. It waits until NCCL has launched the operation (ncclInProgress: the first
// operations connect the ranks, which needs the other ranks' first operations), because an event that is recorded
// before that would be reached too early. So calls of one group are made by one thread, or one after the other, and no
// rank waits in another group's call meanwhile.
//
// What fails how. A call that makes no sense (an op that is not offered, a root that does not exist) returns
// SE_INVALID_ARGUMENT and leaves the group as it was. Any other failure is the group's: it stays broken, none of its
// work waits for peers any more, and the events of running operations are reached, with invalid outputs. So a caller
// that has seen `done` checks AsyncError() before it uses the data. The first failure is kept, and every later call
// returns it.
//
// Waiting of the CPU, in Connect, in an operation and in the destructor, ends with the first of these: NCCL has
// finished, it reports an error, `abandoned` reports a lost peer, Abort was called, the deadline has passed. A failure
// aborts the communicator, which ends the kernels that wait for peers.
//
// NCCL is called by one thread at a time, which its communicators demand, and never for long: they are non-blocking.
#ifndef SPARK_ESTIMATOR_GPU_NCCL_GROUP_H_
#define SPARK_ESTIMATOR_GPU_NCCL_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "gpu/collective_tensors.h"
#include "gpu/cuda_api.h"
#include "gpu/events.h"
#include "gpu/nccl_api.h"
#include "gpu/nccl_reduce.h"

namespace spark_estimator {

class NcclGroup {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    int device = 0;
    NcclUniqueId id;                    // of rank 0's MakeId
    Seconds deadline{60};               // for each wait of the CPU
    Seconds farewell{5};                // for the destructor's, at most
    std::function<Status()> abandoned;  // other than SE_OK: stop waiting, for this reason. Called often while waiting,
                                        // from the waiting thread. May be empty
  };

  // The id of a new group: rank 0 makes it, and the caller sends it to all ranks.
  static Status MakeId(const NcclApi& nccl, NcclUniqueId* id);

  // Constructor and Connect. `nccl` and `cuda` must outlive the group.
  static Status Create(const NcclApi& nccl, const CudaApi& cuda, Options options, std::unique_ptr<NcclGroup>* group);

  NcclGroup(const NcclApi& nccl, const CudaApi& cuda, Options options);
  // Ends a healthy group in order: waits for its operations on all ranks, so all ranks must be leaving; a broken one is
  // aborted. Neither takes longer than the farewell, twice; but freeing memory, NCCL's own too, makes CUDA wait for all
  // other work of the device.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // Joins the communicator. All ranks call it; waits for all of them. Once, and before any operation.
  Status Connect();

  // Whether the group can do this with the result that the engine's own algorithms promise; the same on all ranks.
  // `reduction` is looked at for allreduce and reducescatter; the others move bytes of any type.
  bool Offers(int32_t op, const Reduction& reduction) const;

  // `ready`: an event that the caller's stream has recorded behind the inputs; null: they are there. `done`: recorded
  // when the outputs are there; null: not needed. `ready` may be recorded again as soon as the call returns, and `done`
  // as soon as its users wait for it.
  Status Allreduce(std::span<const ReduceTensor> tensors, const Reduction& reduction, CudaEvent ready, CudaEvent done);
  Status Broadcast(std::span<const BroadcastTensor> tensors, int root, CudaEvent ready, CudaEvent done);
  Status Allgather(std::span<const GatherTensor> tensors, CudaEvent ready, CudaEvent done);
  Status Reducescatter(std::span<const ScatterTensor> tensors, const Reduction& reduction, CudaEvent ready,
                       CudaEvent done);
  // `input` holds send_bytes[0] bytes for rank 0, then those for rank 1, ...; `output` receives receive_bytes[0] bytes
  // of rank 0, ... They do not overlap.
  Status Alltoall(const void* input, std::span<const size_t> send_bytes, void* output,
                  std::span<const size_t> receive_bytes, CudaEvent ready, CudaEvent done);
  // `done` is reached when all ranks' `ready` has been reached.
  Status Barrier(CudaEvent ready, CudaEvent done);

  // Errors since then: for the heartbeat and for callers that have seen `done`. From any thread.
  Status AsyncError();
  // Breaks the group for a reason that its later calls give. From any thread, also while another one is in an operation
  // or in Connect, but not in the destructor; a second time it does nothing.
  void Abort(const Status& why);

  // The group's stream, for work between its operations.
  CudaStream stream() const { return stream_; }

  EventPool& events() { return events_; }
  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

 private:
  // An operator that the communicator has made.
  struct Factor {
    NcclType type;
    double factor;
    int op;
  };

  // One operation, from waiting for `ready` to recording `done`. `prepare` enqueues the work before NCCL's part; `call`
  // makes NCCL's calls, inside one group, and returns the first result that is neither success nor "in progress", if
  // there is one. Either may be empty.
  Status Run(const char* what, CudaEvent ready, CudaEvent done, const std::function<Status()>& prepare,
             const std::function<int(NcclComm)>& call);
  // One look at the communicator's state; an error fails the group.
  Status Look(const std::string& what, bool* in_progress);
  // Waits until NCCL has launched what it has accepted; fails the group if it does not.
  Status AwaitNccl(const std::string& what, Seconds limit);
  void SayGoodbye();

  Status OpenStream();
  Status OperatorFor(const Reduction& reduction, int* op, NcclType* type);
  // Tensors in the scratch are aligned as cudaMalloc's are.
  static constexpr size_t kAlignment = 256;
  static constexpr size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
  // Device memory that the stream's operations use one after the other.
  Status Scratch(size_t bytes, void** data);
  Status Clear(void* data, size_t bytes);

  // Breaks the group, if it is not broken yet; returns why it is.
  Status Fail(const Status& why);
  Status Healthy();
  // Error texts. Explained is called under comm_mutex_: NCCL's texts belong to the communicator.
  Status Explained(const std::string& what, int result) const;
  Status TookTooLong(const std::string& what, Seconds limit);
  Status NotConnected() const;
  Status NotOffered(int32_t op, const Reduction& reduction) const;
  Status Refused(const std::string& what) const;
  std::string Who() const;

  const NcclApi& nccl_;
  const CudaApi& cuda_;
  const Options options_;
  EventPool events_;

  std::mutex operation_mutex_;  // one operation after the other; what follows is its
  CudaStream stream_ = nullptr;
  std::vector<Factor> factors_;
  std::vector<void*> scratch_;  // the last one is in use; freeing one would wait for the whole device
  size_t scratch_bytes_ = 0;

  std::mutex comm_mutex_;  // held for single calls of NCCL, or a group of them, and never while waiting
  NcclComm comm_ = nullptr;
  Status failure_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_NCCL_GROUP_H_
