#include "gpu/device_kernels.h"

#include <algorithm>

#include "base/dtype.h"
#include "gpu/device_source.h"

namespace spark_estimator {
namespace {

// A compiler's complaint is long, and its beginning says it.
constexpr size_t kShownOfLog = 500;

std::string LogOf(const NvrtcApi& nvrtc, NvrtcProgram program) {
  size_t bytes = 0;
  if (nvrtc.GetProgramLogSize(program, &bytes) != kNvrtcSuccess || bytes <= 1) return "it gives no reason";
  std::string log(bytes, '\0');
  if (nvrtc.GetProgramLog(program, log.data()) != kNvrtcSuccess) return "it gives no reason";
  log.resize(std::min(log.find('\0'), kShownOfLog));
  return log;
}

// "sm_90" for machine code; "compute_90" for PTX of the newest processor that NVRTC knows and that is no newer.
Status TargetOf(const NvrtcApi& nvrtc, int processor, std::string* target) {
  int count = 0;
  SE_RETURN_IF_ERROR(nvrtc.Check(nvrtc.GetNumSupportedArchs(&count), "asking NVRTC for its processors"));
  std::vector<int> known(static_cast<size_t>(std::max(count, 0)));
  SE_RETURN_IF_ERROR(nvrtc.Check(nvrtc.GetSupportedArchs(known.data()), "asking NVRTC for its processors"));
  const auto newer = std::find_if(known.begin(), known.end(), [&](int other) { return other > processor; });
  if (newer == known.begin()) {
    const auto capability = [](int value) { return std::to_string(value / 10) + "." + std::to_string(value % 10); };
    return Status(SE_SYSTEM_ERROR, "the NVRTC in " + nvrtc.library.path() + " compiles for " +
                                       (known.empty() ? "no processor" : capability(known[0]) + " and newer") +
                                       ", and the GPU's compute capability is " + capability(processor) +
                                       ": give it the NVRTC of an older CUDA");
  }
  const int best = *(newer - 1);
  *target = (best == processor ? "sm_" : "compute_") + std::to_string(best);
  return Status::Ok();
}

Status ImageOf(const NvrtcApi& nvrtc, NvrtcProgram program, bool machine_code, std::vector<char>* image) {
  size_t bytes = 0;
  SE_RETURN_IF_ERROR(nvrtc.Check(machine_code ? nvrtc.GetCUBINSize(program, &bytes) : nvrtc.GetPTXSize(program, &bytes),
                                 "asking NVRTC how large the compiled kernels are"));
  image->resize(bytes);
  return nvrtc.Check(machine_code ? nvrtc.GetCUBIN(program, image->data()) : nvrtc.GetPTX(program, image->data()),
                     "taking the compiled kernels from NVRTC");
}

}  // namespace

std::string DeviceKernels::NameOf(int32_t dtype, int32_t reduce_op) {
  if (DtypeBytes(dtype) == 0) return "";
  const std::string prefix = "se_reduce_" + DtypeName(dtype);
  const bool is_bool = dtype == SE_BOOL;
  switch (reduce_op) {
    case SE_SUM:
      return prefix + (is_bool ? "_or" : "_sum");
    case SE_MAX:
      return prefix + (is_bool ? "_or" : "_max");
    case SE_MIN:
      return prefix + (is_bool ? "_and" : "_min");
    case SE_PRODUCT:
      return prefix + (is_bool ? "_and" : "_product");
    case SE_AVERAGE:
      if (is_bool) return "";
      return prefix + (IsInteger(dtype) && dtype != SE_INT64 ? "_average" : "_sum");
    default:
      return "";
  }
}

Status DeviceKernels::Compile(const NvrtcApi& nvrtc, int32_t dtype, int processor, std::vector<char>* image) {
  std::string target;
  SE_RETURN_IF_ERROR(TargetOf(nvrtc, processor, &target));
  NvrtcProgram program = nullptr;
  SE_RETURN_IF_ERROR(nvrtc.Check(
      nvrtc.CreateProgram(&program, kDeviceCode, "device_code.h", 1, &kDeviceArguments, &kDeviceArgumentsName),
      "giving the kernels to NVRTC"));
  const std::string architecture = "--gpu-architecture=" + target;
  const std::string wanted = "-DSE_DTYPE=" + std::to_string(dtype);
  // Not contracted, so that the numbers are those of the host's kernels.
  const char* const options[] = {architecture.c_str(), wanted.c_str(), "--std=c++17", "--fmad=false"};
  const int result = nvrtc.CompileProgram(program, static_cast<int>(std::size(options)), options);
  Status status = nvrtc.Check(result, "compiling kernels for " + target + " by " + nvrtc.library.path());
  if (!status.ok()) status = Status(status.code(), status.message() + ": " + LogOf(nvrtc, program));
  if (status.ok()) status = ImageOf(nvrtc, program, target.starts_with("sm_"), image);
  nvrtc.DestroyProgram(&program);
  return status;
}

Status DeviceKernels::Load(int device, int32_t dtype, CudaModule* module) const {
  // Held for good, as the kernels in it are.
  CudaContext context = nullptr;
  SE_RETURN_IF_ERROR(driver_.Check(driver_.DevicePrimaryCtxRetain(&context, device), "opening the device"));
  int major = 0;
  int minor = 0;
  SE_RETURN_IF_ERROR(driver_.Attribute(device, kDriverCapabilityMajor, &major));
  SE_RETURN_IF_ERROR(driver_.Attribute(device, kDriverCapabilityMinor, &minor));
  std::vector<char> image;
  SE_RETURN_IF_ERROR(Compile(nvrtc_, dtype, 10 * major + minor, &image));
  return driver_.Check(driver_.ModuleLoadData(module, image.data()),
                       "loading kernels on device " + std::to_string(device));
}

Status DeviceKernels::Find(int device, int32_t dtype, const std::string& name, CudaFunction* function) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Module& module = modules_[{device, dtype}];
  if (const auto found = module.functions.find(name); found != module.functions.end()) {
    *function = found->second;
    return Status::Ok();
  }
  if (module.handle == nullptr) SE_RETURN_IF_ERROR(Load(device, dtype, &module.handle));
  SE_RETURN_IF_ERROR(driver_.Check(driver_.ModuleGetFunction(function, module.handle, name.c_str()),
                                   "looking for the kernel " + name));
  module.functions[name] = *function;
  return Status::Ok();
}

}  // namespace spark_estimator
