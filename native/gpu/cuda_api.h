// The functions of the CUDA runtime that moving tensors needs, found while the program runs: no CUDA header, no
// toolkit.
#ifndef SPARK_ESTIMATOR_GPU_CUDA_API_H_
#define SPARK_ESTIMATOR_GPU_CUDA_API_H_

#include <cstddef>
#include <string>

#include "base/shared_object.h"
#include "base/status.h"

namespace spark_estimator {

// Opaque: only CUDA looks inside. The null stream and CUDA's other special streams are values of it as well.
using CudaStream = struct CudaStreamObject*;
using CudaEvent = struct CudaEventObject*;

// Values of cudaError_t and of flags (driver_types.h of CUDA 12.9; they are part of CUDA's ABI and do not change).
inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaMemoryAllocation = 2;
inline constexpr int kCudaStubLibrary = 34;
inline constexpr int kCudaInsufficientDriver = 35;
inline constexpr int kCudaNoDevice = 100;
inline constexpr int kCudaInvalidDevice = 101;
inline constexpr int kCudaNotReady = 600;
inline constexpr int kCudaSystemNotReady = 802;
inline constexpr int kCudaSystemDriverMismatch = 803;
inline constexpr unsigned int kCudaStreamNonBlocking = 1;
inline constexpr unsigned int kCudaEventDisableTiming = 2;
inline constexpr int kCudaMemcpyDefault = 4;  // the direction follows from the addresses
inline constexpr int kCudaStreamCaptureStatusNone = 0;

// What Probe found.
struct CudaMachine {
  int driver_version = 0;  // the newest CUDA that the driver knows: 12040 is 12.4
  int runtime_version = 0;
  int devices = 0;  // that this process sees
};

// Filled by Open as a whole or not at all. Each function is CUDA's of the same name after "cuda" and returns a
// cudaError_t.
struct CudaApi {
  static constexpr int kMinimumVersion = 12000;

  int (*RuntimeGetVersion)(int* version) = nullptr;
  int (*DriverGetVersion)(int* version) = nullptr;
  int (*GetDeviceCount)(int* count) = nullptr;
  int (*SetDevice)(int device) = nullptr;
  int (*GetDevice)(int* device) = nullptr;
  int (*DeviceGetPCIBusId)(char* text, int capacity, int device) = nullptr;
  int (*DeviceCanAccessPeer)(int* can, int device, int peer) = nullptr;
  int (*DeviceGetStreamPriorityRange)(int* least, int* greatest) = nullptr;
  int (*StreamCreateWithPriority)(CudaStream* stream, unsigned int flags, int priority) = nullptr;
  int (*StreamDestroy)(CudaStream stream) = nullptr;
  int (*StreamWaitEvent)(CudaStream stream, CudaEvent event, unsigned int flags) = nullptr;
  int (*StreamQuery)(CudaStream stream) = nullptr;
  int (*StreamIsCapturing)(CudaStream stream, int* status) = nullptr;
  int (*ThreadExchangeStreamCaptureMode)(int* mode) = nullptr;
  int (*EventCreateWithFlags)(CudaEvent* event, unsigned int flags) = nullptr;
  int (*EventRecord)(CudaEvent event, CudaStream stream) = nullptr;
  int (*EventQuery)(CudaEvent event) = nullptr;
  int (*EventSynchronize)(CudaEvent event) = nullptr;
  int (*EventDestroy)(CudaEvent event) = nullptr;
  int (*Malloc)(void** data, size_t bytes) = nullptr;
  int (*Free)(void* data) = nullptr;
  int (*HostAlloc)(void** data, size_t bytes, unsigned int flags) = nullptr;
  int (*FreeHost)(void* data) = nullptr;
  int (*HostRegister)(void* data, size_t bytes, unsigned int flags) = nullptr;
  int (*HostUnregister)(void* data) = nullptr;
  int (*MemcpyAsync)(void* to, const void* from, size_t bytes, int kind, CudaStream stream) = nullptr;
  int (*MemsetAsync)(void* data, int value, size_t bytes, CudaStream stream) = nullptr;
  const char* (*GetErrorName)(int code) = nullptr;
  const char* (*GetErrorString)(int code) = nullptr;
  int (*GetLastError)() = nullptr;  // and forgets it

  SharedObject library;
  int version = 0;  // of the runtime: 12090 is 12.9

  // `path` is that of a libcudart.so; empty: the one that the process has loaded or the linker finds, of CUDA 13 or 12.
  // The error names the missing package. Works without a driver.
  static Status Open(const std::string& path, CudaApi* api);

  // Is there a driver, is it new enough for this runtime, does this process see a device? The error contains what was
  // found and what to do about it. `machine` is filled as far as possible.
  Status Probe(CudaMachine* machine) const;

  // EventQuery and StreamQuery, after which nothing is left behind: CUDA notes "not ready" as the thread's last error,
  // and the framework whose thread this is would find it after its next kernel.
  int QueryEvent(CudaEvent event) const;
  int QueryStream(CudaStream stream) const;

  // SE_OK for cudaSuccess; else `what`, and CUDA's words for `code`, which is no longer the thread's last error. Out of
  // memory is SE_NO_MEMORY.
  Status Check(int code, const std::string& what) const;
};

// For its length the thread may do what CUDA forbids to all threads while one captures a stream into a graph, asking
// after an event and allocating among it, and which would end the capture: nothing here touches a stream that is
// captured.
class CudaCaptureScope {
 public:
  explicit CudaCaptureScope(const CudaApi& cuda) : cuda_(cuda) { cuda_.ThreadExchangeStreamCaptureMode(&mode_); }
  ~CudaCaptureScope() { cuda_.ThreadExchangeStreamCaptureMode(&mode_); }
  CudaCaptureScope(const CudaCaptureScope&) = delete;
  CudaCaptureScope& operator=(const CudaCaptureScope&) = delete;

 private:
  static constexpr int kRelaxed = 2;

  const CudaApi& cuda_;
  int mode_ = kRelaxed;  // and then what it was before
};

// A thread's current device for the length of a scope, which is a CudaCaptureScope as well; the thread then gets its
// former device back, since it is the caller's thread.
class CudaDeviceScope {
 public:
  CudaDeviceScope(const CudaApi& cuda, int device);
  ~CudaDeviceScope();
  CudaDeviceScope(const CudaDeviceScope&) = delete;
  CudaDeviceScope& operator=(const CudaDeviceScope&) = delete;

  const Status& status() const { return status_; }

 private:
  const CudaApi& cuda_;
  const CudaCaptureScope unharmed_;
  int before_ = -1;  // -1: nothing to give back
  Status status_;
};

// Refuses a stream that is being captured into a CUDA graph: what is agreed on among ranks at run time cannot be
// replayed.
Status CheckNotCapturing(const CudaApi& cuda, CudaStream stream);

// "12.4" for 12040.
std::string CudaVersionName(int version);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_CUDA_API_H_
