// The GPU's kernels, compiled for the host, against the host's own, bit by bit; and what compiles, finds and launches
// them.
#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <random>

#include "base/kernels.h"
#include "one_gpu_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

constexpr size_t kMost = 300;

using Bytes = std::vector<uint8_t>;

template <typename T>
bool SameNumber(const uint8_t* a, const uint8_t* b) {
  T left;
  T right;
  std::memcpy(&left, a, sizeof(T));
  std::memcpy(&right, b, sizeof(T));
  return std::memcmp(a, b, sizeof(T)) == 0 || (left != left && right != right);
}

// The same bits, or both of them a NaN.
bool Same(int32_t dtype, const uint8_t* a, const uint8_t* b) {
  if (IsHalf(dtype)) {
    float left = 0;
    float right = 0;
    HalvesToFloat32(dtype, &left, a, 1);
    HalvesToFloat32(dtype, &right, b, 1);
    return std::memcmp(a, b, 2) == 0 || (left != left && right != right);
  }
  if (dtype == SE_FLOAT32) return SameNumber<float>(a, b);
  if (dtype == SE_FLOAT64) return SameNumber<double>(a, b);
  return std::memcmp(a, b, DtypeBytes(dtype)) == 0;
}

// All bit patterns: infinities, NaNs and subnormals among them; floats of 32 and 64 bits seldom meet those, so they
// are given some.
Bytes RandomBits(int32_t dtype, size_t count, std::mt19937& random) {
  Bytes bytes(count * DtypeBytes(dtype));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(dtype == SE_BOOL ? random() % 2 : random());
  const double special[] = {
      0.0, -0.0,  1e-42, -3e-310, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(),
      1.5, -70000};
  for (size_t i = 0; i < count && IsFloatingPoint(dtype); ++i) {
    if (random() % 4 != 0) continue;
    const Bytes one = ToBytes(dtype, {special[random() % std::size(special)]});
    std::memcpy(bytes.data() + i * one.size(), one.data(), one.size());
  }
  return bytes;
}

// What the engine does on the host, by its kernels.
Bytes OnTheHost(const Reduction& reduction, int size, std::vector<Bytes> sources, size_t count) {
  const Kernels& kernels = GetKernels();
  const bool average = reduction.reduce_op == SE_AVERAGE;
  const bool widen = average && IsInteger(reduction.dtype) && reduction.dtype != SE_INT64;
  const int32_t computed = widen ? SE_INT64 : reduction.dtype;
  std::vector<const void*> pointers;
  for (Bytes& source : sources) {
    if (widen) {
      std::vector<int64_t> wide(count);
      kernels.widen(reduction.dtype, wide.data(), source.data(), count);
      source.resize(count * sizeof(int64_t));
      std::memcpy(source.data(), wide.data(), source.size());
    }
    if (reduction.prescale != 1) {
      kernels.finish(computed, source.data(), source.data(), count, Finish{reduction.prescale, 1});
    }
    pointers.push_back(source.data());
  }
  Bytes result(count * DtypeBytes(computed));
  kernels.combine(computed, average ? SE_SUM : reduction.reduce_op, result.data(), pointers.data(), size, count,
                  Finish{reduction.postscale, average ? size : 1});
  if (!widen) return result;
  std::vector<int64_t> wide(count);
  std::memcpy(wide.data(), result.data(), result.size());
  result.resize(count * DtypeBytes(reduction.dtype));
  kernels.narrow(reduction.dtype, result.data(), wide.data(), count);
  return result;
}

// A context and a stream to launch on.
class Bench {
 public:
  Bench() {
    CHECK_EQ(Driver().driver.DevicePrimaryCtxRetain(&context_, 0), 0);
    CHECK_EQ(Driver().driver.CtxPushCurrent(context_), 0);
  }
  ~Bench() {
    CHECK_EQ(Driver().driver.CtxPopCurrent(&context_), 0);
    CHECK_EQ(Driver().driver.DevicePrimaryCtxRelease(0), 0);
  }

  CudaFunction Find(int32_t dtype, const std::string& name) {
    CudaFunction function = nullptr;
    CHECK_OK(Driver().kernels->Find(0, dtype, name, &function));
    return function;
  }
  template <typename Arguments>
  void Launch(CudaFunction function, unsigned int blocks, unsigned int pieces, Arguments arguments) {
    arguments.broken = &broken;
    void* pointers[] = {&arguments};
    CHECK_OK(Driver().driver.Check(
        Driver().driver.LaunchKernel(function, blocks, pieces, 1, 64, 1, 1, 0, caller_.stream(), pointers, nullptr),
        "launching"));
    caller_.Synchronize();
  }

  alignas(8) device::Word broken = 0;

 private:
  CudaContext context_ = nullptr;
  Caller caller_;
};

