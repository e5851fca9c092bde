// CUDA and NCCL opened at run time: messages for missing or too old libraries; and the calls of NCCL.
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "check.h"
#include "fake_gpu.h"
#include "gpu/driver_api.h"
#include "gpu/events.h"
#include "gpu/nccl_reduce.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::FakeGpu;
using spark_estimator::testing::RunTests;

FakeGpu& Fake() {
  static FakeGpu fake;
  return fake;
}

void LibrariesAreOpenedByPath() {
  CudaApi cuda;
  CHECK_OK(CudaApi::Open(FAKE_CUDART, &cuda));
  CHECK_EQ(cuda.version, 12040);
  CHECK_CONTAINS(cuda.library.path(), "fake_cudart");
  NcclApi nccl;
  CHECK_OK(NcclApi::Open(FAKE_NCCL, &nccl));
  CHECK_EQ(nccl.version, 22703);
  CHECK_CONTAINS(nccl.library.path(), "fake_nccl");
  DriverApi driver;
  CHECK_OK(DriverApi::Open(FAKE_CUDA_DRIVER, &driver));
  CHECK_CONTAINS(driver.library.path(), "libcuda.so.1");
}

void AMissingLibraryIsNamedWithItsPackage() {
  CudaApi cuda;
  const Status no_cuda = CudaApi::Open("/nowhere/libcudart.so.12", &cuda);
  CHECK_EQ(no_cuda.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(no_cuda.message(), "/nowhere/libcudart.so.12");
  CHECK_CONTAINS(no_cuda.message(), "No such file");
  CHECK_CONTAINS(no_cuda.message(), "nvidia-cuda-runtime-cu12");
  CHECK(cuda.Malloc == nullptr);
  NcclApi nccl;
  const Status no_nccl = NcclApi::Open("/nowhere/libnccl.so.2", &nccl);
  CHECK_EQ(no_nccl.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(no_nccl.message(), "/nowhere/libnccl.so.2");
  CHECK_CONTAINS(no_nccl.message(), "nvidia-nccl-cu12");
  DriverApi driver;
  const Status no_driver = DriverApi::Open("/nowhere/libcuda.so.1", &driver);
  CHECK_EQ(no_driver.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(no_driver.message(), "/nowhere/libcuda.so.1");
  CHECK_CONTAINS(no_driver.message(), "comes with the NVIDIA driver");
}

// Whether this machine has them or not.
void WithoutAPathOnlyTheDriverIsLookedFor() {
  CudaApi cuda;
  CHECK_CONTAINS(CudaApi::Open("", &cuda).message(), "no CUDA runtime: it is neither loaded nor in a wheel");
  NcclApi nccl;
  CHECK_CONTAINS(NcclApi::Open("", &nccl).message(), "no NCCL: it is neither loaded nor in a wheel");
  DriverApi driver;
  if (const Status status = DriverApi::Open("", &driver); !status.ok()) {
    CHECK_CONTAINS(status.message(), "libcuda.so.1");
  }
}

void AMissingFunctionIsNamed() {
  NcclApi nccl;
  const Status status = NcclApi::Open(FAKE_CUDART, &nccl);
  CHECK_EQ(status.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(status.message(), "ncclGetVersion");
  CHECK_CONTAINS(status.message(), "fake_cudart");
  DriverApi driver;
  CHECK_CONTAINS(DriverApi::Open(FAKE_NCCL, &driver).message(), "has no function cuInit");
  SharedObject nothing;
  void (*function)() = nullptr;
  CHECK_EQ(nothing.Resolve("anything", &function).code(), SE_INTERNAL);
}

void OldLibrariesAreRefused() {
  Fake().fake_cuda_set_runtime(11080);
  CudaApi cuda;
  const Status old_cuda = CudaApi::Open(FAKE_CUDART, &cuda);
  Fake().fake_cuda_set_runtime(12040);
  CHECK_CONTAINS(old_cuda.message(), "11.8");
  CHECK_CONTAINS(old_cuda.message(), "12.0");
  for (const auto& [version, name] : {std::pair{21304, "2.13.4"}, std::pair{2804, "2.8.4"}}) {
    Fake().fake_nccl_version(version);
    NcclApi nccl;
    const Status old_nccl = NcclApi::Open(FAKE_NCCL, &nccl);
    CHECK_EQ(old_nccl.code(), SE_SYSTEM_ERROR);
    CHECK_CONTAINS(old_nccl.message(), name);
    CHECK_CONTAINS(old_nccl.message(), "2.14.0");
    CHECK(nccl.AllReduce == nullptr);
  }
  Fake().fake_nccl_version(22703);
}

void AProbeSaysWhatToDo() {
  FakeGpu& fake = Fake();
  CudaMachine machine;
  CHECK_OK(fake.cuda.Probe(&machine));
  CHECK_EQ(machine.devices, 8);
  CHECK_EQ(machine.driver_version, 12080);
  CHECK_EQ(machine.runtime_version, 12040);

  const auto says = [&](const std::string& what) {
    const Status status = fake.cuda.Probe(&machine);
    CHECK_EQ(status.code(), SE_SYSTEM_ERROR);
    CHECK_CONTAINS(status.message(), what);
    CHECK_EQ(machine.devices, 0);
    CHECK_EQ(fake.cuda.GetLastError(), 0);
  };
  fake.fake_cuda_set_devices(0);
  says("CUDA_VISIBLE_DEVICES");
  fake.fake_cuda_set_devices(8);
  fake.fake_cuda_set_driver(11040);
  says("it knows CUDA up to 11.4");
  says("is 12.4");
  machine = {};
  fake.fake_cuda_set_driver(0);
  says("no NVIDIA driver was found");
  fake.fake_cuda_set_driver(12080);
  for (const auto& [code, what] :
       {std::pair{kCudaStubLibrary, "stub"}, std::pair{kCudaSystemDriverMismatch, "kernel module"},
        std::pair{kCudaSystemNotReady, "nvidia-fabricmanager"}, std::pair{999, "CUDA error 999"}}) {
    fake.fake_cuda_fail_devices(code);
    says(what);
  }
  fake.fake_cuda_fail_devices(0);
}

void FailuresCarryCudasWords() {
  const CudaApi& cuda = Fake().cuda;
  CHECK_OK(cuda.Check(0, "nothing"));
  void* data = nullptr;
  const Status status = cuda.Check(cuda.Malloc(&data, size_t{1} << 50), "allocating much");
  CHECK_EQ(status.code(), SE_NO_MEMORY);
  CHECK_CONTAINS(status.message(), "allocating much: out of memory (cudaErrorMemoryAllocation, CUDA error 2)");
  CHECK_EQ(cuda.Check(kCudaInvalidDevice, "x").code(), SE_SYSTEM_ERROR);
}

void AThreadGetsItsDeviceBack() {
  const CudaApi& cuda = Fake().cuda;
  CHECK_EQ(cuda.SetDevice(3), 0);
  int device = -1;
  {
    const CudaDeviceScope scope(cuda, 5);
    CHECK_OK(scope.status());
    CHECK_EQ(cuda.GetDevice(&device), 0);
    CHECK_EQ(device, 5);
  }
  cuda.GetDevice(&device);
  CHECK_EQ(device, 3);
  {
    const CudaDeviceScope scope(cuda, 99);
    CHECK_CONTAINS(scope.status().message(), "99");
  }
  cuda.GetDevice(&device);
  CHECK_EQ(device, 3);
  CHECK_EQ(cuda.SetDevice(0), 0);
}

void AStreamUnderCaptureIsRefused() {
  FakeGpu& fake = Fake();
  auto* const stream = static_cast<CudaStream>(fake.fake_cuda_stream_create());
  CHECK_OK(CheckNotCapturing(fake.cuda, stream));
  fake.fake_cuda_capture(stream, 1);
  const Status status = CheckNotCapturing(fake.cuda, stream);
  CHECK_EQ(status.code(), SE_INVALID_ARGUMENT);
  CHECK_CONTAINS(status.message(), "CUDA graph");
  fake.cuda.StreamDestroy(stream);
}

void EventsAreUsedAgain() {
  FakeGpu& fake = Fake();
  const int made = fake.fake_cuda_events_made();
  {
    EventPool pool(fake.cuda, 2);
    for (int i = 0; i < 100; ++i) {
      CudaEvent a = nullptr;
      CudaEvent b = nullptr;
      CHECK_OK(pool.Take(&a));
      CHECK_OK(pool.Take(&b));
      CHECK(a != b);
      pool.Give(a);
      pool.Give(b);
    }
    CHECK_EQ(fake.fake_cuda_live_events(), 2);
  }
  CHECK_EQ(fake.fake_cuda_events_made() - made, 2);
  CHECK_EQ(fake.fake_cuda_live_events(), 0);
}

constexpr int32_t kReduceOps[] = {SE_AVERAGE, SE_SUM, SE_ADASUM, SE_MIN, SE_MAX, SE_PRODUCT};

void DevicesHaveUuids() {
  DriverApi driver;
  CHECK_OK(DriverApi::Open(FAKE_CUDA_DRIVER, &driver));
  std::string uuids[3];
  const auto ask = [&] {
    for (int device = 0; device < 3; ++device) CHECK_OK(DeviceUuid(driver, device, &uuids[device]));
  };
  ask();
  CHECK_EQ(uuids[0], "64657669-6365-2030-0000-000000000000");  // "device 0"
  CHECK(uuids[0] != uuids[1]);
  CHECK_EQ(setenv("FAKE_CUDA_UUIDS", "a,b,a", 1), 0);
  ask();
  CHECK(uuids[0] != uuids[1]);
  CHECK_EQ(uuids[0], uuids[2]);
  CHECK_EQ(unsetenv("FAKE_CUDA_UUIDS"), 0);
  const Status unknown = DeviceUuid(driver, 99, &uuids[0]);
  CHECK_CONTAINS(unknown.message(), "asking for the UUID of device 99: a fake error of the driver (CUDA_ERROR_FAKE");
}

void WhatIsOffered() {
  // One row a type; a letter for each of Average, Sum, Adasum, Min, Max, Product: yes or no; behind it the same with a
  // prescale of 0.5.
  const struct {
    int32_t dtype;
    const char* plain;
    const char* scaled;
  } table[] = {
      {SE_UINT8, "nynyyy", "nnnnnn"},    {SE_INT8, "nynyyy", "nnnnnn"},    {SE_INT16, "nnnnnn", "nnnnnn"},
      {SE_INT32, "nynyyy", "nnnnnn"},    {SE_INT64, "nynyyy", "nnnnnn"},   {SE_FLOAT16, "yynyyy", "yynnnn"},
      {SE_BFLOAT16, "yynyyy", "yynnnn"}, {SE_FLOAT32, "yynyyy", "yynnnn"}, {SE_FLOAT64, "yynyyy", "yynnnn"},
      {SE_BOOL, "nynyyy", "nnnnnn"},     {SE_UINT16, "nnnnnn", "nnnnnn"},
  };
  for (const auto& row : table) {
    for (size_t i = 0; i < std::size(kReduceOps); ++i) {
      const int32_t reduce_op = kReduceOps[i];
      for (const int32_t op : {SE_ALLREDUCE, SE_REDUCESCATTER}) {
        CHECK_EQ(NcclOffers(op, {row.dtype, reduce_op, 1, 1}, 4), row.plain[i] == 'y');
        CHECK_EQ(NcclOffers(op, {row.dtype, reduce_op, 0.5, 1}, 4), row.scaled[i] == 'y');
        CHECK_EQ(NcclOffers(op, {row.dtype, reduce_op, 1, 0.5}, 4), row.scaled[i] == 'y');
      }
    }
    for (const int32_t op : {SE_BROADCAST, SE_ALLGATHER, SE_ALLTOALL})
      CHECK(NcclOffers(op, {row.dtype, SE_SUM, 1, 1}, 4));
  }
  CHECK(NcclOffers(SE_BARRIER, {}, 4));
  CHECK(!NcclOffers(SE_JOIN, {}, 4));
  CHECK(!NcclOffers(SE_ALLREDUCE, {SE_FLOAT32, 17, 1, 1}, 4));
  CHECK(!NcclOffers(SE_ALLREDUCE, {42, SE_SUM, 1, 1}, 4));
}

// NCCL multiplies in the tensor's type: a factor that is nothing, or too much, in it is not for NCCL.
void FactorsMustFitTheType() {
  const auto offers = [](int32_t dtype, double factor) {
    return NcclOffers(SE_ALLREDUCE, {dtype, SE_SUM, factor, 1}, 2);
  };
  CHECK(offers(SE_FLOAT16, 0x1p-14) && !offers(SE_FLOAT16, 0x1p-15));
  CHECK(offers(SE_FLOAT16, 65504) && !offers(SE_FLOAT16, 65536));
  CHECK(offers(SE_BFLOAT16, 1e-8) && !offers(SE_BFLOAT16, 1e-39) && !offers(SE_BFLOAT16, 3.4e38));
  CHECK(offers(SE_FLOAT32, -1e-30) && !offers(SE_FLOAT32, 1e-39) && !offers(SE_FLOAT32, 1e39));
  CHECK(offers(SE_FLOAT64, 1e300));
  for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16, SE_FLOAT32, SE_FLOAT64}) {
    CHECK(!offers(dtype, 0) && !offers(dtype, std::numeric_limits<double>::infinity()));
    CHECK(!offers(dtype, std::numeric_limits<double>::quiet_NaN()));
  }
  // The average of this number of ranks is too small a factor.
  CHECK(!NcclOffers(SE_ALLREDUCE, {SE_FLOAT16, SE_AVERAGE, 1, 1}, 20000));
}

void WhatNcclIsAskedFor() {
  const NcclReduction average = NcclReductionOf({SE_FLOAT32, SE_AVERAGE, 2, 3}, 4);
  CHECK_EQ(average.type, kNcclFloat32);
  CHECK_EQ(average.op, kNcclSum);
  CHECK_EQ(average.factor, 1.5);
  CHECK_EQ(NcclReductionOf({SE_BFLOAT16, SE_SUM, 1, 1}, 4).factor, 1.0);
  CHECK_EQ(NcclReductionOf({SE_BFLOAT16, SE_AVERAGE, 4, 1}, 4).factor, 1.0);
  for (const auto& [reduce_op, op, of_bool] :
       {std::tuple{SE_SUM, kNcclSum, kNcclMax}, std::tuple{SE_MAX, kNcclMax, kNcclMax},
        std::tuple{SE_MIN, kNcclMin, kNcclMin}, std::tuple{SE_PRODUCT, kNcclProduct, kNcclMin}}) {
    CHECK_EQ(NcclReductionOf({SE_INT32, reduce_op, 1, 1}, 4).op, op);
    CHECK_EQ(NcclReductionOf({SE_BOOL, reduce_op, 1, 1}, 4).op, of_bool);
    CHECK_EQ(NcclReductionOf({SE_BOOL, reduce_op, 1, 1}, 4).type, kNcclUint8);
  }
  const auto bits = [](auto value, const NcclScalar& scalar) {
    std::memcpy(&value, scalar.bytes, sizeof(value));
    return value;
  };
  CHECK_EQ(bits(uint16_t{}, NcclScalarOf(0.5, kNcclFloat16)), 0x3800);
  CHECK_EQ(bits(uint16_t{}, NcclScalarOf(0.5, kNcclBfloat16)), 0x3f00);
  CHECK_EQ(bits(0.0f, NcclScalarOf(0.1, kNcclFloat32)), 0.1f);
  CHECK_EQ(bits(0.0, NcclScalarOf(0.1, kNcclFloat64)), 0.1);
}

void VersionsHaveNames() {
  CHECK_EQ(CudaVersionName(12090), "12.9");
  CHECK_EQ(CudaVersionName(13000), "13.0");
  CHECK_EQ(NcclVersionName(22703), "2.27.3");
  CHECK_EQ(NcclVersionName(2804), "2.8.4");
}

}  // namespace

int main() {
  return RunTests({{"libraries are opened by path", LibrariesAreOpenedByPath},
                   {"a missing library is named with its package", AMissingLibraryIsNamedWithItsPackage},
                   {"without a path only the driver is looked for", WithoutAPathOnlyTheDriverIsLookedFor},
                   {"a missing function is named", AMissingFunctionIsNamed},
                   {"old libraries are refused", OldLibrariesAreRefused},
                   {"a probe says what to do", AProbeSaysWhatToDo},
                   {"failures carry CUDA's words", FailuresCarryCudasWords},
                   {"a thread gets its device back", AThreadGetsItsDeviceBack},
                   {"a stream under capture is refused", AStreamUnderCaptureIsRefused},
                   {"events are used again", EventsAreUsedAgain},
                   {"devices have UUIDs", DevicesHaveUuids},
                   {"what is offered", WhatIsOffered},
                   {"factors must fit the type", FactorsMustFitTheType},
                   {"what NCCL is asked for", WhatNcclIsAskedFor},
                   {"versions have names", VersionsHaveNames}});
}
