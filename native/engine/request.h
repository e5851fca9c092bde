// A submitted collective as its own rank keeps it: what was agreed on, where the memory is, and how it ended.
#ifndef SPARK_ESTIMATOR_ENGINE_REQUEST_H_
#define SPARK_ESTIMATOR_ENGINE_REQUEST_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/message.h"

namespace spark_estimator {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
// From malloc, so that it can be handed over the C ABI and freed by se_free.
using Memory = std::unique_ptr<void, FreeMemory>;

// Where one tensor of a request lies.
struct TensorMemory {
  const void* input = nullptr;
  void* output = nullptr;
  int64_t output_bytes = 0;  // allgather, alltoall: room at `output`
};

// What an allgather or alltoall made of one tensor.
struct Gathered {
  Memory owned;  // empty when it was put into the tensor's output
  void* data = nullptr;
  int64_t bytes = 0;
  std::vector<int64_t> rows;  // [size]
};

struct Plan;

struct Request {
  int64_t handle = 0;  // 0: nobody has asked for one
  std::shared_ptr<const Signature> signature;
  int64_t bytes = 0;                 // of all tensors
  std::vector<TensorMemory> memory;  // [parts]
  int32_t cache_id = -1;             // once it is known to be cached
  Plan* plan = nullptr;              // of which it is the submission
  bool deferred = false;             // the next wait will see to it
  Time submitted{};
  Time agreed{};

  // Written by whoever drives before `done` is set under the engine's lock, read by others after.
  std::vector<Gathered> gathered;  // [parts]
  int32_t last_joined = -1;
  Status outcome;
  bool done = false;
};

using RequestPtr = std::shared_ptr<Request>;

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_REQUEST_H_
