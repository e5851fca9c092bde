// The ranks of one SharedGpuGroup, as threads of one process or as processes, all on one device of the fake CUDA; and
// how they meet on the host, which is the engine's part otherwise.
#ifndef SPARK_ESTIMATOR_TESTS_ONE_GPU_RANKS_H_
#define SPARK_ESTIMATOR_TESTS_ONE_GPU_RANKS_H_

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "fakes/fake_cuda_driver.h"
#include "fakes/fake_nvrtc.h"
#include "gpu/shared_gpu_group.h"
#include "gpu_callers.h"

namespace spark_estimator::testing {

// What the kernels are there for.
inline constexpr int32_t kDtypes[] = {SE_UINT8,   SE_INT8,     SE_INT16,   SE_INT32,   SE_INT64,
                                      SE_FLOAT16, SE_BFLOAT16, SE_FLOAT32, SE_FLOAT64, SE_BOOL};
inline constexpr int32_t kReduceOps[] = {SE_SUM, SE_AVERAGE, SE_MIN, SE_MAX, SE_PRODUCT};

// The driver and NVRTC beside the runtime, opened by path as the real ones are.
struct FakeDriver {
  DriverApi driver;
  NvrtcApi nvrtc;
  std::unique_ptr<DeviceKernels> kernels;

#define FAKE_FUNCTION(name) decltype(::name)* name = nullptr
  FAKE_FUNCTION(fake_driver_attribute);
  FAKE_FUNCTION(fake_driver_uuids);
  FAKE_FUNCTION(fake_driver_fail_launch);
  FAKE_FUNCTION(fake_driver_launches);
  FAKE_FUNCTION(fake_nvrtc_version);
  FAKE_FUNCTION(fake_nvrtc_processors);
  FAKE_FUNCTION(fake_nvrtc_fail);
  FAKE_FUNCTION(fake_nvrtc_compilations);
  FAKE_FUNCTION(fake_nvrtc_live_programs);
  FAKE_FUNCTION(fake_cuda_live_mappings);
  FAKE_FUNCTION(fake_cuda_fail_export);
  FAKE_FUNCTION(fake_cuda_refuse_open);
  FAKE_FUNCTION(fake_cuda_enqueue);
  FAKE_FUNCTION(fake_cuda_pretend_process);
#undef FAKE_FUNCTION

  FakeDriver() {
    CHECK_OK(DriverApi::Open(FAKE_CUDA_DRIVER, &driver));
    CHECK_OK(NvrtcApi::Open(FAKE_NVRTC, &nvrtc));
    kernels = std::make_unique<DeviceKernels>(driver, nvrtc);
#define FAKE_FUNCTION(library, name) CHECK_OK((library).Resolve(#name, &name))
    FAKE_FUNCTION(driver.library, fake_driver_attribute);
    FAKE_FUNCTION(driver.library, fake_driver_uuids);
    FAKE_FUNCTION(driver.library, fake_driver_fail_launch);
    FAKE_FUNCTION(driver.library, fake_driver_launches);
    FAKE_FUNCTION(nvrtc.library, fake_nvrtc_version);
    FAKE_FUNCTION(nvrtc.library, fake_nvrtc_processors);
    FAKE_FUNCTION(nvrtc.library, fake_nvrtc_fail);
    FAKE_FUNCTION(nvrtc.library, fake_nvrtc_compilations);
    FAKE_FUNCTION(nvrtc.library, fake_nvrtc_live_programs);
    FAKE_FUNCTION(Fake().cuda.library, fake_cuda_live_mappings);
    FAKE_FUNCTION(Fake().cuda.library, fake_cuda_fail_export);
    FAKE_FUNCTION(Fake().cuda.library, fake_cuda_refuse_open);
    FAKE_FUNCTION(Fake().cuda.library, fake_cuda_enqueue);
    FAKE_FUNCTION(Fake().cuda.library, fake_cuda_pretend_process);
#undef FAKE_FUNCTION
  }
};

inline FakeDriver& Driver() {
  static FakeDriver driver;
  return driver;
}

// An allgather of ranks in memory that forked processes share, too.
class HostExchange {
 public:
  static constexpr int kRanks = 8;
  static constexpr size_t kBytes = 4096;

