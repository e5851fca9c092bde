// Engines whose ranks give GPU tensors of the fake CUDA: what their tests have in common.
#ifndef SPARK_ESTIMATOR_TESTS_GPU_ENGINE_RANKS_H_
#define SPARK_ESTIMATOR_TESTS_GPU_ENGINE_RANKS_H_

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu_ranks.h"
#include "ranks.h"
#include "spark_estimator/engine.h"

namespace spark_estimator::testing {

inline JobOptions OnGpu(Channel channel, int32_t operations) {
  JobOptions options;
  options.channel = channel;
  options.gpu_operations = operations;
  options.cuda_library = FAKE_CUDART;
  options.nccl_library = FAKE_NCCL;
  return options;
}

// A rank with a separate stream on its device.
struct GpuRank {
  Rank& me;
  Caller caller;
  std::mt19937_64 random;
  int device;

  explicit GpuRank(Rank& rank, uint64_t seed = 1, int on_device = -1)
      : me(rank), random(seed), device(on_device < 0 ? rank.rank : on_device) {
    CHECK_EQ(Fake().cuda.SetDevice(device), 0);
  }
  // Nothing is left behind that a framework would find after its next kernel.
  ~GpuRank() { CHECK_EQ(Fake().cuda.GetLastError(), 0); }
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;

  Asked OnDevice(Asked asked) {
    asked.request.place = SE_GPU;
    asked.request.device = device;
    asked.request.stream = caller.stream();
    return asked;
  }
  std::vector<uint8_t> Values(int32_t dtype, size_t count) {
    std::vector<double> values(count);
    const bool is_bool = dtype == SE_BOOL;
    uint64_t state = random();
    for (double& value : values) {
      state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's; the generator itself is slow
      value = static_cast<double>((state >> 33) % (is_bool ? 2 : 5)) + (is_bool ? 0 : 1);
    }
    return ToBytes(dtype, values);
  }
  std::vector<uint8_t> Read(const void* from, size_t bytes) {
    std::vector<uint8_t> got(bytes);
    if (bytes > 0) caller.Download(from, &got);
    caller.Synchronize();
    return got;
  }
  std::string Way() const {
    char text[2048];
    int64_t bytes = 0;
    CHECK_EQ(se_describe(me.engine, "gpu", text, sizeof(text), &bytes), SE_OK);
    return text;
  }
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_GPU_ENGINE_RANKS_H_
