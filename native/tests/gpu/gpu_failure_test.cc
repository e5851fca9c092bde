// Failures in a group: ranks that never arrive, errors of NCCL, aborts in flight. It ends with a message, and the first
// reason is kept.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "gpu_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

const Reduction kSum{SE_FLOAT32, SE_SUM, 1, 1};

Status AllreduceOf(NcclGroup& group, void* data, size_t count, CudaEvent done = nullptr) {
  const ReduceTensor tensor{data, data, count};
  return group.Allreduce({&tensor, 1}, kSum, nullptr, done);
}

// What another thread or rank does shows soon; a test that hangs fails after a minute.
void Await(const std::function<bool()>& happened, const char* what) {
  for (const Time end = After(Seconds(60)); !happened();) {
    if (Clock::now() > end) Fail(__FILE__, __LINE__, std::string("in vain: ") + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// `missing`: reductions that the group does not offer.
void CheckRefusals(NcclGroup& group, std::initializer_list<Reduction> missing) {
  const DeviceMemory memory(64);
  const ReduceTensor tensor{memory.get(), memory.get(), 4};
  for (const Reduction& reduction : missing) {
    CHECK(!group.Offers(SE_ALLREDUCE, reduction));
    CHECK(!group.Offers(SE_REDUCESCATTER, reduction));
    const Status status = group.Allreduce({&tensor, 1}, reduction, nullptr, nullptr);
    CHECK_EQ(status.code(), SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(status.message(), DtypeName(reduction.dtype) + " by " + ReduceOpName(reduction.reduce_op));
  }
  const std::vector<size_t> three = {1, 2, 3};
  const GatherTensor gather{memory.get(), memory.get(), three};
  const ScatterTensor scatter{memory.get(), memory.get(), three};
  const BroadcastTensor broadcast{memory.get(), memory.get(), 4};
  const ReduceTensor nowhere{memory.get(), nullptr, 4};
  CHECK_EQ(group.Allreduce({&nowhere, 1}, kSum, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Broadcast({&broadcast, 1}, 2, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Broadcast({&broadcast, 1}, -1, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Allgather({&gather, 1}, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Reducescatter({&scatter, 1}, kSum, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(group.Alltoall(memory.get(), three, memory.get(), three, nullptr, nullptr).code(), SE_INVALID_ARGUMENT);
}

void InitThatHangsEndsAtTheDeadline() {
  Fake().fake_nccl_hang_init(1);
  const NcclUniqueId id = MakeId();
  RunThreads(2, [&](int rank) {
    NcclGroup::Options options = OptionsOf(rank, 2, id);
    options.deadline = Seconds(0.3);
    std::unique_ptr<NcclGroup> group;
    const Status status = NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group);
    CHECK(group == nullptr);
    CHECK_EQ(status.code(), SE_TIMED_OUT);
    CHECK_CONTAINS(status.message(), "rank " + std::to_string(rank) + " of 2 (CUDA device " + std::to_string(rank));
    CHECK_CONTAINS(status.message(), "joining the NCCL communicator: not done within 0.3 s");
    CHECK_CONTAINS(status.message(), "NCCL operation in progress");
    CHECK_CONTAINS(status.message(), "NCCL_DEBUG=INFO");
  });
  Fake().fake_nccl_hang_init(-1);
  CheckNothingLeft();
}

void InitEndsWhenAPeerIsGone() {
  Fake().fake_nccl_hang_init(1);
  const NcclUniqueId id = MakeId();
  std::latch both_give_up(2);  // who gave up before would be an error of NCCL to the other
  RunThreads(2, [&](int rank) {
    NcclGroup::Options options = OptionsOf(rank, 2, id);
    int asked = 0;
    options.abandoned = [&] {
      if (++asked < 30) return Status::Ok();
      both_give_up.arrive_and_wait();
      return Status(SE_PEER_LOST, "rank 7 on host-b has died");
    };
    std::unique_ptr<NcclGroup> group;
    const Status status = NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group);
    CHECK_EQ(status.code(), SE_PEER_LOST);
    CHECK_CONTAINS(status.message(), "gave up joining the NCCL communicator");
    CHECK_CONTAINS(status.message(), "rank 7 on host-b has died");
    CHECK_EQ(asked, 30);
  });
  Fake().fake_nccl_hang_init(-1);
  CheckNothingLeft();
}

void AnAbortEndsInit() {
  Fake().fake_nccl_hang_init(0);
  const NcclUniqueId id = MakeId();
  NcclGroup group(Fake().nccl, Fake().cuda, OptionsOf(0, 2, id));
  std::thread other([&] {
    Await([&] { return Fake().fake_nccl_live_comms() == 1; }, "a communicator");
    group.Abort(Status(SE_SHUT_DOWN, "the job is over"));
  });
  const Status status = group.Connect();
  other.join();
  CHECK_EQ(status.code(), SE_SHUT_DOWN);
  CHECK_EQ(status.message(), "the job is over");
  CHECK_EQ(group.Barrier(nullptr, nullptr).message(), "the job is over");
  Fake().fake_nccl_hang_init(-1);
}

void AnAbortBeforeInitIsKept() {
  NcclGroup group(Fake().nccl, Fake().cuda, OptionsOf(0, 1, MakeId()));
  CHECK_EQ(group.Barrier(nullptr, nullptr).code(), SE_INTERNAL);
  CHECK_EQ(group.AsyncError().code(), SE_INTERNAL);
  group.Abort(Status(SE_SHUT_DOWN, "too late"));
  CHECK_EQ(group.Connect().message(), "too late");
}

void ADeviceThatIsNotThereIsNamed() {
  NcclGroup::Options options = OptionsOf(0, 1, MakeId());
  options.device = 77;
  std::unique_ptr<NcclGroup> group;
  const Status status = NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group);
  CHECK_EQ(status.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(status.message(), "CUDA device 77");
  CHECK_CONTAINS(status.message(), "invalid device ordinal");
}

void AnIdOfNobodyIsRefused() {
  NcclGroup::Options options = OptionsOf(0, 1, NcclUniqueId());
  std::unique_ptr<NcclGroup> group;
  const Status status = NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group);
  CHECK_EQ(status.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(status.message(), "joining the NCCL communicator: NCCL reports: unhandled system error");
  CheckNothingLeft();
}

// A caller's mistake is refused before anything is sent, and the group continues.
void WhatMakesNoSenseLeavesTheGroupAsItWas() {
  RunGroup(2, [&](Member& me) {
    const DeviceMemory memory(64);
    CheckRefusals(*me.group, {{SE_INT32, SE_AVERAGE, 1, 1},
                              {SE_FLOAT32, SE_ADASUM, 1, 1},
                              {SE_INT16, SE_SUM, 1, 1},
                              {SE_FLOAT32, SE_MAX, 0.5, 1}});
    CHECK_OK(AllreduceOf(*me.group, memory.get(), 4));
  });
  CheckNothingLeft();
}

void AnErrorOfNcclIsFoundByTheHeartbeat() {
  const NcclUniqueId id = MakeId();
  RunThreads(2, [&](int rank) {
    NcclGroup::Options options = OptionsOf(rank, 2, id);
    options.farewell = Seconds(0.2);  // rank 1 leaves without an answer
    std::unique_ptr<NcclGroup> group;
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group));
    CHECK_OK(group->Barrier(nullptr, nullptr));
    CHECK_OK(group->AsyncError());
    if (rank == 1) return;
    Fake().fake_nccl_fail_async(0, kNcclRemoteError);
    const Status status = group->AsyncError();
    CHECK_EQ(status.code(), SE_PEER_LOST);
    CHECK_CONTAINS(status.message(), "remote process exited");
    CHECK_CONTAINS(status.message(), "the fake was told to fail");
    group->Abort(Status(SE_SHUT_DOWN, "later"));
    CHECK_EQ(group->AsyncError().message(), status.message());
    CHECK_EQ(group->Barrier(nullptr, nullptr).message(), status.message());
    CHECK_EQ(AllreduceOf(*group, nullptr, 1).message(), status.message());
  });
  CheckNothingLeft();
}

void ACallThatNcclRefusesBreaksTheGroup() {
  const NcclUniqueId id = MakeId();
  RunThreads(2, [&](int rank) {
    NcclGroup::Options options = OptionsOf(rank, 2, id);
    options.farewell = Seconds(0.2);
    std::unique_ptr<NcclGroup> group;
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group));
    if (rank == 1) return;
    Fake().fake_nccl_refuse(0, kNcclInvalidUsage);
    const Status status = group->Barrier(nullptr, nullptr);
    CHECK_EQ(status.code(), SE_INTERNAL);
    CHECK_CONTAINS(status.message(), "rank 0 of 2 (CUDA device 0), barrier: NCCL reports: invalid usage");
    CHECK_EQ(group->AsyncError().message(), status.message());
    // The thread's group of calls is closed nevertheless: another communicator works in it.
    std::unique_ptr<NcclGroup> alone;
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, OptionsOf(0, 1, MakeId()), &alone));
    Fake().fake_nccl_forget();
    CHECK_OK(alone->Barrier(nullptr, nullptr));
    CHECK_EQ(std::string(Fake().fake_nccl_calls(0)), "GroupStart AllReduce(uint8,1,max) GroupEnd");
  });
  CheckNothingLeft();
}

// The other rank never arrives: the kernel waits, and `done` is not reached until the group is aborted.
void AnAbortEndsAKernelThatWaits() {
  const NcclUniqueId id = MakeId();
  std::atomic<bool> ended{false};
  RunThreads(2, [&](int rank) {
    NcclGroup::Options options = OptionsOf(rank, 2, id);
    options.farewell = Seconds(0.2);
    std::unique_ptr<NcclGroup> group;
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group));
    if (rank == 1) return Await([&] { return ended.load(); }, "the other rank's end");
    const DeviceMemory memory(4000);
    CudaEvent done = nullptr;
    CHECK_OK(group->events().Take(&done));
    CHECK_OK(AllreduceOf(*group, memory.get(), 1000, done));
    CHECK_EQ(Fake().cuda.QueryEvent(done), kCudaNotReady);
    std::thread other([&] { group->Abort(Status(SE_PEER_LOST, "rank 1 has died")); });
    CHECK_EQ(Fake().cuda.EventSynchronize(done), 0);
    // Who has seen `done` asks.
    CHECK_EQ(group->AsyncError().message(), "rank 1 has died");
    other.join();
    group->events().Give(done);
    group.reset();
    ended = true;
  });
  CheckNothingLeft();
}

