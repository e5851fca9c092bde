// One tensor on a rank's GPU, and an engine's error if it does not reduce it.
#ifndef SPARK_ESTIMATOR_TESTS_GPU_ENGINE_PLAIN_H_
#define SPARK_ESTIMATOR_TESTS_GPU_ENGINE_PLAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpu_engine_ranks.h"

namespace spark_estimator::testing {

// One float32 tensor of 1000 elements on a rank's device, all of them `value`.
struct Plain {
  std::vector<uint8_t> input;
  DeviceMemory on_gpu;
  DeviceMemory result;

  Plain(GpuRank& gpu, double value)
      : input(ToBytes(SE_FLOAT32, std::vector<double>(1000, value))), on_gpu(input.size()), result(input.size()) {
    gpu.caller.Delay(500);
    gpu.caller.Upload(input, on_gpu.get());
  }
  Asked Sum(GpuRank& gpu, const std::string& name) { return Reduce(gpu, name, SE_SUM); }
  Asked Reduce(GpuRank& gpu, const std::string& name, int32_t reduce_op) {
    Asked asked(name, SE_ALLREDUCE, reduce_op);
    asked.With(on_gpu.get(), result.get(), {1000});
    return gpu.OnDevice(std::move(asked));
  }
  void CheckIs(GpuRank& gpu, double value) {
    const std::vector<double> wanted(1000, value);
    CHECK(ToDoubles(SE_FLOAT32, gpu.Read(result.get(), result.bytes())) == wanted);
  }
};

// The sentence of the call that has just returned `status`.
inline std::string ErrorOf(int32_t status) {
  CHECK(status != SE_OK && status != SE_IN_PROGRESS);
  return se_last_error();
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_GPU_ENGINE_PLAIN_H_
