// What engines with GPU tensors promise their callers, and what they refuse.
#include <latch>
#include <memory>

#include "gpu_engine_plain.h"

namespace spark_estimator::testing {
namespace {

// The memory of a result that is still being copied from is not another one's.
void ResultsAreNotOverwritten() {
  for (const int32_t operations : {SE_GPU_NCCL, SE_GPU_STAGED}) {
    RunRanks(2, OnGpu(Channel::kShared, operations), [](Rank& me) {
      GpuRank gpu(me);
      Caller late;
      std::vector<std::unique_ptr<DeviceMemory>> copies;
      std::vector<std::vector<uint8_t>> inputs;
      std::vector<std::unique_ptr<DeviceMemory>> given;
      inputs.reserve(6);
      for (uint8_t number = 0; number < 6; ++number) {
        inputs.emplace_back(1000, static_cast<uint8_t>(number + 1));
        given.push_back(std::make_unique<DeviceMemory>(1000));
        gpu.caller.Upload(inputs.back(), given.back()->get());
        Asked asked("gather" + std::to_string(number), SE_ALLGATHER);
        asked.With(given.back()->get(), nullptr, {1000}, SE_UINT8);
        const Submitted gathered = me.Submit(gpu.OnDevice(std::move(asked)));
        CHECK_EQ(me.Wait(gathered), SE_OK);
        copies.push_back(std::make_unique<DeviceMemory>(2000));
        late.Delay(3000);
        CHECK_EQ(se_copy_result(me.engine, gathered.handle, 0, copies.back()->get(), late.stream()), SE_OK);
        se_release(me.engine, gathered.handle);
      }
      late.Synchronize();
      for (uint8_t number = 0; number < 6; ++number) {
        CHECK(gpu.Read(copies[number]->get(), 2000) == std::vector<uint8_t>(2000, static_cast<uint8_t>(number + 1)));
      }
    });
    CheckNothingLeft();
  }
}

void PlacesMustBeTheSame() {
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_AUTO), [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, 1);
    for (const std::string name : {"x", "kind.noname"}) {
      Asked asked = plain.Sum(gpu, name);
      if (name != "x") asked.Unnamed();
      if (me.rank == 1) {
        asked.tensors[0].input = plain.input.data();
        asked.tensors[0].output = plain.input.data();
        asked.request.place = SE_HOST;
      }
      const std::string error = ErrorOf(me.Run(std::move(asked)));
      CHECK_CONTAINS(error, "Mismatched ALLREDUCE places: rank 0 has a GPU tensor; rank 1 has a CPU tensor");
    }
    // The group continues.
    Plain other(gpu, me.rank + 1);
    me.RunOk(other.Sum(gpu, "y"));
    other.CheckIs(gpu, 3);
  });
  CheckNothingLeft();
}

void PlansAndRunsOrderTheCallersStream() {
  for (const int32_t operations : {SE_GPU_NCCL, SE_GPU_STAGED}) {
    RunRanks(2, OnGpu(Channel::kShared, operations), [](Rank& me) {
      GpuRank gpu(me);
      Plain shape(gpu, 0);
      se_plan* plan = nullptr;
      Asked asked = shape.Sum(gpu, "plan");
      CHECK_EQ(se_plan_create(me.engine, asked.get(), &plan), SE_OK);
      for (int step = 0; step < 6; ++step) {
        Plain plain(gpu, me.rank + step);
        const void* inputs[] = {plain.on_gpu.get()};
        void* outputs[] = {plain.result.get()};
        int64_t handle = 0;
        if (step % 2 == 0) {
          CHECK_EQ(se_plan_run(plan, inputs, outputs, gpu.caller.stream(), 60, &handle), SE_OK);
          CHECK_EQ(handle, 0);
        } else {
          CHECK_EQ(se_plan_submit(plan, inputs, outputs, gpu.caller.stream(), SE_DEFER, &handle), SE_OK);
          me.Wait({SE_OK, handle});
          CHECK_EQ(se_await_on_stream(me.engine, handle, gpu.caller.stream()), SE_OK);
          se_release(me.engine, handle);
        }
        plain.CheckIs(gpu, 2 * step + 1);
      }
      se_plan_destroy(plan);
    });
    CheckNothingLeft();
  }
}