// `shift` elements away from what packets are aligned to.
void CompareReduction(Bench& bench, const Reduction& reduction, int size, size_t count, size_t shift,
                      std::mt19937& random) {
  const size_t element = DtypeBytes(reduction.dtype);
  std::vector<Bytes> sources;
  std::deque<DeviceMemory> memory;
  device::ReduceArguments arguments{};
  for (int rank = 0; rank < size; ++rank) {
    sources.push_back(RandomBits(reduction.dtype, count, random));
    void* data = memory.emplace_back(64 + (kMost + 8) * 8).get();
    std::memcpy(static_cast<uint8_t*>(data) + 64, sources.back().data(), sources.back().size());
    arguments.sources[rank] = data;
  }
  auto* output = static_cast<uint8_t*>(memory.emplace_back((kMost + 16) * 8).get());
  arguments.pieces[0] = {64, output + shift * element, count};
  arguments.prescale = reduction.prescale;
  arguments.postscale = reduction.postscale;
  arguments.divisor = reduction.reduce_op == SE_AVERAGE ? size : 1;
  arguments.num_sources = size;
  const std::string name = DeviceKernels::NameOf(reduction.dtype, reduction.reduce_op);
  bench.Launch(bench.Find(reduction.dtype, name), 1 + static_cast<unsigned int>(count) % 3, 1, arguments);
  const Bytes expected = OnTheHost(reduction, size, sources, count);
  for (size_t i = 0; i < count; ++i) {
    if (Same(reduction.dtype, output + (shift + i) * element, expected.data() + i * element)) continue;
    const Bytes got(output + (shift + i) * element, output + (shift + i + 1) * element);
    const Bytes wanted(expected.data() + i * element, expected.data() + (i + 1) * element);
    Fail(__FILE__, __LINE__,
         name + " of " + std::to_string(size) + ", prescale " + std::to_string(reduction.prescale) + ", postscale " +
             std::to_string(reduction.postscale) + ", element " + std::to_string(i) + " of " + std::to_string(count) +
             ": " + std::to_string(ToDoubles(reduction.dtype, got)[0]) + " is not " +
             std::to_string(ToDoubles(reduction.dtype, wanted)[0]));
  }
  // Nothing beside it was written.
  for (size_t i = 0; i < shift * element; ++i) CHECK_EQ(int{output[i]}, 0xCD);
  for (size_t i = (shift + count) * element; i < (kMost + 16) * 8; ++i) CHECK_EQ(int{output[i]}, 0xCD);
}

void NumbersAreTheHosts() {
  const uint32_t seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  Bench bench;
  const std::pair<double, double> factors[] = {{1, 1}, {0.5, 1}, {1, 0.3}, {-2.7, 1.25}, {1e9, 1}, {1, 0}};
  for (const int32_t dtype : kDtypes) {
    for (const int32_t reduce_op : kReduceOps) {
      if (DeviceKernels::NameOf(dtype, reduce_op).empty()) continue;
      for (const auto& [prescale, postscale] : factors) {
        for (const int size : {1, 2, 3, 5, 64}) {
          for (const size_t shift : {0, 1}) {
            CompareReduction(bench, {dtype, reduce_op, prescale, postscale}, size, 1 + random() % kMost, shift, random);
          }
        }
      }
    }
  }
}

void EveryHalfIsReadAndRounded() {
  Bench bench;
  std::mt19937 random(std::random_device{}());
  for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16}) {
    Bytes all(65536 * 2);
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto half = static_cast<uint16_t>(i);
      std::memcpy(all.data() + i * 2, &half, 2);
    }
    // Averages of neighbours, of far ones, and factors: results that lie between two halves, exact ties among them.
    for (const double postscale : {1.0, 0.5, 0.1, 3.0}) {
      Bytes other = all;
      std::shuffle(reinterpret_cast<uint16_t*>(other.data()), reinterpret_cast<uint16_t*>(other.data()) + 65536,
                   random);
      const DeviceMemory first(all.size());
      const DeviceMemory second(all.size());
      const DeviceMemory output(all.size());
      std::memcpy(first.get(), all.data(), all.size());
      std::memcpy(second.get(), other.data(), all.size());
      device::ReduceArguments arguments{};
      arguments.sources[0] = first.get();
      arguments.sources[1] = second.get();
      arguments.pieces[0] = {0, output.get(), 65536};
      arguments.prescale = 1;
      arguments.postscale = postscale;
      arguments.divisor = 2;
      arguments.num_sources = 2;
      bench.Launch(bench.Find(dtype, DeviceKernels::NameOf(dtype, SE_AVERAGE)), 16, 1, arguments);
      const Bytes expected = OnTheHost({dtype, SE_AVERAGE, 1, postscale}, 2, {all, other}, 65536);
      for (size_t i = 0; i < 65536; ++i) {
        CHECK(Same(dtype, static_cast<uint8_t*>(output.get()) + 2 * i, expected.data() + 2 * i));
      }
    }
  }
}

