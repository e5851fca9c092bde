// A submitted collective as its own rank keeps it: what was agreed on, where the memory is, and how it ended.
#ifndef SPARK_ESTIMATOR_ENGINE_REQUEST_H_
#define SPARK_ESTIMATOR_ENGINE_REQUEST_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/kept_memory.h"
#include "base/status.h"
#include "engine/wire/message.h"
#include "gpu/device.h"

namespace spark_estimator {

// The address of one tensor of a request.
struct TensorMemory {
  const void* input = nullptr;
  void* output = nullptr;
  int64_t output_bytes = 0;  // allgather, alltoall: room at `output`
  float* residue = nullptr;  // of a part that may be sent as int8
};

// What an allgather or alltoall made of one tensor.
struct Gathered {
  Memory owned;      // for se_free; empty when it was put into the tensor's output
  GpuMemory on_gpu;  // the same of GPU tensors
  void* data = nullptr;
  int64_t bytes = 0;
  std::vector<int64_t> rows;  // [size]
};

// The additional data of a request whose tensors are on a GPU.
struct GpuWork {
  int device = -1;
  CudaStream stream = nullptr;  // the caller's
  GpuMarkPtr ready;             // behind what the caller had enqueued there when it submitted
  GpuMarkPtr done;              // behind the outputs; there is one when the request is done well
};

// The GPU of a request's tensors, and the event behind which they are ready.
struct GpuPlace {
  int device = -1;
  CudaStream stream = nullptr;
};

struct Plan;
struct Unnamed;

struct Request {
  int64_t handle = 0;  // 0: none was requested
  std::shared_ptr<const Signature> signature;
  int64_t bytes = 0;                 // of all tensors
  std::vector<TensorMemory> memory;  // [parts]
  GpuWork gpu;
  int32_t cache_id = -1;               // once it is known to be cached
  Plan* plan = nullptr;                // the plan of this submission
  Unnamed* unnamed = nullptr;          // its kind, when it has no name
  int64_t number = Signature::kNamed;  // ... and which of them it is
  uint64_t order = 0;                  // of submission on this rank
  bool deferred = false;               // the next wait will see to it
  bool had_to_queue = false;           // behind an older one of its kind
  bool recorded = false;               // the flight recorder has its failure
  Time submitted{};
  Time agreed{};

  // Written by the driving thread before `done` is set under the engine's lock, read by others after.
  std::vector<Gathered> gathered;  // [parts]
  int32_t last_joined = -1;
  Status outcome;
  bool done = false;

  // Of LiveRequests.
  bool is_live = false;
  Request* older = nullptr;
  std::shared_ptr<Request> younger;
};

using RequestPtr = std::shared_ptr<Request>;

// The requests of one kind that have no names. They are matched by order: all ranks complete them in the order of their
// numbers, so the oldest pending one has the same number on all ranks that have one pending.
struct Unnamed {
  // Guarded by the engine's lock.
  int64_t next = 0;             // number of the next to be submitted
  int64_t failed_through = -1;  // those up to it failed on all ranks, before this one submitted them
  std::string failure;          // ... with these words

  // Of the driving thread.
  bool is_proposed = false;        // the oldest one that is pending and cached
  std::deque<RequestPtr> younger;  // in order
};

// A request that is made once; see se_plan. The engine's lock guards what changes.
struct Plan {
  std::shared_ptr<const Signature> signature;
  int64_t bytes = 0;
  std::vector<int64_t> output_bytes;  // [parts], room at the outputs of an allgather or alltoall
  std::vector<float*> residues;       // [parts], of all submissions
  int device = -1;                    // with the tensors of all submissions
  RequestPtr request;                 // the last one, reused if nothing else refers to it
  Unnamed* unnamed = nullptr;         // once it has been submitted
  int32_t cache_id = -1;
  uint64_t cache_generation = 0;  // of the cache when cache_id was looked up
};

// "allreduce 'x'".
std::string LabelOf(const Signature& signature, int64_t number);
inline std::string LabelOf(const Request& request) { return LabelOf(*request.signature, request.number); }
inline std::string FullName(const Request& request) { return FullName(request.signature->name, request.number); }

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_REQUEST_H_