// The first operations connect the ranks, which NCCL does not finish here.
void WaitingForALaunchEnds() {
  enum Way {
    kDeadline,
    kPeerGone,
    kAbort
  };
  for (const Way way : {kDeadline, kPeerGone, kAbort}) {
    NcclGroup::Options options = OptionsOf(0, 1, MakeId());
    std::atomic<bool> operating{false};
    if (way == kDeadline) options.deadline = Seconds(0.2);
    options.abandoned = [&] {
      return operating && way == kPeerGone ? Status(SE_PEER_LOST, "rank 1 is gone") : Status::Ok();
    };
    std::unique_ptr<NcclGroup> group;
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group));
    Fake().fake_nccl_slowness(1 << 30);
    operating = true;
    std::thread other;
    if (way == kAbort) {
      other = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        group->Abort(Status());
      });
    }
    const Status status = group->Barrier(nullptr, nullptr);
    if (other.joinable()) other.join();
    CHECK_EQ(status.code(), way == kDeadline ? SE_TIMED_OUT : way == kPeerGone ? SE_PEER_LOST : SE_SHUT_DOWN);
    CHECK_CONTAINS(status.message(), way == kDeadline   ? "barrier: not done within 0.2 s"
                                     : way == kPeerGone ? "rank 1 is gone"
                                                        : "has aborted its NCCL communicator");
    group.reset();
    Fake().fake_nccl_slowness(2);
  }
  CheckNothingLeft();
}

