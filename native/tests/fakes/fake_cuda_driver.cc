// A CUDA driver without a GPU, for tests: its kernels are those of gpu/device_code.h, compiled for the host and run
// thread by thread as tasks on the fake runtime's streams.
//
// A module is what the fake NVRTC made: it names the processor and the dtype, and has the kernels of no other.
#include "fake_cuda_driver.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda.h"

// --- the words of CUDA C++, for one thread of a device at a time -----------------------------------------------------

namespace {

struct Dim {
  unsigned int x = 0;
  unsigned int y = 0;
  unsigned int z = 0;
};
thread_local Dim blockIdx;
thread_local Dim threadIdx;
thread_local Dim blockDim;
thread_local Dim gridDim;

inline void __threadfence_system() {}  // the atomics below order what is before them

inline unsigned long long __ldcv(const unsigned long long* address) {
  return __atomic_load_n(address, __ATOMIC_ACQUIRE);
}

inline unsigned long long atomicMax_system(unsigned long long* address, unsigned long long value) {
  unsigned long long found = __atomic_load_n(address, __ATOMIC_ACQUIRE);
  while (found < value &&
         !__atomic_compare_exchange_n(address, &found, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
  return found;
}

}  // namespace

#define __device__
#define __global__
#define __grid_constant__ &
#include "gpu/device_code.h"

namespace {

namespace device = spark_estimator::device;

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kInvalidImage = 200;
constexpr int kNotFound = 500;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

struct Kernel {
  const char* name;
  void (*copy)(const device::CopyArguments&) = nullptr;
  void (*tell)(const device::TellArguments&) = nullptr;
  void (*reduce)(const device::ReduceArguments&) = nullptr;
};

#define FAKE_REDUCE(name) {"se_reduce_" #name, nullptr, nullptr, se_reduce_##name}
#define FAKE_REDUCES(name) \
  FAKE_REDUCE(name##_sum), FAKE_REDUCE(name##_product), FAKE_REDUCE(name##_min), FAKE_REDUCE(name##_max)
const Kernel kKernels[] = {{"se_copy", se_copy},      {"se_tell", nullptr, se_tell}, FAKE_REDUCES(uint8),
                           FAKE_REDUCES(int8),        FAKE_REDUCES(int16),           FAKE_REDUCES(int32),
                           FAKE_REDUCES(int64),       FAKE_REDUCES(float16),         FAKE_REDUCES(bfloat16),
                           FAKE_REDUCES(float32),     FAKE_REDUCES(float64),         FAKE_REDUCE(uint8_average),
                           FAKE_REDUCE(int8_average), FAKE_REDUCE(int16_average),    FAKE_REDUCE(int32_average),
                           FAKE_REDUCE(bool_or),      FAKE_REDUCE(bool_and)};
const char* const kDtypes[] = {"uint8",   "int8",     "int16",   "int32",   "int64",
                               "float16", "bfloat16", "float32", "float64", "bool"};

struct Module {
  int dtype = -1;
};

struct Context {
  int device = 0;
};

struct Driver {
  std::mutex mutex;
  std::map<int, int> attributes = {{kCapabilityMajor, 9}, {kCapabilityMinor, 0}};
  std::vector<std::string> uuids;
  std::map<int, std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<Module>> modules;
  std::atomic<int> launches{0};
  std::atomic<int> launches_until_failure{-1};
  std::atomic<int> failure{0};
};

std::vector<std::string> Split(const std::string& names) {
  std::vector<std::string> found;
  for (size_t begin = 0; begin < names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    found.push_back(names.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

// Never destroyed: streams' threads may outlive main.
Driver& TheDriver() {
  static Driver* const driver = [] {
    auto* made = new Driver;
    if (const char* names = std::getenv("FAKE_CUDA_UUIDS")) made->uuids = Split(names);
    return made;
  }();
  return *driver;
}

int AttributeOf(int attribute) {
  Driver& driver = TheDriver();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  const auto found = driver.attributes.find(attribute);
  return found == driver.attributes.end() ? 1 : found->second;
}

// By thread, as in CUDA: the contexts that were pushed, with the device that was current before.
struct Pushed {
  Context* context;
  int device_before;
};
thread_local std::vector<Pushed> pushed;

// What a launch leaves with the stream.
struct Launched {
  Kernel kernel;
  Dim grid;
  Dim block;
  device::CopyArguments copy;
  device::TellArguments tell;
  device::ReduceArguments reduce;

  void Thread() const {
    if (kernel.copy != nullptr) kernel.copy(copy);
    if (kernel.tell != nullptr) kernel.tell(tell);
    if (kernel.reduce != nullptr) kernel.reduce(reduce);
  }

  static void Run(void* argument) {
    const std::unique_ptr<Launched> self(static_cast<Launched*>(argument));
    gridDim = self->grid;
    blockDim = self->block;
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) self->Thread();
      }
    }
  }
};

struct Waiting {
  const unsigned long long* address;
  uint64_t value;

  static void Run(void* argument) {
    const std::unique_ptr<Waiting> self(static_cast<Waiting*>(argument));
    while (static_cast<int64_t>(__atomic_load_n(self->address, __ATOMIC_ACQUIRE) - self->value) < 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
};

}  // namespace

extern "C" {

FAKE_API int cudaGetDeviceCount(int* count);
FAKE_API int cudaGetDevice(int* device);
FAKE_API int cudaSetDevice(int device);

FAKE_API int cuInit(unsigned int flags) { return flags == 0 ? kSuccess : kInvalidValue; }

FAKE_API int cuDeviceGet(int* device, int ordinal) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != kSuccess || ordinal < 0 || ordinal >= count) return 101;
  *device = ordinal;
  return kSuccess;
}

FAKE_API int cuDeviceGetUuid_v2(char* uuid, int ordinal) {
  Driver& driver = TheDriver();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  const auto place = static_cast<size_t>(ordinal);
  std::string name = "device " + std::to_string(ordinal);
  if (place < driver.uuids.size()) name = driver.uuids[place];
  name.resize(16, '\0');
  std::memcpy(uuid, name.data(), 16);
  return kSuccess;
}

FAKE_API int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = AttributeOf(attribute);
  return kSuccess;
}

FAKE_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  Driver& driver = TheDriver();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  auto& found = driver.contexts[device];
  if (!found) found = std::make_unique<Context>(Context{device});
  *context = found.get();
  return kSuccess;
}

FAKE_API int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }

FAKE_API int cuCtxPushCurrent_v2(void* handle) {
  auto* context = static_cast<Context*>(handle);
  if (context == nullptr) return kInvalidContext;
  int before = 0;
  cudaGetDevice(&before);
  pushed.push_back({context, before});
  return cudaSetDevice(context->device);
}

FAKE_API int cuCtxPopCurrent_v2(void** context) {
  if (pushed.empty()) return kInvalidContext;
  *context = pushed.back().context;
  cudaSetDevice(pushed.back().device_before);
  pushed.pop_back();
  return kSuccess;
}

FAKE_API int cuModuleLoadData(void** module, const void* image) {
  if (pushed.empty()) return kInvalidContext;
  char kind[16] = {};
  int processor = 0;
  int dtype = 0;
  if (std::sscanf(static_cast<const char*>(image), "fake image %15[a-z]_%d dtype %d", kind, &processor, &dtype) != 3) {
    return kInvalidImage;
  }
  const int own = 10 * AttributeOf(kCapabilityMajor) + AttributeOf(kCapabilityMinor);
  const bool fits = std::string(kind) == "sm" ? processor == own : processor <= own;
  if (!fits) return kInvalidImage;
  Driver& driver = TheDriver();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  *module = driver.modules.emplace_back(std::make_unique<Module>(Module{dtype})).get();
  return kSuccess;
}

FAKE_API int cuModuleGetFunction(const void** function, void* module, const char* name) {
  const int dtype = static_cast<Module*>(module)->dtype;
  const std::string wanted = name;
  const std::string prefix = "se_reduce_" + (dtype < 0 ? std::string("of no type") : std::string(kDtypes[dtype])) + "_";
  for (const Kernel& kernel : kKernels) {
    if (wanted != kernel.name) continue;
    if (kernel.reduce != nullptr && wanted.compare(0, prefix.size(), prefix) != 0) continue;
    *function = &kernel;
    return kSuccess;
  }
  return kNotFound;
}

FAKE_API int cuLaunchKernel(const void* function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                            unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int,
                            void* stream, void** arguments, void**) {
  Driver& driver = TheDriver();
  if (pushed.empty()) return kInvalidContext;
  if (grid_x == 0 || grid_y == 0 || grid_y > 65535 || grid_z != 1 || block_x == 0 || block_x > 1024 || block_y != 1 ||
      block_z != 1) {
    return kInvalidValue;
  }
  ++driver.launches;
  if (driver.launches_until_failure >= 0 && driver.launches_until_failure.fetch_sub(1) == 0) return driver.failure;
  auto launched = std::make_unique<Launched>();
  launched->kernel = *static_cast<const Kernel*>(function);
  launched->grid = {grid_x, grid_y, grid_z};
  launched->block = {block_x, block_y, block_z};
  if (launched->kernel.copy != nullptr) std::memcpy(&launched->copy, arguments[0], sizeof(launched->copy));
  if (launched->kernel.tell != nullptr) std::memcpy(&launched->tell, arguments[0], sizeof(launched->tell));
  if (launched->kernel.reduce != nullptr) std::memcpy(&launched->reduce, arguments[0], sizeof(launched->reduce));
  fake_cuda_enqueue(stream, Launched::Run, launched.release());
  return kSuccess;
}

FAKE_API int cuStreamWaitValue64_v2(void* stream, unsigned long long address, uint64_t value, unsigned int flags) {
  if (pushed.empty()) return kInvalidContext;
  if (flags != 0 || address % 8 != 0) return kInvalidValue;
  fake_cuda_enqueue(stream, Waiting::Run, new Waiting{reinterpret_cast<const unsigned long long*>(address), value});
  return kSuccess;
}

FAKE_API int cuGetErrorName(int code, const char** name) {
  *name = code == kInvalidImage ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_FAKE";
  return kSuccess;
}

FAKE_API int cuGetErrorString(int, const char** text) {
  *text = "a fake error of the driver";
  return kSuccess;
}

void fake_driver_attribute(int attribute, int value) {
  Driver& driver = TheDriver();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  driver.attributes[attribute] = value;
}

void fake_driver_uuids(const char* names) {
  Driver& driver = TheDriver();
  const std::lock_guard<std::mutex> lock(driver.mutex);
  driver.uuids = Split(names);
}

void fake_driver_fail_launch(int after, int code) {
  TheDriver().failure = code;
  TheDriver().launches_until_failure = after;
}

int fake_driver_launches() { return TheDriver().launches; }

}  // extern "C"
