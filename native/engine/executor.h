// Carries out one response on this rank's memory, with the algorithm that fits the ranks and the bytes.
#ifndef SPARK_ESTIMATOR_ENGINE_EXECUTOR_H_
#define SPARK_ESTIMATOR_ENGINE_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "algorithms/buffer_list.h"
#include "base/kernels.h"
#include "base/status.h"
#include "engine/message.h"
#include "engine/request.h"
#include "transport/shared_group.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// Read by other threads while the engine runs.
struct Counters {
  std::atomic<int64_t> requests{0};
  std::atomic<int64_t> responses{0};
  std::atomic<int64_t> fused_requests{0};
  std::atomic<int64_t> shared_bytes{0};
  std::atomic<int64_t> stream_bytes{0};
  std::atomic<int64_t> control_bytes_sent{0};
  std::atomic<int64_t> wakeups{0};
};

class Executor {
 public:
  // `shared` is null when the ranks do not all see one another's memory.
  Executor(StreamGroup streams, std::unique_ptr<SharedGroup> shared, Counters* counters);

  // `requests` are this rank's requests of the response's names, in that order. An error leaves the ring unusable.
  Status Run(const Response& response, const std::vector<RequestPtr>& requests);
  bool uses_shared_memory() const { return shared_ != nullptr; }
  StreamGroup& streams() { return streams_; }

 private:
  Status Allreduce(const std::vector<RequestPtr>& requests);
  Status AllreduceWidened(const std::vector<RequestPtr>& requests, Finish finish);
  Status Reduce(const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish);
  Status Allgather(const Response& response, Request& request);
  Status Broadcast(Request& request);
  Status Barrier();
  // Scratch of at least so many bytes, kept for the next time.
  Status Scratch(size_t bytes, uint8_t** memory);

  StreamGroup streams_;
  std::unique_ptr<SharedGroup> shared_;
  Counters* counters_;
  Memory scratch_;
  size_t scratch_bytes_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_EXECUTOR_H_
