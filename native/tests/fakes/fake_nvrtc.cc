// An NVRTC without a compiler, for tests: what it "compiles" says for which processor and dtype it was asked, and the
// fake driver, which has the kernels, believes that.
#include "fake_nvrtc.h"

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidInput = 3;
constexpr int kInvalidProgram = 4;
constexpr int kInvalidOption = 5;
constexpr int kCompilation = 6;

struct Program {
  std::string source;
  std::string image;
  std::string log;
  bool machine_code = false;
};

std::atomic<int> major_version{12};
std::atomic<int> minor_version{4};
std::atomic<int> oldest_processor{70};
std::atomic<int> newest_processor{90};
std::atomic<int> failing_dtype{-2};
std::atomic<int> compilations{0};
std::atomic<int> live_programs{0};

int GiveSize(const std::string& text, size_t* bytes) {
  *bytes = text.size() + 1;
  return kSuccess;
}
int Give(const std::string& text, char* to) {
  std::memcpy(to, text.c_str(), text.size() + 1);
  return kSuccess;
}

}  // namespace

extern "C" {

FAKE_API int nvrtcVersion(int* major, int* minor) {
  *major = major_version;
  *minor = minor_version;
  return kSuccess;
}

FAKE_API int nvrtcGetNumSupportedArchs(int* count) {
  *count = (newest_processor - oldest_processor) / 10 + 1;
  return kSuccess;
}

FAKE_API int nvrtcGetSupportedArchs(int* processors) {
  for (int processor = oldest_processor; processor <= newest_processor; processor += 10) *processors++ = processor;
  return kSuccess;
}

// Includes that nobody gives it are not found, as in the real one.
FAKE_API int nvrtcCreateProgram(Program** program, const char* source, const char*, int num_headers,
                                const char* const* headers, const char* const* names) {
  const std::string text = source;
  std::string known;
  for (int i = 0; i < num_headers; ++i) known += std::string("#include \"") + names[i] + "\"\n" + headers[i];
  for (size_t at = text.find("#include "); at != std::string::npos; at = text.find("#include ", at + 1)) {
    if (known.find(text.substr(at, text.find('\n', at) - at + 1)) == std::string::npos) return kInvalidInput;
  }
  *program = new Program{text, "", "", false};
  ++live_programs;
  return kSuccess;
}

FAKE_API int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  --live_programs;
  return kSuccess;
}

FAKE_API int nvrtcCompileProgram(Program* program, int num_options, const char* const* options) {
  char kind[16] = {};
  int processor = 0;
  int dtype = -2;
  bool contracted = true;
  for (int i = 0; i < num_options; ++i) {
    const std::string option = options[i];
    if (std::sscanf(options[i], "--gpu-architecture=%15[a-z]_%d", kind, &processor) == 2) continue;
    if (std::sscanf(options[i], "-DSE_DTYPE=%d", &dtype) == 1 || option == "--std=c++17") continue;
    if (option != "--fmad=false") return kInvalidOption;
    contracted = false;
  }
  if (contracted || dtype == -2 || processor < oldest_processor || processor > newest_processor) return kInvalidOption;
  ++compilations;
  if (dtype == failing_dtype) {
    program->log = "device_code.h(1): error: the fake was told to fail";
    return kCompilation;
  }
  program->machine_code = std::string(kind) == "sm";
  program->image =
      std::string("fake image ") + kind + "_" + std::to_string(processor) + " dtype " + std::to_string(dtype);
  return kSuccess;
}

FAKE_API int nvrtcGetPTXSize(Program* program, size_t* bytes) { return GiveSize(program->image, bytes); }
FAKE_API int nvrtcGetPTX(Program* program, char* text) { return Give(program->image, text); }
FAKE_API int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  return program->machine_code ? GiveSize(program->image, bytes) : kInvalidProgram;
}
FAKE_API int nvrtcGetCUBIN(Program* program, char* image) {
  return program->machine_code ? Give(program->image, image) : kInvalidProgram;
}
FAKE_API int nvrtcGetProgramLogSize(Program* program, size_t* bytes) { return GiveSize(program->log, bytes); }
FAKE_API int nvrtcGetProgramLog(Program* program, char* text) { return Give(program->log, text); }
FAKE_API const char* nvrtcGetErrorString(int result) {
  return result == kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_FAKE";
}

void fake_nvrtc_version(int major, int minor) {
  major_version = major;
  minor_version = minor;
}
void fake_nvrtc_processors(int oldest, int newest) {
  oldest_processor = oldest;
  newest_processor = newest;
}
void fake_nvrtc_fail(int dtype) { failing_dtype = dtype; }
int fake_nvrtc_compilations() { return compilations; }
int fake_nvrtc_live_programs() { return live_programs; }

}  // extern "C"
