#include "gpu/device.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "gpu/driver_api.h"

namespace spark_estimator {
namespace {

// cudaMalloc allocates at least this much anyway.
constexpr size_t kLeastBytes = 512;

// How much larger than needed a kept piece may be.
bool Suits(size_t has, size_t needed) { return has >= needed && has <= 2 * needed + (size_t{1} << 20); }

}  // namespace

GpuMark::~GpuMark() { opened_->events.Give(event_); }

GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
  Reset();
  device_ = std::move(other.device_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  busy_until_ = std::move(other.busy_until_);
  return *this;
}

void GpuMemory::Reset() {
  if (data_ == nullptr) return;
  device_->Keep({std::exchange(data_, nullptr), std::exchange(bytes_, 0), std::move(busy_until_)});
  device_.reset();
}

Status GpuDevice::Open(const std::string& cuda_library, int number, std::shared_ptr<GpuDevice>* device) {
  CudaApi cuda;
  SE_RETURN_IF_ERROR(CudaApi::Open(cuda_library, &cuda));
  CudaMachine machine;
  SE_RETURN_IF_ERROR(cuda.Probe(&machine));
  if (number < 0 || number >= machine.devices) {
    return Status(SE_INVALID_ARGUMENT, "there is no CUDA device " + std::to_string(number) + "; this process sees " +
                                           std::to_string(machine.devices));
  }
  device->reset(new GpuDevice(std::move(cuda), number, machine.devices));
  return Status::Ok();
}

GpuDevice::~GpuDevice() {
  const CudaDeviceScope scope(cuda(), number_);
  for (Kept& piece : kept_) cuda().Free(piece.data);
}

std::string GpuDevice::Identity() const {
  DriverApi driver;
  std::string uuid;
  if (DriverApi::Open("", &driver).ok() && DeviceUuid(driver, number_, &uuid).ok()) return "GPU-" + uuid;
  const std::string board = Board();
  return board.empty() ? "CUDA device " + std::to_string(number_) : board;
}

std::string GpuDevice::Board() const {
  std::array<char, 32> bus{};
  if (cuda().DeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), number_) != kCudaSuccess) {
    cuda().GetLastError();
    return "";
  }
  std::string machine;  // the same in all containers of it
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), machine);
  return std::string(bus.data()) + " of " + machine.substr(0, machine.find('-'));
}

Status GpuDevice::Mark(GpuMarkPtr* mark) {
  CudaEvent event = nullptr;
  SE_RETURN_IF_ERROR(opened_->events.Take(&event));
  try {
    *mark = std::make_shared<const GpuMark>(opened_, event);
  } catch (...) {
    opened_->events.Give(event);
    throw;
  }
  return Status::Ok();
}

Status GpuDevice::MarkBehind(CudaStream stream, GpuMarkPtr* mark) {
  SE_RETURN_IF_ERROR(Mark(mark));
  const CudaDeviceScope scope(cuda(), number_);  // the null stream is the current device's
  SE_RETURN_IF_ERROR(scope.status());
  return cuda().Check(cuda().EventRecord((*mark)->event(), stream), "recording an event on a stream");
}

Status GpuDevice::Await(CudaStream stream, const GpuMarkPtr& mark) const {
  if (!mark) return Status::Ok();
  const CudaDeviceScope scope(cuda(), number_);
  SE_RETURN_IF_ERROR(scope.status());
  return cuda().Check(cuda().StreamWaitEvent(stream, mark->event(), 0), "having a stream wait for an event");
}

Status GpuDevice::MakeStream(CudaStream* stream) const {
  const CudaDeviceScope scope(cuda(), number_);
  SE_RETURN_IF_ERROR(scope.status());
  // Work that waits for a collective waits for the other ranks, too: it has precedence over computations.
  int least = 0;
  int greatest = 0;
  SE_RETURN_IF_ERROR(
      cuda().Check(cuda().DeviceGetStreamPriorityRange(&least, &greatest), "asking for the streams' priorities"));
  return cuda().Check(cuda().StreamCreateWithPriority(stream, kCudaStreamNonBlocking, greatest), "making a stream");
}

Status GpuDevice::Allocate(size_t bytes, CudaStream stream, GpuMemory* memory) {
  bytes = std::max(bytes, kLeastBytes);
  Kept piece{nullptr, 0, nullptr};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto best = kept_.end();
    for (auto block = kept_.begin(); block != kept_.end(); ++block) {
      if (Suits(block->bytes, bytes) && (best == kept_.end() || block->bytes < best->bytes)) best = block;
    }
    if (best != kept_.end()) {
      piece = std::move(*best);
      kept_.erase(best);
    }
  }
  if (piece.data != nullptr) {
    *memory = GpuMemory(shared_from_this(), piece.data, piece.bytes);
    memory->BusyUntil(piece.busy_until);
    return Await(stream, piece.busy_until);
  }
  const CudaDeviceScope scope(cuda(), number_);
  SE_RETURN_IF_ERROR(scope.status());
  void* data = nullptr;
  SE_RETURN_IF_ERROR(cuda().Check(cuda().Malloc(&data, bytes), "allocating " + std::to_string(bytes) +
                                                                   " bytes on CUDA device " + std::to_string(number_) +
                                                                   " for the result of a collective"));
  *memory = GpuMemory(shared_from_this(), data, bytes);
  return Status::Ok();
}

Status GpuDevice::Copy(void* to, const void* from, size_t bytes, CudaStream stream) const {
  if (bytes == 0 || to == from) return Status::Ok();
  const CudaDeviceScope scope(cuda(), number_);
  SE_RETURN_IF_ERROR(scope.status());
  return cuda().Check(cuda().MemcpyAsync(to, from, bytes, kCudaMemcpyDefault, stream),
                      "copying " + std::to_string(bytes) + " bytes");
}

void GpuDevice::Keep(Kept piece) noexcept {
  Kept oldest{nullptr, 0, nullptr};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_.size() < kMostKept) {
      kept_.push_back(std::move(piece));  // there is room: see the constructor
      return;
    }
    oldest = std::exchange(kept_.front(), std::move(piece));
    std::rotate(kept_.begin(), kept_.begin() + 1, kept_.end());
  }
  const CudaDeviceScope scope(cuda(), number_);
  cuda().Free(oldest.data);  // waits until nothing works on it
}

}  // namespace spark_estimator