void AJoinedRankTakesPart() {
  for (const int32_t operations : {SE_GPU_NCCL, SE_GPU_STAGED}) {
    for (const bool used_before : {true, false}) {
      RunRanks(3, OnGpu(Channel::kShared, operations), [&](Rank& me) {
        GpuRank gpu(me);
        if (used_before) {
          Plain plain(gpu, 1);
          me.RunOk(plain.Sum(gpu, "before"));
          plain.CheckIs(gpu, 3);
        }
        if (me.rank < 2) {
          Plain plain(gpu, me.rank + 1);
          me.RunOk(plain.Sum(gpu, "after"));
          plain.CheckIs(gpu, 3);
          me.RunOk(plain.Reduce(gpu, "average", SE_AVERAGE));
          plain.CheckIs(gpu, 1);
        }
        me.RunOk(Asked("join", SE_JOIN));
        // What a rank that had shown no GPU kept open is settled now.
        Plain plain(gpu, 1);
        me.RunOk(plain.Sum(gpu, "all"));
        plain.CheckIs(gpu, 3);
        CHECK_CONTAINS(gpu.Way(), operations == SE_GPU_NCCL ? "NCCL 2.27.3" : "as was asked for");
      });
      CheckNothingLeft();
    }
  }
}

void WhatTheCallerDoesWrong() {
  RunRanks(1, OnGpu(Channel::kShared, SE_GPU_AUTO), [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, 1);
    Asked nowhere = plain.Sum(gpu, "x");
    nowhere.request.device = 8;
    CHECK_CONTAINS(ErrorOf(me.Run(nowhere)), "there is no CUDA device 8; this process sees 8");
    nowhere.request.device = -1;
    CHECK_CONTAINS(ErrorOf(me.Run(nowhere)), "there is no CUDA device -1");
    me.RunOk(plain.Sum(gpu, "x"));
    plain.CheckIs(gpu, 1);
    Asked elsewhere = plain.Sum(gpu, "x");
    elsewhere.request.device = 3;
    CHECK_CONTAINS(ErrorOf(me.Run(elsewhere)), "on CUDA device 3, and this rank has used device 0 before");
    Fake().fake_cuda_capture(gpu.caller.stream(), 1);
    CHECK_CONTAINS(ErrorOf(me.Run(plain.Sum(gpu, "x"))), "captured");
    Fake().fake_cuda_capture(gpu.caller.stream(), 0);
    const Submitted pending = me.Submit(plain.Sum(gpu, "x"));
    CHECK_EQ(se_copy_result(me.engine, pending.handle + 1, 0, plain.result.get(), nullptr), SE_INVALID_ARGUMENT);
    CHECK_EQ(me.Wait(pending), SE_OK);
    CHECK_EQ(se_copy_result(me.engine, pending.handle, 0, plain.result.get(), nullptr), SE_INVALID_ARGUMENT);
    se_release(me.engine, pending.handle);
    const Submitted on_host = me.Barrier("b");
    CHECK_EQ(me.Wait(on_host), SE_OK);
    CHECK_EQ(se_await_on_stream(me.engine, on_host.handle, nullptr), SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(se_last_error(), "barrier 'b' has no results on a GPU");
    gpu.caller.Synchronize();
  });
  CheckNothingLeft();
}

// The engine has its own to do with CUDA while the caller captures a graph.
void ACaptureIsNotDisturbed() {
  JobOptions options = OnGpu(Channel::kShared, SE_GPU_NCCL);
  options.heartbeat_seconds = 0.02;
  RunRanks(2, options, [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, me.rank + 1);
    std::latch end_of_capture(1);
    gpu.caller.Hold(&end_of_capture);
    const Submitted under_way = me.Submit(plain.Sum(gpu, "x"));
    CHECK_EQ(me.Wait(under_way), SE_OK);
    Caller captured;
    Fake().fake_cuda_capture(captured.stream(), 1);
    // Heartbeats ask after the operation meanwhile, and other operations make room for themselves.
    Asked asked("gather", SE_ALLGATHER);
    asked.With(plain.on_gpu.get(), nullptr, {1000});
    const Submitted gathers = me.Submit(gpu.OnDevice(std::move(asked)));
    CHECK_EQ(me.Wait(gathers), SE_OK);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    me.RunOk(Asked("all captured", SE_BARRIER));
    Fake().fake_cuda_capture(captured.stream(), 0);
    me.RunOk(Asked("all through", SE_BARRIER));
    end_of_capture.count_down();
    CHECK_EQ(se_await_on_stream(me.engine, under_way.handle, gpu.caller.stream()), SE_OK);
    plain.CheckIs(gpu, 3);
    se_release(me.engine, gathers.handle);
  });
  CheckNothingLeft();
}