  struct Room {
    std::atomic<uint64_t> posted[kRanks];
    std::atomic<int> lost{-1};  // a rank that does not come any more
    std::atomic<int> calls{0};
    uint8_t data[2][kRanks][kBytes];
  };
  struct Unmap {
    void operator()(Room* room) const { munmap(room, sizeof(Room)); }
  };
  using RoomPtr = std::unique_ptr<Room, Unmap>;

  static RoomPtr MakeRoom() {
    void* memory = mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return RoomPtr(new (memory) Room);
  }

  HostExchange(Room* room, int rank, int size) : room_(room), rank_(rank), size_(size) {}

  Status operator()(const void* mine, size_t bytes, void* all) {
    CHECK(bytes <= kBytes);
    ++room_->calls;
    auto& data = room_->data[round_++ % 2];
    if (bytes > 0) std::memcpy(data[rank_], mine, bytes);
    room_->posted[rank_] = round_;
    for (int rank = 0; rank < size_; ++rank) {
      for (const Time end = After(Seconds(60)); room_->posted[rank] < round_;) {
        if (room_->lost >= 0) return Status(SE_PEER_LOST, "rank " + std::to_string(room_->lost) + " has died");
        if (Clock::now() > end) return Status(SE_TIMED_OUT, "rank " + std::to_string(rank) + " does not come");
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      if (bytes > 0) std::memcpy(static_cast<uint8_t*>(all) + static_cast<size_t>(rank) * bytes, data[rank], bytes);
    }
    return Status::Ok();
  }

 private:
  Room* const room_;
  const int rank_;
  const int size_;
  uint64_t round_ = 0;
};

// A few chunks are enough for most tensors of the tests.
inline constexpr size_t kSmallSlot = 2048;

// A test that hangs fails by this deadline.
inline SharedGpuGroup::Options OptionsOf(HostExchange::Room* room, int rank, int size, size_t slot_bytes = kSmallSlot) {
  SharedGpuGroup::Options options;
  options.rank = rank;
  options.size = size;
  options.device = 0;
  options.slot_bytes = slot_bytes;
  options.deadline = Seconds(60);
  options.farewell = Seconds(60);
  options.exchange = HostExchange(room, rank, size);
  return options;
}

// One rank of a group.
struct Sharer {
  int rank = 0;
  int size = 1;
  SharedGpuGroup* group = nullptr;
  HostExchange::Room* room = nullptr;
};

inline void RunSharer(const SharedGpuGroup::Options& options, HostExchange::Room* room,
                      const std::function<void(Sharer&)>& body) {
  std::unique_ptr<SharedGpuGroup> group;
  CHECK_OK(SharedGpuGroup::Create(Fake().cuda, *Driver().kernels, options, &group));
  Sharer me{options.rank, options.size, group.get(), room};
  body(me);
  CHECK_OK(group->AsyncError());
}

inline void OnOneGpu(int size, const std::function<void(int rank)>& body) {
  RunThreads(
      size, [](int) { return 0; },
      [&](int rank) {
        Driver().fake_cuda_pretend_process(1 + rank);
        body(rank);
      });
}

// As threads.
inline void ShareGpu(int size, size_t slot_bytes, const std::function<void(Sharer&)>& body) {
  const HostExchange::RoomPtr room = HostExchange::MakeRoom();
  OnOneGpu(size, [&](int rank) { RunSharer(OptionsOf(room.get(), rank, size, slot_bytes), room.get(), body); });
}

// As processes: before any thread of this one runs.
inline std::vector<pid_t> StartProcesses(int size, const std::function<void(int rank)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    alarm(100);
    body(rank);
    _exit(0);
  }
  return children;
}
inline void AwaitProcesses(const std::vector<pid_t>& children) {
  for (const pid_t child : children) {
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
}

// After a test: no group left anything behind, but for `buffers` of broken ones.
inline void CheckNothingLeft(int buffers = 0) {
  CHECK_EQ(Fake().fake_cuda_live_streams(), 0);
  CHECK_EQ(Fake().fake_cuda_live_events(), 0);
  CHECK_EQ(Fake().fake_cuda_live_allocations(), buffers);
  CHECK_EQ(Driver().fake_cuda_live_mappings(), 0);
  CHECK_EQ(Driver().fake_nvrtc_live_programs(), 0);
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_ONE_GPU_RANKS_H_
