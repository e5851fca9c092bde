#include "gpu/events.h"

namespace spark_estimator {

EventPool::~EventPool() {
  for (const CudaEvent event : free_) cuda_.EventDestroy(event);
}

Status EventPool::Take(CudaEvent* event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      *event = free_.back();
      free_.pop_back();
      return Status::Ok();
    }
    // Room for all events: an event is returned where nothing may be thrown.
    made_ += 1;
    free_.reserve(made_);
  }
  const CudaDeviceScope device(cuda_, device_);
  SE_RETURN_IF_ERROR(device.status());
  return cuda_.Check(cuda_.EventCreateWithFlags(event, kCudaEventDisableTiming), "making an event");
}

void EventPool::Give(CudaEvent event) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(event);
}

}  // namespace spark_estimator
