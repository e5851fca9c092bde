// Tensors on the devices of the fake CUDA runtime, filled and read through streams of the callers' own.
#ifndef SPARK_ESTIMATOR_TESTS_GPU_CALLERS_H_
#define SPARK_ESTIMATOR_TESTS_GPU_CALLERS_H_

#include <cstring>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/kernels/halves.h"
#include "check.h"
#include "fake_gpu.h"

namespace spark_estimator::testing {

inline size_t At(int value) { return static_cast<size_t>(value); }

// Values of a dtype as float64, and back.
template <typename T>
std::vector<uint8_t> Typed(const std::vector<double>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}
template <typename T>
std::vector<double> Untyped(const std::vector<uint8_t>& bytes) {
  std::vector<double> values(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(value);
  }
  return values;
}
inline std::vector<uint8_t> ToBytes(int32_t dtype, const std::vector<double>& values) {
  if (IsHalf(dtype)) {
    const std::vector<float> floats(values.begin(), values.end());
    std::vector<uint8_t> bytes(values.size() * 2);
    HalvesFromFloat32(dtype, bytes.data(), floats.data(), floats.size());
    return bytes;
  }
  switch (dtype) {
    case SE_INT8:
      return Typed<int8_t>(values);
    case SE_INT16:
      return Typed<int16_t>(values);
    case SE_INT32:
      return Typed<int32_t>(values);
    case SE_INT64:
      return Typed<int64_t>(values);
    case SE_FLOAT32:
      return Typed<float>(values);
    case SE_FLOAT64:
      return Typed<double>(values);
    default:
      return Typed<uint8_t>(values);
  }
}
inline std::vector<double> ToDoubles(int32_t dtype, const std::vector<uint8_t>& bytes) {
  if (IsHalf(dtype)) {
    std::vector<float> floats(bytes.size() / 2);
    HalvesToFloat32(dtype, floats.data(), bytes.data(), floats.size());
    return {floats.begin(), floats.end()};
  }
  switch (dtype) {
    case SE_INT8:
      return Untyped<int8_t>(bytes);
    case SE_INT16:
      return Untyped<int16_t>(bytes);
    case SE_INT32:
      return Untyped<int32_t>(bytes);
    case SE_INT64:
      return Untyped<int64_t>(bytes);
    case SE_FLOAT32:
      return Untyped<float>(bytes);
    case SE_FLOAT64:
      return Untyped<double>(bytes);
    default:
      return Untyped<uint8_t>(bytes);
  }
}

inline FakeGpu& Fake() {
  static FakeGpu fake;
  return fake;
}

// Device memory, poisoned by the fake.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes) {
    if (bytes > 0) CHECK_EQ(Fake().cuda.Malloc(&data_, bytes), 0);
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory() { Fake().cuda.Free(data_); }

  void* get() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// A caller's stream: what it does before an operation, and behind it, takes a while.
class Caller {
 public:
  Caller() : stream_(static_cast<CudaStream>(Fake().fake_cuda_stream_create())) {}
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  ~Caller() {
    Synchronize();
    Fake().cuda.StreamDestroy(stream_);
  }

  CudaStream stream() const { return stream_; }
  void Delay(int microseconds) { Fake().fake_cuda_delay(stream_, microseconds); }
  // Later work waits until the latch is counted down. The latch must live until the stream is synchronised.
  void Hold(std::latch* until) {
    Fake().fake_cuda_enqueue(stream_, [](void* latch) { static_cast<std::latch*>(latch)->wait(); }, until);
  }

  // `bytes` must live until the stream is synchronised.
  void Upload(const std::vector<uint8_t>& bytes, void* to) {
    CHECK_EQ(Fake().cuda.MemcpyAsync(to, bytes.data(), bytes.size(), kCudaMemcpyDefault, stream_), 0);
  }
  void Download(const void* from, std::vector<uint8_t>* bytes) {
    CHECK_EQ(Fake().cuda.MemcpyAsync(bytes->data(), from, bytes->size(), kCudaMemcpyDefault, stream_), 0);
  }
  void Synchronize() {
    CudaEvent event = nullptr;
    CHECK_EQ(Fake().cuda.EventCreateWithFlags(&event, kCudaEventDisableTiming), 0);
    CHECK_EQ(Fake().cuda.EventRecord(event, stream_), 0);
    CHECK_EQ(Fake().cuda.EventSynchronize(event), 0);
    CHECK_EQ(Fake().cuda.EventDestroy(event), 0);
  }

  // An operation between this stream's earlier and later work; its events are returned at once.
  template <typename Group>
  Status Order(Group& group, const std::function<Status(CudaEvent ready, CudaEvent done)>& operation) {
    const CudaApi& cuda = Fake().cuda;
    CudaEvent ready = nullptr;
    CudaEvent done = nullptr;
    CHECK_OK(group.events().Take(&ready));
    CHECK_OK(group.events().Take(&done));
    CHECK_EQ(cuda.EventRecord(ready, stream_), 0);
    const Status status = operation(ready, done);
    if (status.ok()) CHECK_EQ(cuda.StreamWaitEvent(stream_, done, 0), 0);
    group.events().Give(ready);
    group.events().Give(done);
    return status;
  }

 private:
  CudaStream stream_;
};

// `body` as each of `size` threads, whose device is its rank.
inline void RunThreads(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      CHECK_EQ(Fake().cuda.SetDevice(rank), 0);
      body(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_GPU_CALLERS_H_
