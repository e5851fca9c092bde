// A submitted collective as its own rank keeps it: what was agreed on, where the memory is, and how it ended.
#ifndef SPARK_ESTIMATOR_ENGINE_REQUEST_H_
#define SPARK_ESTIMATOR_ENGINE_REQUEST_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/message.h"

namespace spark_estimator {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};
// From malloc, so that it can be handed over the C ABI and freed by se_free.
using Memory = std::unique_ptr<void, FreeMemory>;

struct Request {
  int64_t handle = 0;
  Signature signature;
  std::vector<se_buffer> buffers;

  // Written by the engine thread before `done` is set under the engine's lock, read by others after.
  Memory gathered;
  int64_t gathered_bytes = 0;
  std::vector<int64_t> rows;
  Status outcome;
  bool done = false;
};

using RequestPtr = std::shared_ptr<Request>;

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_REQUEST_H_
