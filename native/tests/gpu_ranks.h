// The ranks of one NCCL group as threads of one process, each with a device of the fake CUDA runtime.
#ifndef SPARK_ESTIMATOR_TESTS_GPU_RANKS_H_
#define SPARK_ESTIMATOR_TESTS_GPU_RANKS_H_

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/nccl_group.h"
#include "gpu_callers.h"

namespace spark_estimator::testing {

// One rank of a group.
struct Member {
  int rank = 0;
  int size = 1;
  NcclGroup* group = nullptr;
};

inline NcclUniqueId MakeId() {
  NcclUniqueId id;
  CHECK_OK(NcclGroup::MakeId(Fake().nccl, &id));
  return id;
}

// A test that hangs fails by this deadline.
inline NcclGroup::Options OptionsOf(int rank, int size, const NcclUniqueId& id) {
  NcclGroup::Options options;
  options.rank = rank;
  options.size = size;
  options.device = rank;
  options.id = id;
  options.deadline = Seconds(60);
  options.farewell = Seconds(60);
  return options;
}

inline void RunGroup(int size, const std::function<void(Member&)>& body) {
  const NcclUniqueId id = MakeId();
  RunThreads(size, [&](int rank) {
    std::unique_ptr<NcclGroup> group;
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, OptionsOf(rank, size, id), &group));
    Member me{rank, size, group.get()};
    body(me);
    CHECK_OK(group->AsyncError());
  });
}

// After a test: no group left anything behind.
inline void CheckNothingLeft() {
  CHECK_EQ(Fake().fake_nccl_live_comms(), 0);
  CHECK_EQ(Fake().fake_cuda_live_streams(), 0);
  CHECK_EQ(Fake().fake_cuda_live_events(), 0);
  CHECK_EQ(Fake().fake_cuda_live_allocations(), 0);
  Fake().fake_nccl_forget();
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_GPU_RANKS_H_