void ContradictionsAreErrors() {
  struct Case {
    size_t counts[2];
    int32_t dtypes[2];
  };
  for (const Case& different : {Case{{10, 11}, {SE_FLOAT32, SE_FLOAT32}}, Case{{10, 10}, {SE_FLOAT32, SE_INT32}}}) {
    const NcclUniqueId id = MakeId();
    RunThreads(2, [&](int rank) {
      std::unique_ptr<NcclGroup> group;
      CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, OptionsOf(rank, 2, id), &group));
      const DeviceMemory memory(64);
      const ReduceTensor tensor{memory.get(), memory.get(), different.counts[rank]};
      CudaEvent done = nullptr;
      CHECK_OK(group->events().Take(&done));
      const Status handed = group->Allreduce({&tensor, 1}, {different.dtypes[rank], SE_SUM, 1, 1}, nullptr, done);
      if (handed.ok()) CHECK_EQ(Fake().cuda.EventSynchronize(done), 0);
      Await([&] { return !group->AsyncError().ok(); }, "an error");
      group->events().Give(done);
    });
  }
  CheckNothingLeft();
}

// Who leaves while a peer stays does not stay with it for ever.
void AGoodbyeInVainEnds() {
  const NcclUniqueId id = MakeId();
  std::atomic<bool> left{false};
  RunThreads(2, [&](int rank) {
    NcclGroup::Options options = OptionsOf(rank, 2, id);
    options.farewell = Seconds(0.2);
    std::unique_ptr<NcclGroup> group;
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, options, &group));
    if (rank == 1) Await([&] { return left.load(); }, "the other rank's end");
    group.reset();
    left = true;
  });
  CheckNothingLeft();
}