void CopiesOfAllAlignments() {
  std::mt19937 random(std::random_device{}());
  Bench bench;
  for (int round = 0; round < 400; ++round) {
    device::CopyArguments arguments{};
    std::deque<DeviceMemory> memory;
    const unsigned int pieces = 1 + random() % device::kMostPieces;
    std::vector<Bytes> expected;
    for (unsigned int i = 0; i < pieces; ++i) {
      const size_t bytes = random() % 200;
      const size_t unit = size_t{1} << random() % 5;
      auto* from = static_cast<uint8_t*>(memory.emplace_back(300).get()) + random() % 3 * unit;
      auto* to = static_cast<uint8_t*>(memory.emplace_back(300).get()) + 8 + random() % 3 * unit;
      for (size_t byte = 0; byte < bytes; ++byte) from[byte] = static_cast<uint8_t>(random());
      const bool zeros = random() % 4 == 0;
      arguments.pieces[i] = {zeros ? nullptr : from, to, bytes};
      Bytes after(bytes + 2, 0xCD);
      for (size_t byte = 0; byte < bytes; ++byte) after[byte + 1] = zeros ? 0 : from[byte];
      expected.push_back(after);
    }
    bench.Launch(bench.Find(kNoDtype, "se_copy"), 1 + random() % 4, pieces, arguments);
    for (unsigned int i = 0; i < pieces; ++i) {
      const uint8_t* to = static_cast<const uint8_t*>(arguments.pieces[i].to) - 1;
      CHECK(std::memcmp(to, expected[i].data(), expected[i].size()) == 0);
    }
  }
}

// Nothing that others could read is written any more.
void KernelsOfABrokenGroupDoNothing() {
  Bench bench;
  bench.broken = 1;
  const DeviceMemory from(64);
  const DeviceMemory to(64);
  std::memset(from.get(), 1, 64);
  device::CopyArguments copy{};
  copy.pieces[0] = {from.get(), to.get(), 64};
  device::ReduceArguments reduce{};
  reduce.sources[0] = from.get();
  reduce.pieces[0] = {0, to.get(), 16};
  reduce.prescale = reduce.postscale = 1;
  reduce.divisor = reduce.num_sources = 1;
  alignas(8) device::Word counter = 3;
  device::TellArguments tell{};
  tell.counters[0] = &counter;
  tell.value = 7;
  tell.num_counters = 1;
  bench.Launch(bench.Find(kNoDtype, "se_copy"), 1, 1, copy);
  bench.Launch(bench.Find(SE_INT32, "se_reduce_int32_sum"), 1, 1, reduce);
  bench.Launch(bench.Find(kNoDtype, "se_tell"), 1, 1, tell);
  for (int i = 0; i < 64; ++i) CHECK_EQ(int{static_cast<uint8_t*>(to.get())[i]}, 0xCD);
  CHECK_EQ(counter, 3u);
  bench.broken = 0;
  bench.Launch(bench.Find(kNoDtype, "se_tell"), 1, 1, tell);
  CHECK_EQ(counter, 7u);
  tell.value = 5;  // raises only
  bench.Launch(bench.Find(kNoDtype, "se_tell"), 1, 1, tell);
  CHECK_EQ(counter, 7u);
}

void NamesOfKernels() {
  CHECK_EQ(DeviceKernels::NameOf(SE_FLOAT32, SE_SUM), "se_reduce_float32_sum");
  CHECK_EQ(DeviceKernels::NameOf(SE_BFLOAT16, SE_AVERAGE), "se_reduce_bfloat16_sum");
  CHECK_EQ(DeviceKernels::NameOf(SE_INT16, SE_AVERAGE), "se_reduce_int16_average");
  CHECK_EQ(DeviceKernels::NameOf(SE_INT64, SE_AVERAGE), "se_reduce_int64_sum");
  CHECK_EQ(DeviceKernels::NameOf(SE_BOOL, SE_MAX), "se_reduce_bool_or");
  CHECK_EQ(DeviceKernels::NameOf(SE_BOOL, SE_PRODUCT), "se_reduce_bool_and");
  CHECK_EQ(DeviceKernels::NameOf(SE_BOOL, SE_AVERAGE), "");
  CHECK_EQ(DeviceKernels::NameOf(SE_FLOAT32, SE_ADASUM), "");
  CHECK_EQ(DeviceKernels::NameOf(42, SE_SUM), "");
  CHECK_EQ(DeviceKernels::NameOf(SE_FLOAT32, 42), "");
}

