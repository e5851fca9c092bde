// What tests of failing groups share: an operation, a wait, and what every group of two ranks refuses.
#ifndef SPARK_ESTIMATOR_TESTS_GPU_FAILURES_H_
#define SPARK_ESTIMATOR_TESTS_GPU_FAILURES_H_

#include <chrono>
#include <functional>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "gpu/gpu_group.h"
#include "gpu_callers.h"

namespace spark_estimator::testing {

inline const Reduction kSum{SE_FLOAT32, SE_SUM, 1, 1};

inline Status AllreduceOf(GpuGroup& group, void* data, size_t count, CudaEvent done = nullptr) {
  const ReduceTensor tensor{data, data, count};
  return group.Allreduce({&tensor, 1}, kSum, nullptr, done);
}

// What another thread or rank does shows soon; a test that hangs fails after a minute.
inline void Await(const std::function<bool()>& happened, const char* what) {
  for (const Time end = After(Seconds(60)); !happened();) {
    if (Clock::now() > end) Fail(__FILE__, __LINE__, std::string("in vain: ") + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// `missing`: reductions that the group does not offer.
inline void CheckRefusals(GpuGroup& group, std::initializer_list<Reduction> missing) {
  const DeviceMemory memory(64);
  const ReduceTensor tensor{memory.get(), memory.get(), 4};
  for (const Reduction& reduction : missing) {
    CHECK(!group.Offers(SE_ALLREDUCE, reduction));
    CHECK(!group.Offers(SE_REDUCESCATTER, reduction));
    const Status status = group.Allreduce({&tensor, 1}, reduction, nullptr, nullptr);
    CHECK_EQ(status.code(), SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(status.message(), DtypeName(reduction.dtype) + " by " + ReduceOpName(reduction.reduce_op));
  }
  const std::vector<size_t> three = {1, 2, 3};
  const GatherTensor gather{memory.get(), memory.get(), three};
  const ScatterTensor scatter{memory.get(), memory.get(), three};
  const BroadcastTensor broadcast{memory.get(), memory.get(), 4};
  const ReduceTensor nowhere{memory.get(), nullptr, 4};
  CHECK_EQ(group.Allreduce({&nowhere, 1}, kSum, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Broadcast({&broadcast, 1}, 2, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Broadcast({&broadcast, 1}, -1, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Allgather({&gather, 1}, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Reducescatter({&scatter, 1}, kSum, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Alltoall(memory.get(), three, memory.get(), three, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_GPU_FAILURES_H_