// Many threads break one group while another one uses it.
void AbortsFromEverywhere() {
  for (int round = 0; round < 20; ++round) {
    const NcclUniqueId id = MakeId();
    RunThreads(2, [&](int rank) {
      NcclGroup::Options options = OptionsOf(rank, 2, id);
      options.farewell = Seconds(0.2);
      NcclGroup group(Fake().nccl, Fake().cuda, options);
      std::vector<std::thread> others;
      for (int i = 0; i < 3; ++i) {
        others.emplace_back([&, i] {
          std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
          if (i == 2) (void)group.AsyncError();
          group.Abort(Status(SE_PEER_LOST, "reason " + std::to_string(i)));
        });
      }
      Status status = group.Connect();
      const DeviceMemory memory(400);
      while (status.ok()) status = AllreduceOf(group, memory.get(), 100);
      // The other rank may leave first, for which NCCL has its own error text.
      for (std::thread& other : others) other.join();
      CHECK_EQ(group.AsyncError().message(), status.message());
    });
  }
  CheckNothingLeft();
}

}  // namespace

int main() {
  char folder[] = "/tmp/gpu_failure_test.XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  CHECK_EQ(setenv("TMPDIR", folder, 1), 0);
  const int result =
      RunTests({{"init that hangs ends at the deadline", InitThatHangsEndsAtTheDeadline},
                {"init ends when a peer is gone", InitEndsWhenAPeerIsGone},
                {"an abort ends init", AnAbortEndsInit},
                {"an abort before init is kept", AnAbortBeforeInitIsKept},
                {"a device that is not there is named", ADeviceThatIsNotThereIsNamed},
                {"an id of nobody is refused", AnIdOfNobodyIsRefused},
                {"what makes no sense leaves the group as it was", WhatMakesNoSenseLeavesTheGroupAsItWas},
                {"an error of NCCL is found by the heartbeat", AnErrorOfNcclIsFoundByTheHeartbeat},
                {"a call that NCCL refuses breaks the group", ACallThatNcclRefusesBreaksTheGroup},
                {"an abort ends a kernel that waits", AnAbortEndsAKernelThatWaits},
                {"waiting for a launch ends", WaitingForALaunchEnds},
                {"contradictions are errors", ContradictionsAreErrors},
                {"a goodbye in vain ends", AGoodbyeInVainEnds},
                {"aborts from everywhere", AbortsFromEverywhere}});
  std::filesystem::remove_all(folder);
  return result;
}
