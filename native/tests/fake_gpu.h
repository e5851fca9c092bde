// The fake CUDA and NCCL as tests use them: opened by path as the real ones are, with their own functions beside.
#ifndef SPARK_ESTIMATOR_TESTS_FAKE_GPU_H_
#define SPARK_ESTIMATOR_TESTS_FAKE_GPU_H_

#include <string>

#include "check.h"
#include "fakes/fake_cuda.h"
#include "fakes/fake_nccl.h"
#include "gpu/cuda_api.h"
#include "gpu/nccl_api.h"

namespace spark_estimator::testing {

inline void CheckOk(const Status& status, const char* file, int line) {
  if (!status.ok()) Fail(file, line, "status " + std::to_string(status.code()) + ": " + status.message());
}
#define CHECK_OK(expression) ::spark_estimator::testing::CheckOk((expression), __FILE__, __LINE__)

struct FakeGpu {
  CudaApi cuda;
  NcclApi nccl;

#define FAKE_FUNCTION(name) decltype(::name)* name = nullptr
  FAKE_FUNCTION(fake_cuda_set_devices);
  FAKE_FUNCTION(fake_cuda_set_driver);
  FAKE_FUNCTION(fake_cuda_set_runtime);
  FAKE_FUNCTION(fake_cuda_fail_devices);
  FAKE_FUNCTION(fake_cuda_enqueue);
  FAKE_FUNCTION(fake_cuda_delay);
  FAKE_FUNCTION(fake_cuda_capture);
  FAKE_FUNCTION(fake_cuda_slow_copies);
  FAKE_FUNCTION(fake_cuda_stream_create);
  FAKE_FUNCTION(fake_cuda_live_streams);
  FAKE_FUNCTION(fake_cuda_live_events);
  FAKE_FUNCTION(fake_cuda_live_allocations);
  FAKE_FUNCTION(fake_cuda_events_made);
  FAKE_FUNCTION(fake_nccl_version);
  FAKE_FUNCTION(fake_nccl_hang_init);
  FAKE_FUNCTION(fake_nccl_slowness);
  FAKE_FUNCTION(fake_nccl_fail_async);
  FAKE_FUNCTION(fake_nccl_refuse);
  FAKE_FUNCTION(fake_nccl_refuse_id);
  FAKE_FUNCTION(fake_nccl_ids_made);
  FAKE_FUNCTION(fake_nccl_calls);
  FAKE_FUNCTION(fake_nccl_forget);
  FAKE_FUNCTION(fake_nccl_live_comms);
  FAKE_FUNCTION(fake_nccl_live_operators);
#undef FAKE_FUNCTION

  FakeGpu() {
    CHECK_OK(CudaApi::Open(FAKE_CUDART, &cuda));
    CHECK_OK(NcclApi::Open(FAKE_NCCL, &nccl));
#define FAKE_FUNCTION(api, name) CHECK_OK(api.library.Resolve(#name, &name))
    FAKE_FUNCTION(cuda, fake_cuda_set_devices);
    FAKE_FUNCTION(cuda, fake_cuda_set_driver);
    FAKE_FUNCTION(cuda, fake_cuda_set_runtime);
    FAKE_FUNCTION(cuda, fake_cuda_fail_devices);
    FAKE_FUNCTION(cuda, fake_cuda_enqueue);
    FAKE_FUNCTION(cuda, fake_cuda_delay);
    FAKE_FUNCTION(cuda, fake_cuda_capture);
    FAKE_FUNCTION(cuda, fake_cuda_slow_copies);
    FAKE_FUNCTION(cuda, fake_cuda_stream_create);
    FAKE_FUNCTION(cuda, fake_cuda_live_streams);
    FAKE_FUNCTION(cuda, fake_cuda_live_events);
    FAKE_FUNCTION(cuda, fake_cuda_live_allocations);
    FAKE_FUNCTION(cuda, fake_cuda_events_made);
    FAKE_FUNCTION(nccl, fake_nccl_version);
    FAKE_FUNCTION(nccl, fake_nccl_hang_init);
    FAKE_FUNCTION(nccl, fake_nccl_slowness);
    FAKE_FUNCTION(nccl, fake_nccl_fail_async);
    FAKE_FUNCTION(nccl, fake_nccl_refuse);
    FAKE_FUNCTION(nccl, fake_nccl_refuse_id);
    FAKE_FUNCTION(nccl, fake_nccl_ids_made);
    FAKE_FUNCTION(nccl, fake_nccl_calls);
    FAKE_FUNCTION(nccl, fake_nccl_forget);
    FAKE_FUNCTION(nccl, fake_nccl_live_comms);
    FAKE_FUNCTION(nccl, fake_nccl_live_operators);
#undef FAKE_FUNCTION
  }
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_FAKE_GPU_H_