void ForTheProcessorThatIsThere() {
  FakeDriver& fake = Driver();
  const auto compile = [&](int processor, std::string* image) {
    std::vector<char> found;
    const Status status = DeviceKernels::Compile(fake.nvrtc, SE_FLOAT32, processor, &found);
    *image = found.empty() ? "" : found.data();
    return status;
  };
  std::string image;
  CHECK_OK(compile(80, &image));
  CHECK_EQ(image, "fake image sm_80 dtype 7");
  // Newer than NVRTC, or between two that it knows: for the driver to translate.
  CHECK_OK(compile(120, &image));
  CHECK_EQ(image, "fake image compute_90 dtype 7");
  CHECK_OK(compile(86, &image));
  CHECK_EQ(image, "fake image compute_80 dtype 7");
  const Status old = compile(61, &image);
  CHECK_EQ(old.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(old.message(), "compiles for 7.0 and newer, and the GPU's compute capability is 6.1");
  fake.fake_nvrtc_fail(SE_INT8);
  std::vector<char> nothing;
  const Status failed = DeviceKernels::Compile(fake.nvrtc, SE_INT8, 90, &nothing);
  fake.fake_nvrtc_fail(-2);
  CHECK_CONTAINS(failed.message(), "compiling kernels for sm_90 by ");
  CHECK_CONTAINS(failed.message(), "NVRTC_ERROR_COMPILATION (NVRTC result 6): device_code.h(1): error");
  CHECK_EQ(fake.fake_nvrtc_live_programs(), 0);
}

void WhatIsNotThereIsNamed() {
  Bench bench;
  CudaFunction function = nullptr;
  const Status missing = Driver().kernels->Find(0, SE_INT32, "se_reduce_float32_sum", &function);
  CHECK_EQ(missing.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(missing.message(), "looking for the kernel se_reduce_float32_sum");
  DriverApi driver;
  const Status no_driver = DriverApi::Open("/nowhere/libcuda.so.1", &driver);
  CHECK_CONTAINS(no_driver.message(), "/nowhere/libcuda.so.1");
  CHECK_CONTAINS(no_driver.message(), "comes with the NVIDIA driver");
  CHECK_CONTAINS(DriverApi::Open(FAKE_NVRTC, &driver).message(), "has no function cuInit");
  CHECK(driver.LaunchKernel == nullptr);
  NvrtcApi nvrtc;
  const Status no_nvrtc = NvrtcApi::Open("/nowhere/libnvrtc.so.12", &nvrtc);
  CHECK_CONTAINS(no_nvrtc.message(), "/nowhere/libnvrtc.so.12");
  CHECK_CONTAINS(no_nvrtc.message(), "nvidia-cuda-nvrtc-cu12");
  Driver().fake_nvrtc_version(11, 8);
  const Status old = NvrtcApi::Open(FAKE_NVRTC, &nvrtc);
  Driver().fake_nvrtc_version(12, 4);
  CHECK_CONTAINS(old.message(), "is 11.8, needed is 12.0 or newer");
  CHECK(nvrtc.CompileProgram == nullptr);
  // Whether this machine has them or not.
  if (const Status status = NvrtcApi::Open("", &nvrtc); !status.ok()) {
    CHECK_CONTAINS(status.message(), "libnvrtc.so.13");
    CHECK_CONTAINS(status.message(), "libnvrtc.so.12");
  }
  if (const Status status = DriverApi::Open("", &driver); !status.ok()) {
    CHECK_CONTAINS(status.message(), "libcuda.so.1");
  }
}

void DevicesHaveNamesOfTheirOwn() {
  const DriverApi& driver = Driver().driver;
  std::string first;
  std::string second;
  CHECK_OK(DeviceUuid(driver, 0, &first));
  CHECK_OK(DeviceUuid(driver, 1, &second));
  CHECK_EQ(first, "64657669-6365-2030-0000-000000000000");  // "device 0"
  CHECK(first != second);
  Driver().fake_driver_uuids("a,b,a");
  std::string third;
  CHECK_OK(DeviceUuid(driver, 0, &first));
  CHECK_OK(DeviceUuid(driver, 1, &second));
  CHECK_OK(DeviceUuid(driver, 2, &third));
  CHECK(first != second);
  CHECK_EQ(first, third);
  Driver().fake_driver_uuids("");
  CHECK_CONTAINS(DeviceUuid(driver, 99, &first).message(), "asking for the UUID of device 99");
}

}  // namespace

int main() {
  return RunTests({{"numbers are the host's", NumbersAreTheHosts},
                   {"every half is read and rounded", EveryHalfIsReadAndRounded},
                   {"copies of all alignments", CopiesOfAllAlignments},
                   {"kernels of a broken group do nothing", KernelsOfABrokenGroupDoNothing},
                   {"names of kernels", NamesOfKernels},
                   {"for the processor that is there", ForTheProcessorThatIsThere},
                   {"what is not there is named", WhatIsNotThereIsNamed},
                   {"devices have names of their own", DevicesHaveNamesOfTheirOwn}});
}
