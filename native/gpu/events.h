// CUDA events of one device, made once and used again: making one costs about a microsecond.
#ifndef SPARK_ESTIMATOR_GPU_EVENTS_H_
#define SPARK_ESTIMATOR_GPU_EVENTS_H_

#include <mutex>
#include <vector>

#include "base/status.h"
#include "gpu/cuda_api.h"

namespace spark_estimator {

// An event may come back as soon as nobody will look at it any more: a stream that was told to wait for it waits for
// the record that it had then, whatever is recorded into it later. From any thread.
class EventPool {
 public:
  EventPool(const CudaApi& cuda, int device) : cuda_(cuda), device_(device) {}
  ~EventPool();  // of the events that have come back
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  Status Take(CudaEvent* event);
  void Give(CudaEvent event) noexcept;

 private:
  const CudaApi& cuda_;
  const int device_;
  std::mutex mutex_;
  std::vector<CudaEvent> free_;
  size_t made_ = 0;  // or tried to
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_EVENTS_H_
