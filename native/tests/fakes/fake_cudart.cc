// A CUDA runtime without a GPU, for tests: device memory is the host's, a stream is a thread with a queue. So what
// does not wait for a stream is a race that a test, or ThreadSanitizer, can see.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "fake_cuda.h"

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kMemoryAllocation = 2;
constexpr int kInsufficientDriver = 35;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kCaptureUnsupported = 900;
// More bytes than any device has.
constexpr size_t kMost = size_t{1} << 40;

// One record of an event. A waiting stream keeps waiting for it when the event is recorded again, on any stream.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;

  void Reach() {
    const std::lock_guard<std::mutex> lock(mutex);
    reached = true;
    changed.notify_all();
  }
  void Await() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return reached; });
  }
  bool Reached() {
    const std::lock_guard<std::mutex> lock(mutex);
    return reached;
  }
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Mark> last;  // null: never recorded, so nothing to wait for

  std::shared_ptr<Mark> Last() {
    const std::lock_guard<std::mutex> lock(mutex);
    return last;
  }
};

// Outlives its destruction as long as something is queued, as CUDA's does: the thread owns it, too.
struct Stream {
  explicit Stream(int on_device) : device(on_device) {}

  const int device;
  std::atomic<bool> capturing{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false;
  bool closing = false;

  void Push(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex);
    queue.push_back(std::move(task));
    changed.notify_all();
  }
  bool Idle() {
    const std::lock_guard<std::mutex> lock(mutex);
    return queue.empty() && !busy;
  }
  void AwaitIdle() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return queue.empty() && !busy; });
  }
  void Work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !queue.empty() || closing; });
      if (queue.empty()) return;
      const std::function<void()> task = std::move(queue.front());
      queue.pop_front();
      busy = true;
      lock.unlock();
      task();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

struct Machine {
  std::atomic<int> devices{8};
  std::atomic<int> driver{12080};
  std::atomic<int> runtime{12040};
  std::atomic<int> device_failure{0};
  std::atomic<int> captures{0};
  bool one_board = false;  // FAKE_CUDA_ONE_BOARD: all devices are slices of one GPU
  std::atomic<int> events_made{0};
  std::atomic<int> copy_pause{0};  // microseconds before each copy
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Stream>> streams;
  std::map<void*, std::shared_ptr<Event>> events;
  std::set<void*> allocated;
  std::set<void*> registered;                           // host memory
  std::map<int, std::shared_ptr<Stream>> null_streams;  // by device
};

// Never destroyed: streams' threads may outlive main.
Machine& TheMachine() {
  static Machine* const machine = [] {
    auto* made = new Machine;
    if (const char* devices = std::getenv("FAKE_CUDA_DEVICES")) made->devices = std::atoi(devices);
    if (const char* driver = std::getenv("FAKE_CUDA_DRIVER")) made->driver = std::atoi(driver);
    made->one_board = std::getenv("FAKE_CUDA_ONE_BOARD") != nullptr;
    return made;
  }();
  return *machine;
}

thread_local int current_device = 0;
thread_local int capture_mode = 0;  // global; 2 is relaxed
thread_local int last_error = kSuccess;

int Failed(int code) {
  if (code != kSuccess) last_error = code;
  return code;
}

// What CUDA forbids while any thread captures: it would end the capture.
bool DisturbsACapture() { return capture_mode == 0 && TheMachine().captures > 0; }

std::shared_ptr<Stream> MakeStream(int device) {
  auto stream = std::make_shared<Stream>(device);
  std::thread([stream] { stream->Work(); }).detach();
  return stream;
}

// Null, 1 and 2 are CUDA's own streams; one for all of them here.
std::shared_ptr<Stream> StreamOf(void* handle) {
  Machine& machine = TheMachine();
  const std::lock_guard<std::mutex> lock(machine.mutex);
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    auto& stream = machine.null_streams[current_device];
    if (!stream) stream = MakeStream(current_device);
    return stream;
  }
  const auto found = machine.streams.find(handle);
  return found == machine.streams.end() ? nullptr : found->second;
}

std::shared_ptr<Event> EventOf(void* handle) {
  Machine& machine = TheMachine();
  const std::lock_guard<std::mutex> lock(machine.mutex);
  const auto found = machine.events.find(handle);
  return found == machine.events.end() ? nullptr : found->second;
}

}  // namespace

