// One GPU as a rank uses it: the CUDA runtime, opened, with the device's number, and events and memory that are used
// again and again.
//
// Nothing here waits for the device. Memory may be freed while a stream still uses it: it has the event behind which it
// is free, and its next user waits for that on the stream.
#ifndef SPARK_ESTIMATOR_GPU_DEVICE_H_
#define SPARK_ESTIMATOR_GPU_DEVICE_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "gpu/cuda_api.h"
#include "gpu/events.h"

namespace spark_estimator {

class GpuDevice;

// The runtime and its events. Apart from GpuDevice, whose memory refers to it.
struct OpenedCuda {
  OpenedCuda(CudaApi api, int device) : cuda(std::move(api)), events(cuda, device) {}

  const CudaApi cuda;
  EventPool events;
};

// An event that returns to its pool when nothing refers to the mark any more.
class GpuMark {
 public:
  GpuMark(std::shared_ptr<OpenedCuda> opened, CudaEvent event) : opened_(std::move(opened)), event_(event) {}
  ~GpuMark();
  GpuMark(const GpuMark&) = delete;
  GpuMark& operator=(const GpuMark&) = delete;

  CudaEvent event() const { return event_; }

 private:
  const std::shared_ptr<OpenedCuda> opened_;
  const CudaEvent event_;
};

// What has been recorded on a stream once, to be waited for by any number of others.
using GpuMarkPtr = std::shared_ptr<const GpuMark>;

// Device memory that returns to its device when it is released.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(std::shared_ptr<GpuDevice> device, void* data, size_t bytes)
      : device_(std::move(device)), data_(data), bytes_(bytes) {}
  ~GpuMemory() { Reset(); }
  GpuMemory(GpuMemory&& other) noexcept { *this = std::move(other); }
  GpuMemory& operator=(GpuMemory&& other) noexcept;
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  void* get() const { return data_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  // The event that must pass before the memory is reused.
  void BusyUntil(GpuMarkPtr mark) { busy_until_ = std::move(mark); }
  void Reset();

 private:
  std::shared_ptr<GpuDevice> device_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  GpuMarkPtr busy_until_;
};

class GpuDevice : public std::enable_shared_from_this<GpuDevice> {
 public:
  // Opens the CUDA runtime (see CudaApi::Open) and checks that it has that device.
  static Status Open(const std::string& cuda_library, int number, std::shared_ptr<GpuDevice>* device);
  ~GpuDevice();

  const CudaApi& cuda() const { return opened_->cuda; }
  int number() const { return number_; }
  int visible() const { return visible_; }  // devices that this process sees

  // The same text for this GPU, or slice of one, in every process of every machine. If the driver does not provide
  // UUIDs, slices of one GPU have equal texts.
  std::string Identity() const;
  // The same text for all slices (MIG) of one GPU, by its place on the bus; empty if that is not available.
  std::string Board() const;

  // An event to be recorded.
  Status Mark(GpuMarkPtr* mark);
  // An event that is recorded behind all that has been enqueued on the stream so far.
  Status MarkBehind(CudaStream stream, GpuMarkPtr* mark);
  // Work that is enqueued on the stream from now on runs behind the mark; null does nothing.
  Status Await(CudaStream stream, const GpuMarkPtr& mark) const;
  Status MakeStream(CudaStream* stream) const;
  // Device memory for work on that stream.
  Status Allocate(size_t bytes, CudaStream stream, GpuMemory* memory);
  Status Copy(void* to, const void* from, size_t bytes, CudaStream stream) const;

 private:
  friend class GpuMemory;
  struct Kept {
    void* data;
    size_t bytes;
    GpuMarkPtr busy_until;
  };
  // Freeing makes CUDA wait for the whole device, so a few pieces are kept instead.
  static constexpr size_t kMostKept = 8;

  GpuDevice(CudaApi cuda, int number, int visible)
      : opened_(std::make_shared<OpenedCuda>(std::move(cuda), number)), number_(number), visible_(visible) {
    kept_.reserve(kMostKept);
  }
  void Keep(Kept piece) noexcept;

  const std::shared_ptr<OpenedCuda> opened_;
  const int number_;
  const int visible_;
  std::mutex mutex_;
  std::vector<Kept> kept_;  // the most recently freed one at the end
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_DEVICE_H_
