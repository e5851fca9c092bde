// What becomes of a GPU's work, and of those who wait for it, when a rank fails, leaves or is lost.
#include <sys/socket.h>

#include <barrier>
#include <deque>
#include <latch>

#include "gpu_engine_plain.h"

namespace spark_estimator::testing {
namespace {

// The device computes on its own: its errors are found without a caller's query.
void AnAsyncErrorEndsTheGroup() {
  JobOptions options = OnGpu(Channel::kShared, SE_GPU_NCCL);
  options.heartbeat_seconds = 0.05;
  RunRanks(2, options, [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, me.rank + 1);
    me.RunOk(plain.Sum(gpu, "x"));
    plain.CheckIs(gpu, 3);
    me.RunOk(Asked("all here", SE_BARRIER));
    if (me.rank == 0) Fake().fake_nccl_fail_async(0, kNcclUnhandledCudaError);
    // Rank 0 asks for nothing more. Rank 1 learns of it where it waits.
    Submitted last{};
    if (me.rank == 1) last = me.Submit(Asked("never", SE_BARRIER));
    if (me.rank == 1) {
      CHECK_CONTAINS(ErrorOf(me.Wait(last)), "rank 0");
      return;
    }
    int32_t status = SE_OK;
    for (int look = 0; look < 1000 && status == SE_OK; ++look) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      int64_t question = 0;
      status = se_await_question(me.engine, 0, &question);
      if (status == SE_IN_PROGRESS) status = me.Submit(Asked("later" + std::to_string(look), SE_BARRIER)).status;
    }
    CHECK_CONTAINS(ErrorOf(status), "CUDA");
  });
  CheckNothingLeft();
}

void AnInitThatHangsIsGivenUp() {
  Fake().fake_nccl_hang_init(1);
  JobOptions options = OnGpu(Channel::kShared, SE_GPU_NCCL);
  options.start_timeout_seconds = 0.5;
  RunRanks(2, options, [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, me.rank + 1);
    const std::string error = ErrorOf(me.Run(plain.Sum(gpu, "x")));
    CHECK_CONTAINS(error, "making a group of GPUs by NCCL (HOROVOD_GPU_OPERATIONS=staged does without it)");
    gpu.caller.Synchronize();
  });
  Fake().fake_nccl_hang_init(-1);
  CheckNothingLeft();
}

// A rank that finishes early does not remove what the others' GPUs still need.
void WhoLeavesWaitsForItsGpu() {
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_NCCL), [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, me.rank + 1);
    if (me.rank == 1) gpu.caller.Delay(3'000'000);  // longer than the group's own farewell
    const Submitted last = me.Submit(plain.Sum(gpu, "x"));
    CHECK_EQ(me.Wait(last), SE_OK);
    CHECK_EQ(se_await_on_stream(me.engine, last.handle, gpu.caller.stream()), SE_OK);
    CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
    plain.CheckIs(gpu, 3);
  });
  CheckNothingLeft();
}

// A rank that leaves with operations in flight launches some of them and not others: the others' streams still finish.
void WhoLeavesHoldsNobodysStream() {
  for (const int32_t operations : {SE_GPU_NCCL, SE_GPU_STAGED}) {
    for (int round = 0; round < 5; ++round) {
      RunRanks(3, OnGpu(Channel::kShared, operations), [](Rank& me) {
        GpuRank gpu(me);
        std::deque<Plain> plain;
        for (int number = 0; number < 10; ++number) plain.emplace_back(gpu, me.rank + 1);
        me.RunOk(plain[0].Sum(gpu, "x"));
        std::vector<Submitted> under_way;
        for (int number = 0; number < 10; ++number) {
          const Submitted submitted = me.Submit(plain[At(number)].Sum(gpu, "x" + std::to_string(number)));
          if (submitted.status != SE_OK) break;  // rank 1 has left already
          under_way.push_back(submitted);
        }
        if (me.rank == 1) CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
        for (const Submitted& one : under_way) {
          if (me.Wait(one) == SE_OK) (void)se_await_on_stream(me.engine, one.handle, gpu.caller.stream());
        }
        gpu.caller.Synchronize();
      });
    }
  }
  CheckNothingLeft();
}

// A kernel that waits for a peer that never arrives blocks the stream, and all that wait for it, for ever.
void ALostPeersKernelsEnd() {
  Wiring wiring = Wire(2, OnGpu(Channel::kStream, SE_GPU_NCCL));
  std::barrier<> both_have_it(2);
  std::latch looked(1);
  CudaStream late = nullptr;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const int control = Dup(wiring.peers[At(rank)][0].control_fd);
      Rank me(rank, 2, Join(wiring, rank));
      {
        GpuRank gpu(me);
        Plain plain(gpu, rank + 1);
        me.RunOk(plain.Sum(gpu, "x"));
        plain.CheckIs(gpu, 3);
        me.RunOk(Asked("all here", SE_BARRIER));
        if (rank == 1) {
          // Its kernel is queued behind long work; meanwhile it has left.
          gpu.caller.Hold(&looked);
          late = gpu.caller.stream();
        }
        const Submitted last = me.Submit(plain.Sum(gpu, "y"));
        CHECK_EQ(me.Wait(last), SE_OK);
        CHECK_EQ(se_await_on_stream(me.engine, last.handle, gpu.caller.stream()), SE_OK);
        both_have_it.arrive_and_wait();
        if (rank == 1) shutdown(control, SHUT_RDWR);
        gpu.caller.Synchronize();  // ends on rank 0 before rank 1's kernel begins
        if (rank == 0) {
          CHECK_EQ(Fake().cuda.QueryStream(late), kCudaNotReady);
          looked.count_down();
        }
        CHECK_CONTAINS(ErrorOf(me.Run(plain.Sum(gpu, "z"))), "is lost");
        // Operations in flight do not become results.
        CHECK_CONTAINS(ErrorOf(se_await_on_stream(me.engine, last.handle, gpu.caller.stream())), "is lost");
      }
      close(control);
      se_engine_destroy(me.engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CheckNothingLeft();
}

}  // namespace
}  // namespace spark_estimator::testing

int main() {
  using namespace spark_estimator::testing;
  return RunTests({{"an async error ends the group", AnAsyncErrorEndsTheGroup},
                   {"an init that hangs is given up", AnInitThatHangsIsGivenUp},
                   {"who leaves waits for its GPU", WhoLeavesWaitsForItsGpu},
                   {"who leaves holds nobody's stream", WhoLeavesHoldsNobodysStream},
                   {"a lost peer's kernels end", ALostPeersKernelsEnd}});
}