void WhatIsMissingIsSaid() {
  JobOptions options = OnGpu(Channel::kShared, SE_GPU_AUTO);
  options.cuda_library = "/nowhere/libcudart.so";
  RunRanks(2, options, [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, 1);
    const std::string error = ErrorOf(me.Run(plain.Sum(gpu, "x")));
    CHECK_CONTAINS(error, "GPU tensors cannot be used");
    CHECK_CONTAINS(error, "nvidia-cuda-runtime");
    gpu.caller.Synchronize();
  });
  options = OnGpu(Channel::kShared, SE_GPU_AUTO);
  options.nccl_library = "/nowhere/libnccl.so";
  RunRanks(2, options, [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, me.rank + 1);
    CHECK_EQ(gpu.Way(), "");
    me.RunOk(plain.Sum(gpu, "x"));
    plain.CheckIs(gpu, 3);
    CHECK_CONTAINS(gpu.Way(), "through pinned host memory: rank 0 on testhost has no NCCL");
    CHECK_CONTAINS(gpu.Way(), "pip install nvidia-nccl");
  });
  options.gpu_operations = SE_GPU_NCCL;
  RunRanks(2, options, [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, me.rank + 1);
    const std::string error = ErrorOf(me.Run(plain.Sum(gpu, "x")));
    CHECK_CONTAINS(error, "NCCL was asked for, and cannot be used: rank 0 on testhost has no NCCL");
    gpu.caller.Synchronize();
  });
  CheckNothingLeft();
}

void RanksThatLeaveItAtTheFirstGpuAreTold() {
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_AUTO), [](Rank& me) {
    GpuRank gpu(me, 1, 0);
    Plain plain(gpu, me.rank + 1);
    const std::string error = ErrorOf(me.Run(plain.Sum(gpu, "x")));
    CHECK_CONTAINS(error, "rank 0 on testhost and rank 1 on testhost use the same GPU");
    CHECK_CONTAINS(error, "sees 8: call torch.cuda.set_device(hvd.local_rank())");
    gpu.caller.Synchronize();
  });
  CheckNothingLeft();
}

void NcclIsNotForRanksThatShareAGpu() {
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_NCCL), [](Rank& me) {
    GpuRank gpu(me, 1, 0);
    Plain plain(gpu, me.rank + 1);
    CHECK_CONTAINS(ErrorOf(me.Run(plain.Sum(gpu, "x"))), "rank 0 on testhost and rank 1 on testhost share one GPU");
    gpu.caller.Synchronize();
  });
  CheckNothingLeft();
}

// NCCL listens for connections as soon as it has made an id: only where it is used.
void NcclIsInvitedOnlyWhereItIsUsed() {
  const auto sum = [](Rank& me, int device) {
    GpuRank gpu(me, 1, device);
    Plain plain(gpu, me.rank + 1);
    me.RunOk(plain.Sum(gpu, "x"));
    plain.CheckIs(gpu, me.size == 1 ? 1 : 3);
  };
  const int before = Fake().fake_nccl_ids_made();
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_STAGED), [&](Rank& me) { sum(me, me.rank); });
  RunRanks(1, OnGpu(Channel::kShared, SE_GPU_AUTO), [&](Rank& me) { sum(me, 0); });
  CHECK_EQ(Fake().fake_nccl_ids_made(), before);
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_AUTO), [&](Rank& me) { sum(me, me.rank); });
  CHECK_EQ(Fake().fake_nccl_ids_made(), before + 1);

  Fake().fake_nccl_refuse_id(kNcclSystemError);
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_AUTO), [&](Rank& me) {
    sum(me, me.rank);
    CHECK_CONTAINS(GpuRank(me).Way(), "through pinned host memory, as NCCL failed: NCCL makes no id");
  });
  Fake().fake_nccl_refuse_id(kNcclSystemError);
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_NCCL), [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, me.rank + 1);
    CHECK_CONTAINS(ErrorOf(me.Run(plain.Sum(gpu, "x"))),
                   "NCCL makes no id for a communicator: NCCL reports: unhandled system error");
    gpu.caller.Synchronize();
  });
  CheckNothingLeft();
}

}  // namespace
}  // namespace spark_estimator::testing

int main() {
  using namespace spark_estimator::testing;
  return RunTests({{"results are not overwritten", ResultsAreNotOverwritten},
                   {"places must be the same", PlacesMustBeTheSame},
                   {"plans and runs order the caller's stream", PlansAndRunsOrderTheCallersStream},
                   {"a joined rank takes part", AJoinedRankTakesPart},
                   {"what the caller does wrong", WhatTheCallerDoesWrong},
                   {"a capture is not disturbed", ACaptureIsNotDisturbed},
                   {"what is missing is said", WhatIsMissingIsSaid},
                   {"ranks that leave it at the first GPU are told", RanksThatLeaveItAtTheFirstGpuAreTold},
                   {"NCCL is not for ranks that share a GPU", NcclIsNotForRanksThatShareAGpu},
                   {"NCCL is invited only where it is used", NcclIsInvitedOnlyWhereItIsUsed}});
}