extern "C" {

FAKE_API int cudaRuntimeGetVersion(int* version) {
  *version = TheMachine().runtime;
  return kSuccess;
}

FAKE_API int cudaDriverGetVersion(int* version) {
  *version = TheMachine().driver;
  return kSuccess;
}

FAKE_API int cudaGetDeviceCount(int* count) {
  const Machine& machine = TheMachine();
  *count = 0;
  if (machine.device_failure != 0) return Failed(machine.device_failure);
  // Of one major version, an older driver does.
  if (machine.driver / 1000 < machine.runtime / 1000) return Failed(kInsufficientDriver);
  if (machine.devices == 0) return Failed(kNoDevice);
  *count = machine.devices;
  return kSuccess;
}

FAKE_API int cudaSetDevice(int device) {
  if (device < 0 || device >= TheMachine().devices) return Failed(kInvalidDevice);
  current_device = device;
  return kSuccess;
}

FAKE_API int cudaGetDevice(int* device) {
  *device = current_device;
  return kSuccess;
}

FAKE_API int cudaDeviceGetPCIBusId(char* text, int capacity, int device) {
  if (device < 0 || device >= TheMachine().devices) return Failed(kInvalidDevice);
  std::snprintf(text, static_cast<size_t>(capacity), "0000:%02x:00.0", TheMachine().one_board ? 1 : device + 1);
  return kSuccess;
}

FAKE_API int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  const int devices = TheMachine().devices;
  if (device < 0 || device >= devices || peer < 0 || peer >= devices) return Failed(kInvalidDevice);
  int one = -1;
  int other = -1;
  if (const char* apart = std::getenv("FAKE_CUDA_APART")) std::sscanf(apart, "%d,%d", &one, &other);
  *can = device != peer && !(std::min(device, peer) == one && std::max(device, peer) == other);
  return kSuccess;
}

FAKE_API int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}

FAKE_API int cudaStreamCreateWithPriority(void** stream, unsigned int, int) {
  auto made = MakeStream(current_device);
  Machine& machine = TheMachine();
  const std::lock_guard<std::mutex> lock(machine.mutex);
  *stream = made.get();
  machine.streams[made.get()] = std::move(made);
  return kSuccess;
}

FAKE_API int cudaStreamDestroy(void* handle) {
  Machine& machine = TheMachine();
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard<std::mutex> lock(machine.mutex);
    const auto found = machine.streams.find(handle);
    if (found == machine.streams.end()) return Failed(kInvalidHandle);
    stream = found->second;
    machine.streams.erase(found);
  }
  const std::lock_guard<std::mutex> lock(stream->mutex);
  stream->closing = true;
  stream->changed.notify_all();
  return kSuccess;
}

FAKE_API int cudaStreamWaitEvent(void* handle, void* event_handle, unsigned int) {
  const auto stream = StreamOf(handle);
  const auto event = EventOf(event_handle);
  if (!stream || !event) return Failed(kInvalidHandle);
  if (const auto mark = event->Last()) stream->Push([mark] { mark->Await(); });
  return kSuccess;
}

FAKE_API int cudaStreamQuery(void* handle) {
  const auto stream = StreamOf(handle);
  if (!stream) return Failed(kInvalidHandle);
  if (DisturbsACapture()) return Failed(kCaptureUnsupported);
  return stream->Idle() ? kSuccess : Failed(kNotReady);
}

FAKE_API int cudaStreamIsCapturing(void* handle, int* status) {
  const auto stream = StreamOf(handle);
  if (!stream) return Failed(kInvalidHandle);
  *status = stream->capturing ? 1 : 0;
  return kSuccess;
}

FAKE_API int cudaThreadExchangeStreamCaptureMode(int* mode) {
  if (*mode < 0 || *mode > 2) return Failed(kInvalidValue);
  std::swap(*mode, capture_mode);
  return kSuccess;
}

FAKE_API int cudaEventCreateWithFlags(void** event, unsigned int) {
  auto made = std::make_shared<Event>();
  Machine& machine = TheMachine();
  ++machine.events_made;
  const std::lock_guard<std::mutex> lock(machine.mutex);
  *event = made.get();
  machine.events[made.get()] = std::move(made);
  return kSuccess;
}

FAKE_API int cudaEventRecord(void* event_handle, void* handle) {
  const auto stream = StreamOf(handle);
  const auto event = EventOf(event_handle);
  if (!stream || !event) return Failed(kInvalidHandle);
  const auto mark = std::make_shared<Mark>();
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    event->last = mark;
  }
  stream->Push([mark] { mark->Reach(); });
  return kSuccess;
}

FAKE_API int cudaEventQuery(void* handle) {
  const auto event = EventOf(handle);
  if (!event) return Failed(kInvalidHandle);
  if (DisturbsACapture()) return Failed(kCaptureUnsupported);
  const auto mark = event->Last();
  return !mark || mark->Reached() ? kSuccess : Failed(kNotReady);
}

FAKE_API int cudaEventSynchronize(void* handle) {
  const auto event = EventOf(handle);
  if (!event) return Failed(kInvalidHandle);
  if (const auto mark = event->Last()) mark->Await();
  return kSuccess;
}

FAKE_API int cudaEventDestroy(void* handle) {
  Machine& machine = TheMachine();
  const std::lock_guard<std::mutex> lock(machine.mutex);
  return machine.events.erase(handle) == 1 ? kSuccess : Failed(kInvalidHandle);
}

FAKE_API int cudaMalloc(void** data, size_t bytes) {
  if (DisturbsACapture()) return Failed(kCaptureUnsupported);
  *data = bytes < kMost ? std::malloc(bytes) : nullptr;
  if (*data == nullptr) return Failed(kMemoryAllocation);
  std::memset(*data, 0xCD, bytes);
  Machine& machine = TheMachine();
  const std::lock_guard<std::mutex> lock(machine.mutex);
  machine.allocated.insert(*data);
  return kSuccess;
}

