// What the fake CUDA runtime offers beside CUDA's own functions: to tests, and to the fake NCCL, whose kernels are
// tasks on its streams.
#ifndef SPARK_ESTIMATOR_TESTS_FAKES_FAKE_CUDA_H_
#define SPARK_ESTIMATOR_TESTS_FAKES_FAKE_CUDA_H_

#define FAKE_API __attribute__((visibility("default")))

extern "C" {

// A machine's properties. Devices 8, driver 12.8 and runtime 12.4 by default; a driver of 0 is none.
FAKE_API void fake_cuda_set_devices(int devices);
FAKE_API void fake_cuda_set_driver(int version);
FAKE_API void fake_cuda_set_runtime(int version);
// What cudaGetDeviceCount returns instead of what follows from those; 0: what follows.
FAKE_API void fake_cuda_fail_devices(int code);

// A kernel: runs in the stream's thread when what was enqueued before is over.
FAKE_API void fake_cuda_enqueue(void* stream, void (*run)(void*), void* argument);
// A kernel that does nothing for a while: what does not wait for it is early.
FAKE_API void fake_cuda_delay(void* stream, int microseconds);
// From now on, or no longer, the stream is being captured into a graph.
FAKE_API void fake_cuda_capture(void* stream, int on);
// From now on each copy takes this much longer.
FAKE_API void fake_cuda_slow_copies(int microseconds);
// A stream of the current device that blocks nothing.
FAKE_API void* fake_cuda_stream_create(void);

// What has been made and not been destroyed: whether a test, or a group, leaves something behind.
FAKE_API int fake_cuda_live_streams(void);
FAKE_API int fake_cuda_live_events(void);
FAKE_API int fake_cuda_live_allocations(void);
FAKE_API int fake_cuda_events_made(void);

}  // extern "C"

#endif  // SPARK_ESTIMATOR_TESTS_FAKES_FAKE_CUDA_H_
