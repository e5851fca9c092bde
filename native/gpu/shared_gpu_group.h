// Collectives among ranks that share one GPU, or one slice of a GPU, each in a process of its own, where NCCL refuses:
// one rank's part.
//
// Each rank has an exchange buffer in device memory, cut into slots, that the others map (CUDA IPC). An operation goes
// chunk by chunk. Chunk k lies in slot k mod kSlots, and a chunk on a rank is, on the group's stream:
//
//   wait until all have read my slot (chunk k - kSlots) | copy my input into it | tell all: filled k
//   wait until all have filled k | reduce, or copy, from everybody's slots to my output | tell all: read k
//
// Copying is kSlots - 1 chunks ahead of reducing, so that ranks whose contexts take turns on the GPU find work when
// it is theirs. "Tell" is a kernel that raises a counter in each other rank's buffer, and "wait" a stream's wait for
// one's own counter (cuStreamWaitValue64), which keeps no processor of the GPU busy and the CPU out of it: an operation
// is handed over without waiting for anybody, but for an alltoall, whose ranks first tell each other their splits.
// Events between processes would not do: one that a rank has recorded and whose process then dies never comes, and
// nobody else can make it come. A counter that one waits for is one's own memory; Abort raises it.
//
// A rank that has failed, or was aborted, tells nobody anything any more and leaves its slots as they are: its kernels
// ask for that before they write where others read. So the others wait for it until they are aborted as well.
//
// All ranks compute a sum in the order of the ranks, as base/kernels.h does, so all have the same bits.
#ifndef SPARK_ESTIMATOR_GPU_SHARED_GPU_GROUP_H_
#define SPARK_ESTIMATOR_GPU_SHARED_GPU_GROUP_H_

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
#include "gpu/cuda_api.h"
#include "gpu/device_kernels.h"
#include "gpu/driver_api.h"
#include "gpu/events.h"
#include "gpu/exchange_buffer.h"
#include "gpu/gpu_group.h"

namespace spark_estimator {

class SharedGpuGroup : public GpuGroup {
 public:
  static constexpr int kMostRanks = 64;
  static constexpr int kSlots = 3;
  // Large enough that what a chunk costs beside its copies does not count, small enough that tens of ranks find room.
  static constexpr size_t kSlotBytes = size_t{8} << 20;

  struct Options {
    int rank = 0;
    int size = 1;
    int device = 0;
    size_t slot_bytes = kSlotBytes;     // the same on all ranks; a multiple of 16
    Seconds deadline{60};               // for each wait of the CPU but those in `exchange`
    Seconds farewell{5};                // for the destructor's wait
    std::function<Status()> abandoned;  // other than SE_OK: stop waiting, for this reason. Called often while waiting,
                                        // from the waiting thread. May be empty
    // The ranks' allgather on the host: all[i] becomes rank i's `bytes` bytes; 0 bytes: a barrier. Called by Connect,
    // by Alltoall and by the destructor of a healthy group, in the caller's thread and by all ranks in the same order.
    // It must end by itself when a peer does not come, with the culprit's name; whoever aborts the group makes it end.
    std::function<Status(const void* mine, size_t bytes, void* all)> exchange;
  };

  // Whether the device and its driver have what it takes, found out by trying: a failure is the sentence that says what
  // is missing. About this rank alone, so the ranks have to agree on what comes of it; nobody is waited for.
  static Status Usable(const CudaApi& cuda, const DriverApi& driver, int device, int size);

  // Constructor and Connect. `cuda` and `kernels` must outlive the group.
  static Status Create(const CudaApi& cuda, DeviceKernels& kernels, Options options,
                       std::unique_ptr<SharedGpuGroup>* group);

  SharedGpuGroup(const CudaApi& cuda, DeviceKernels& kernels, Options options);
  // Of a healthy group all ranks must be leaving: it waits for its own stream, up to the farewell, and meets the others
  // in `exchange`, because memory must not be freed while others have it mapped. A broken one waits for nobody and
  // leaves its exchange buffer to the process's end.
  ~SharedGpuGroup() override;

