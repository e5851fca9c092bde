// CUDA events of one device, made once and used again: making one costs about a microsecond.
#ifndef SPARK_ESTIMATOR_GPU_EVENTS_H_
#define SPARK_ESTIMATOR_GPU_EVENTS_H_

#include <mutex>
#include <vector>

#include "base/status.h"
#include "gpu/cuda_api.h"

namespace spark_estimator {

// An event may be returned as soon as no code will query it any more: a stream that waits for it waits for the record
// that it had then, regardless of later records. From any thread.
class EventPool {
 public:
  EventPool(const CudaApi& cuda, int device) : cuda_(cuda), device_(device) {}
  ~EventPool();  // of the returned events
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
