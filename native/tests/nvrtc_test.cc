// The GPU's kernels through NVIDIA's own compiler, which needs no GPU. Skipped where there is none: give the path of a
// libnvrtc.so in SPARK_ESTIMATOR_TEST_NVRTC, or install nvidia-cuda-nvrtc-cu12 into the virtual environment.
#include <glob.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "check.h"
#include "gpu/device_kernels.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::Fail;

constexpr int kSkipped = 77;  // what ctest takes for it

std::string Setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> Candidates() {
  if (const std::string path = Setting("SPARK_ESTIMATOR_TEST_NVRTC"); !path.empty()) return {path};
  std::vector<std::string> found = {""};
  if (const std::string environment = Setting("VIRTUAL_ENV"); !environment.empty()) {
    glob_t files{};
    const std::string pattern = environment + "/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[23]";
    if (glob(pattern.c_str(), 0, nullptr, &files) == 0) {
      for (size_t i = 0; i < files.gl_pathc; ++i) found.emplace_back(files.gl_pathv[i]);
    }
    globfree(&files);
  }
  return found;
}

// Every type for every generation since Volta, as far as this NVRTC knows it: machine code that holds the kernels.
void CompileAll(const NvrtcApi& nvrtc) {
  int count = 0;
  CHECK_EQ(nvrtc.GetNumSupportedArchs(&count), kNvrtcSuccess);
  std::vector<int> known(static_cast<size_t>(count));
  CHECK_EQ(nvrtc.GetSupportedArchs(known.data()), kNvrtcSuccess);
  int compiled = 0;
  for (const int processor : {70, 80, 90}) {
    if (std::find(known.begin(), known.end(), processor) == known.end()) continue;
    for (int32_t dtype = kNoDtype; dtype <= SE_BOOL; ++dtype) {
      if (processor != 90 && dtype != SE_BFLOAT16 && dtype != SE_INT8) continue;  // one is enough for what differs
      std::vector<char> image;
      const Status status = DeviceKernels::Compile(nvrtc, dtype, processor, &image);
      if (!status.ok()) Fail(__FILE__, __LINE__, status.message());
      CHECK(image.size() > 4 && std::memcmp(image.data(),
                                            "\x7f"
                                            "ELF",
                                            4) == 0);
      const std::string text(image.begin(), image.end());
      CHECK_CONTAINS(text, "se_copy");
      CHECK_CONTAINS(text, "se_tell");
      for (int32_t reduce_op = SE_AVERAGE; reduce_op <= SE_PRODUCT && dtype != kNoDtype; ++reduce_op) {
        CHECK_CONTAINS(text, DeviceKernels::NameOf(dtype, reduce_op));
      }
      ++compiled;
    }
  }
  CHECK(compiled > 0);
  // A processor of the future gets PTX.
  std::vector<char> image;
  const Status status = DeviceKernels::Compile(nvrtc, SE_FLOAT32, 990, &image);
  if (!status.ok()) Fail(__FILE__, __LINE__, status.message());
  CHECK_CONTAINS(std::string(image.begin(), image.end()), ".target sm_");
  CHECK(!DeviceKernels::Compile(nvrtc, SE_FLOAT32, 20, &image).ok());
}

}  // namespace

int main() {
  std::string reasons;
  for (const std::string& path : Candidates()) {
    NvrtcApi nvrtc;
    const Status status = NvrtcApi::Open(path, &nvrtc);
    if (!status.ok()) {
      reasons += status.message() + "\n";
      continue;
    }
    CompileAll(nvrtc);
    std::cout << "NVRTC " << nvrtc.major << "." << nvrtc.minor << " of " << nvrtc.library.path() << " compiles them\n";
    return 0;
  }
  std::cout << "skipped: " << reasons;
  return kSkipped;
}