  // Maps the other ranks' buffers and tries one allreduce, of which the CPU waits for the end. All ranks call it, and
  // it fails on all of them, with the first culprit's reason, or on none. Once, and before any operation.
  Status Connect();

  // All but Adasum, for all types.
  bool Offers(int32_t op, const Reduction& reduction) const override;
  const char* name() const override { return "SHARED_GPU"; }
  Status Allreduce(std::span<const ReduceTensor> tensors, const Reduction& reduction, CudaEvent ready,
                   CudaEvent done) override;
  Status Broadcast(std::span<const BroadcastTensor> tensors, int root, CudaEvent ready, CudaEvent done) override;
  Status Allgather(std::span<const GatherTensor> tensors, CudaEvent ready, CudaEvent done) override;
  Status Reducescatter(std::span<const ScatterTensor> tensors, const Reduction& reduction, CudaEvent ready,
                       CudaEvent done) override;
  Status Alltoall(const void* input, std::span<const size_t> send_bytes, void* output,
                  std::span<const size_t> receive_bytes, CudaEvent ready, CudaEvent done) override;
  Status Barrier(CudaEvent ready, CudaEvent done) override;
  Status AsyncError() override;
  // Also while another thread is in Connect.
  void Abort(const Status& why) override;
  CudaStream stream() const override { return stream_; }

  EventPool& events() { return events_; }
  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

 private:
  // An operation as chunks see it.
  struct Plan;
  class Chunks;

  Status Prepare();
  Status OpenOthers(std::span<const CudaMemoryHandle> handles);
  Status Trial();
  // Everybody's status to everybody: the first failure, with its rank, on all of them.
  Status Agree(const Status& mine);
  Status Exchange(const std::string& what, const void* mine, size_t bytes, void* all);

  // One operation, from waiting for `ready` to recording `done`. Under operation_mutex_.
  Status Run(const char* what, const Plan& plan, CudaEvent ready, CudaEvent done);
  Status Enqueue(const Plan& plan, CudaEvent ready, CudaEvent done);
  Status Reduce(const char* what, Plan* plan, const Reduction& reduction, CudaEvent ready, CudaEvent done);
  // Until the stream is through with what it has; fails the group when that does not come.
  Status AwaitStream(const std::string& what, Seconds limit);
  // Whether the exchange buffer may be freed.
  bool SayGoodbye();
  bool IdleWithin(Seconds limit);

  // Breaks the group, if it is not broken yet; returns why it is.
  Status Fail(const Status& why);
  Status Failure();
  Status Healthy();  // connected, and not broken
  Status Refused(const std::string& what) const;
  Status NotOffered(int32_t op, const Reduction& reduction) const;
  // A failure with this rank's name before it.
  Status Named(const Status& status) const;
  std::string Who() const;
  bool alone() const { return options_.size == 1; }

  const CudaApi& cuda_;
  DeviceKernels& kernels_;
  const Options options_;
  EventPool events_;

  std::mutex operation_mutex_;  // one operation after the other; what follows is its
  CudaContext context_ = nullptr;
  CudaStream stream_ = nullptr;
  CudaStream release_stream_ = nullptr;  // for Break, which overtakes what waits
  ExchangeBuffer buffer_;
  bool offered_ = false;  // others may have mapped the buffer
  CudaFunction copy_ = nullptr;
  CudaFunction tell_ = nullptr;
  std::vector<float> trial_numbers_;  // here, as a copy may be under way when the trial is given up
  uint64_t chunks_done_ = 0;          // of all operations so far; the same on all ranks

  std::mutex state_mutex_;
  Status failure_;
  bool connected_ = false;
  bool breakable_ = false;  // there is something to release
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_SHARED_GPU_GROUP_H_
