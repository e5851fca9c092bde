// Runs agreed operations on GPU tensors, with the best backend that all ranks support.
//
// CUDA is opened when this rank's first GPU tensor is submitted. At the first GPU operation of the group all ranks
// exchange, through the host, which GPU each has and what it found there, and choose the same backend for all later
// operations:
//
//   NCCL     each rank has a separate GPU and NCCL
//   STAGED   through pinned host memory (gpu_staging.h): everything else, and what NCCL does not offer
//   LOCAL    one rank: copies on the device
//
// An operation is done when all of it has been handed to the device. Its results may be read behind `gpu.done`, in the
// device's order; a caller's stream waits for that, the CPU never does, except that STAGED uses the CPU and is complete
// when `gpu.done` is recorded.
//
// What fails how. What Accept refuses was not submitted. A failure of Run is the group's end, as any executor's is: the
// engine breaks, and Abort ends what still runs on the device, so that no kernel waits for a lost peer.
#ifndef SPARK_ESTIMATOR_ENGINE_GPU_EXECUTOR_H_
#define SPARK_ESTIMATOR_ENGINE_GPU_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/gpu/gpu_meeting.h"
#include "engine/gpu/gpu_staging.h"
#include "engine/observe/counters.h"
#include "engine/requests/request.h"
#include "gpu/device.h"
#include "gpu/nccl_api.h"
#include "gpu/nccl_group.h"
#include "transport/liveness.h"

namespace spark_estimator {

class GpuExecutor {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    int32_t operations = 0;     // se_gpu_operations
    int32_t ranks_on_host = 0;  // of the job; 0: not known
    GpuLibraries libraries;
    Seconds deadline{60};  // for joining a group, and for launching an operation
  };

  // What it has of the host's engine; all outlive it.
  struct Host {
    Executor* executor = nullptr;
    Liveness* liveness = nullptr;
    Counters* counters = nullptr;
    Arena* arena = nullptr;
    SharedGroup* shared = nullptr;  // all ranks; null where they do not share memory
  };

  GpuExecutor(Options options, Host host);
  ~GpuExecutor();

  // --- the callers' side, from any thread

  // Notes the device and stream of a request that is about to be submitted. SE_INVALID_ARGUMENT when its tensors cannot
  // be used: there is no CUDA, another GPU was used before, the stream is being captured.
  Status Accept(int device, CudaStream stream, GpuWork* work);
  // For a request that has succeeded: later work on the stream finds its outputs written. An error if the device's work
  // was aborted meanwhile: then they may be invalid.
  Status AwaitOn(const Request& request, CudaStream stream);
  // And copies a result that the request owns.
  Status CopyResult(Request& request, size_t part, void* output, CudaStream stream);
  // How GPU tensors are sent, and why; empty before the first operation.
  std::string Describe() const;

  // --- the driving thread

  // As Executor::Run.
  Status Run(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows);
  // The name of the backend of the last Run. Static storage.
  const char* algorithm() const { return algorithm_; }
  // Errors on the device since then.
  Status Check();
  // How long what needs all ranks may take.
  Seconds deadline() const { return options_.deadline; }
  // Whether the GPU has not yet finished the ranks' common operations.
  bool IsBusy() const;
  // Nothing on the device waits for peers any more.
  void Abort(const Status& why);
  // This rank has left the job: waits a moment until the device has finished its work.
  void Leave();

 private:
  // Agrees with the other ranks on the backend. It stays open while a rank that has joined has shown no GPU.
  Status Meet();
  Status Exchange(const void* mine, size_t bytes, void* all);
  // The NCCL group or the staging memory that the decision needs. Without an id for NCCL the decision becomes staged,
  // unless NCCL is `demanded`.
  Status Prepare(bool demanded, GpuDecision* decision);
  std::shared_ptr<GpuDevice> device() const;
  int Look() const;  // at the last operation, with CUDA's code
  bool Offered(const std::vector<RequestPtr>& requests) const;
  Status RunOnGroup(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows);
  Status Reduce(const std::vector<RequestPtr>& requests);
  Status GatherOnGroup(Request& request, const std::vector<int64_t>& rows);
  Status ExchangeOnGroup(Request& request, const std::vector<int64_t>& rows);
  Status RunAlone(Request& request, const std::vector<int64_t>& rows);

  const Options options_;
  const Host host_;

  mutable std::mutex mutex_;  // of what follows
  std::shared_ptr<GpuDevice> device_;
  std::string description_;
  GpuMarkPtr last_;  // behind the last operation of the group
  Status aborted_;   // not OK: why the group was broken

  // Of the driving thread.
  const char* algorithm_ = "";
  GpuWay way_ = GpuWay::kOpen;
  std::unique_ptr<NcclApi> nccl_;
  std::unique_ptr<NcclGroup> group_;
  bool has_left_ = false;
  std::unique_ptr<GpuStaging> staging_;
  CudaStream alone_ = nullptr;  // the stream of a group of one
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_GPU_EXECUTOR_H_
