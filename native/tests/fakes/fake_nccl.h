// What the fake NCCL offers beside NCCL's own functions: failures on demand, and what was called.
#ifndef SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_H_
#define SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_H_

#define FAKE_API __attribute__((visibility("default")))

extern "C" {

// As NCCL encodes it; 22703 by default.
FAKE_API void fake_nccl_version(int version);
// From now on that rank joins no communicator: all of them wait for it. -1: all join.
FAKE_API void fake_nccl_hang_init(int rank);
// From now on this number of polls of a communicator return "in progress" before NCCL launches its calls; 2 by default.
FAKE_API void fake_nccl_slowness(int looks);
// The communicators of that rank in this process have run into `result`.
FAKE_API void fake_nccl_fail_async(int rank, int result);
// The next collective of that rank is refused with `result`.
FAKE_API void fake_nccl_refuse(int rank, int result);
// The next id is refused with `result`. And how many have been made in this process.
FAKE_API void fake_nccl_refuse_id(int result);
FAKE_API int fake_nccl_ids_made(void);

// What that rank has been asked for since the last fake_nccl_forget: "GroupStart AllReduce(float32,1000,sum) GroupEnd".
// Valid until the next call of the thread.
FAKE_API const char* fake_nccl_calls(int rank);
FAKE_API void fake_nccl_forget(void);
FAKE_API int fake_nccl_live_comms(void);
FAKE_API int fake_nccl_live_operators(void);

}  // extern "C"

#endif  // SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_H_