// Waits for the device, as CUDA's does.
FAKE_API int cudaFree(void* data) {
  if (data == nullptr) return kSuccess;
  Machine& machine = TheMachine();
  std::deque<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard<std::mutex> lock(machine.mutex);
    if (machine.allocated.erase(data) == 0) return Failed(kInvalidValue);
    for (const auto& [handle, stream] : machine.streams) {
      if (stream->device == current_device) streams.push_back(stream);
    }
    const auto null_stream = machine.null_streams.find(current_device);
    if (null_stream != machine.null_streams.end()) streams.push_back(null_stream->second);
  }
  for (const auto& stream : streams) stream->AwaitIdle();
  std::free(data);
  return kSuccess;
}

FAKE_API int cudaHostAlloc(void** data, size_t bytes, unsigned int) { return cudaMalloc(data, bytes); }
FAKE_API int cudaFreeHost(void* data) { return cudaFree(data); }

// Pinned until it is unregistered, and counted as an allocation until then.
FAKE_API int cudaHostRegister(void* data, size_t, unsigned int) {
  Machine& machine = TheMachine();
  const std::lock_guard<std::mutex> lock(machine.mutex);
  return machine.registered.insert(data).second ? kSuccess : Failed(kInvalidValue);
}
FAKE_API int cudaHostUnregister(void* data) {
  Machine& machine = TheMachine();
  const std::lock_guard<std::mutex> lock(machine.mutex);
  return machine.registered.erase(data) == 1 ? kSuccess : Failed(kInvalidValue);
}

FAKE_API int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* handle) {
  const auto stream = StreamOf(handle);
  if (!stream) return Failed(kInvalidHandle);
  if (bytes > 0) {
    stream->Push([=] {
      if (const int pause = TheMachine().copy_pause; pause > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(pause));
      }
      std::memcpy(to, from, bytes);
    });
  }
  return kSuccess;
}

FAKE_API int cudaMemsetAsync(void* data, int value, size_t bytes, void* handle) {
  const auto stream = StreamOf(handle);
  if (!stream) return Failed(kInvalidHandle);
  if (bytes > 0) stream->Push([=] { std::memset(data, value, bytes); });
  return kSuccess;
}

FAKE_API const char* cudaGetErrorName(int code) {
  switch (code) {
    case kSuccess:
      return "cudaSuccess";
    case kMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case kInvalidDevice:
      return "cudaErrorInvalidDevice";
    case kInvalidHandle:
      return "cudaErrorInvalidResourceHandle";
    default:
      return "cudaErrorFake";
  }
}

FAKE_API const char* cudaGetErrorString(int code) {
  switch (code) {
    case kMemoryAllocation:
      return "out of memory";
    case kInvalidDevice:
      return "invalid device ordinal";
    case kInvalidHandle:
      return "invalid resource handle";
    default:
      return "a fake error";
  }
}

FAKE_API int cudaGetLastError() { return std::exchange(last_error, kSuccess); }

void fake_cuda_set_devices(int devices) { TheMachine().devices = devices; }
void fake_cuda_set_driver(int version) { TheMachine().driver = version; }
void fake_cuda_set_runtime(int version) { TheMachine().runtime = version; }
void fake_cuda_fail_devices(int code) { TheMachine().device_failure = code; }

void fake_cuda_enqueue(void* stream, void (*run)(void*), void* argument) {
  const auto found = StreamOf(stream);
  if (!found) {
    std::fputs("fake CUDA: a kernel on a stream that does not exist\n", stderr);
    std::abort();
  }
  found->Push([=] { run(argument); });
}

void fake_cuda_delay(void* stream, int microseconds) {
  if (const auto found = StreamOf(stream)) {
    found->Push([=] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
  }
}

void fake_cuda_capture(void* stream, int on) {
  const auto found = StreamOf(stream);
  if (found && found->capturing.exchange(on != 0) != (on != 0)) TheMachine().captures += on != 0 ? 1 : -1;
}

void* fake_cuda_stream_create() {
  void* stream = nullptr;
  cudaStreamCreateWithPriority(&stream, 1, 0);
  return stream;
}

int fake_cuda_live_streams() {
  const std::lock_guard<std::mutex> lock(TheMachine().mutex);
  return static_cast<int>(TheMachine().streams.size());
}

int fake_cuda_live_events() {
  const std::lock_guard<std::mutex> lock(TheMachine().mutex);
  return static_cast<int>(TheMachine().events.size());
}

int fake_cuda_live_allocations() {
  const std::lock_guard<std::mutex> lock(TheMachine().mutex);
  return static_cast<int>(TheMachine().allocated.size() + TheMachine().registered.size());
}
void fake_cuda_slow_copies(int microseconds) { TheMachine().copy_pause = microseconds; }

int fake_cuda_events_made() { return TheMachine().events_made; }

}  // extern "C"
