// What goes wrong among ranks that share one GPU: a device that cannot, ranks that die or fail, aborts under way. It
// ends, with a sentence on every rank, and what waited on the device comes.
#include <csignal>
#include <random>

#include "gpu_failures.h"
#include "gpu_works.h"
#include "one_gpu_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

// A broken group leaves its buffer to the process's end.
int buffers_left = 0;
void CheckOnlyBuffersLeft(int more) { CheckNothingLeft(buffers_left += more); }

// Every rank tries to connect; returns what each was told.
std::vector<Status> Connected(int size, const std::function<void(SharedGpuGroup::Options&)>& change,
                              DeviceKernels* kernels = nullptr) {
  const HostExchange::RoomPtr room = HostExchange::MakeRoom();
  std::vector<Status> told(At(size));
  OnOneGpu(size, [&](int rank) {
    SharedGpuGroup::Options options = OptionsOf(room.get(), rank, size);
    change(options);
    std::unique_ptr<SharedGpuGroup> group;
    told[At(rank)] =
        SharedGpuGroup::Create(Fake().cuda, kernels != nullptr ? *kernels : *Driver().kernels, options, &group);
  });
  return told;
}

// All ranks are told the same.
void CheckToldAlike(const std::vector<Status>& told, se_status code, const std::string& what) {
  for (const Status& status : told) {
    CHECK_EQ(status.code(), code);
    CHECK_CONTAINS(status.message(), what);
    CHECK_EQ(status.message(), told[0].message());
  }
}

// Before any thread runs. A rank is killed between its peers' operations and its own: what waits for it on the device
// is released by Abort.
void ARankThatDiesReleasesTheOthers() {
  const HostExchange::RoomPtr room = HostExchange::MakeRoom();
  std::atomic<int>& lost = room->lost;
  const std::vector<pid_t> children = StartProcesses(3, [&](int rank) {
    SharedGpuGroup::Options options = OptionsOf(room.get(), rank, 3);
    std::unique_ptr<SharedGpuGroup> group;
    CHECK_OK(SharedGpuGroup::Create(Fake().cuda, *Driver().kernels, options, &group));
    const DeviceMemory memory(40000);
    CHECK_OK(AllreduceOf(*group, memory.get(), 10000));
    if (rank == 1) {
      lost = 1;
      std::raise(SIGKILL);
    }
    CudaEvent done = nullptr;
    CHECK_OK(group->events().Take(&done));
    CHECK_OK(AllreduceOf(*group, memory.get(), 10000, done));
    Await([&] { return lost == 1; }, "the other's end");
    CHECK_EQ(Fake().cuda.QueryEvent(done), kCudaNotReady);
    CHECK_OK(group->AsyncError());
    group->Abort(Status(SE_PEER_LOST, "rank 1 has died"));
    Await([&] { return Fake().cuda.QueryEvent(done) == 0; }, "the end of what waited");
    CHECK_EQ(group->AsyncError().message(), "rank 1 has died");
    CHECK_EQ(AllreduceOf(*group, memory.get(), 1).message(), "rank 1 has died");
    group->events().Give(done);
  });
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = -1;
    CHECK_EQ(waitpid(children[rank], &status, 0), children[rank]);
    if (rank == 1) {
      CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    } else {
      CHECK_EQ(status, 0);
    }
  }
}

// Before any thread runs. Its memory is gone before the others have mapped it.
void ARankThatDiesWhileConnecting() {
  const HostExchange::RoomPtr room = HostExchange::MakeRoom();
  AwaitProcesses(StartProcesses(2, [&](int rank) {
    SharedGpuGroup::Options options = OptionsOf(room.get(), rank, 2);
    const auto exchange = options.exchange;
    int round = 0;
    options.exchange = [&, exchange](const void* mine, size_t bytes, void* all) {
      if (rank == 1 && ++round == 2) {
        room->lost = 1;
        _exit(0);
      }
      return exchange(mine, bytes, all);
    };
    std::unique_ptr<SharedGpuGroup> group;
    const Status status = SharedGpuGroup::Create(Fake().cuda, *Driver().kernels, options, &group);
    CHECK_EQ(status.code(), SE_PEER_LOST);
    CHECK_CONTAINS(status.message(), "rank 0 of 2 (sharing CUDA device 0), connecting: rank 1 has died");
  }));
}

void WhatADeviceLacksIsSaid() {
  const CudaApi& cuda = Fake().cuda;
  const DriverApi& driver = Driver().driver;
  CHECK_OK(SharedGpuGroup::Usable(cuda, driver, 0, 4));
  const auto says = [&](int device, int size, const std::string& what) {
    const Status status = SharedGpuGroup::Usable(cuda, driver, device, size);
    CHECK_EQ(status.code(), SE_SYSTEM_ERROR);
    CHECK_CONTAINS(status.message(), what);
    CHECK_EQ(cuda.GetLastError(), 0);
  };
  says(0, 65, "CUDA device 0 is shared by 65 ranks, and at most 64");
  says(88, 2, "invalid device ordinal");
  Driver().fake_driver_attribute(kDriverUnifiedAddressing, 0);
  says(0, 2, "no unified addressing");
  Driver().fake_driver_attribute(kDriverUnifiedAddressing, 1);
  Driver().fake_driver_attribute(kDriverMemoryOperations64, 0);
  says(0, 2, "cuStreamWaitValue64");
  Driver().fake_driver_attribute(kDriverMemoryOperations64, 1);
  Driver().fake_cuda_fail_export(801);
  says(3, 2, "CUDA device 3 does not let processes share its memory (CUDA IPC;");
  says(3, 2, "offering device memory to other processes: ");
  CheckToldAlike(Connected(2, [](auto&) {}), SE_SYSTEM_ERROR,
                 "rank 0 of 2 (sharing CUDA device 0): offering device memory to other processes");
  Driver().fake_cuda_fail_export(0);
  CheckOnlyBuffersLeft(0);
}

// One rank cannot, and all of them are told of it: they can agree on another way.
void AFailureToConnectIsEverybodys() {
  CheckToldAlike(Connected(3,
                           [](SharedGpuGroup::Options& options) {
                             if (options.rank == 2) options.device = 77;
                           }),
                 SE_SYSTEM_ERROR, "rank 2 of 3 (sharing CUDA device 77): choosing device 77");
  CheckToldAlike(Connected(2,
                           [](SharedGpuGroup::Options& options) {
                             if (options.rank == 1) options.device = 1;
                           }),
                 SE_INTERNAL, " on GPU ");
  CheckToldAlike(Connected(2,
                           [](SharedGpuGroup::Options& options) {
                             if (options.rank == 1) options.slot_bytes *= 2;
                           }),
                 SE_INTERNAL, "slots of 4096 bytes");
  CheckToldAlike(Connected(2, [](SharedGpuGroup::Options& options) { options.slot_bytes = 1000; }), SE_INVALID_ARGUMENT,
                 "must be a multiple of 16");
  CheckOnlyBuffersLeft(0);
}

void AnOldNvrtcIsEverybodysSentence() {
  for (const int dtype : {-1, int{SE_FLOAT32}}) {
    DeviceKernels kernels(Driver().driver, Driver().nvrtc);
    Driver().fake_nvrtc_fail(dtype);
    const std::vector<Status> told = Connected(2, [](auto&) {}, &kernels);
    Driver().fake_nvrtc_fail(-2);
    CheckToldAlike(told, SE_SYSTEM_ERROR, "the fake was told to fail");
    CHECK_CONTAINS(told[0].message(), "rank 0 of 2 (sharing CUDA device 0)");
  }
  CheckOnlyBuffersLeft(0);
}

void MemoryThatCannotBeMapped() {
  Driver().fake_cuda_refuse_open(1);
  const std::vector<Status> told = Connected(2, [](auto&) {});
  Driver().fake_cuda_refuse_open(0);
  CheckToldAlike(told, SE_SYSTEM_ERROR, "mapping the device memory of rank ");
  CheckOnlyBuffersLeft(2);
}

// A rank gives the trial up, and the other one waits for it in vain: both are told the first one's reason.
void ATrialThatDoesNotEnd() {
  std::atomic<bool> given_up{false};
  const std::vector<Status> told = Connected(2, [&](SharedGpuGroup::Options& options) {
    auto rounds = std::make_shared<int>(0);
    const auto exchange = options.exchange;
    const bool gives_up = options.rank == 0;
    options.exchange = [&given_up, exchange, rounds, gives_up](const void* mine, size_t bytes, void* all) {
      const Status status = exchange(mine, bytes, all);
      if (++*rounds == 2 && !gives_up) Await([&] { return given_up.load(); }, "the other's end");
      return status;
    };
    if (!gives_up) {
      options.deadline = Seconds(2);
      return;
    }
    options.abandoned = [&given_up, rounds] {
      if (*rounds < 2) return Status::Ok();
      given_up = true;
      return Status(SE_PEER_LOST, "rank 7 on host-b has died");
    };
  });
  CheckToldAlike(told, SE_PEER_LOST, "rank 0 of 2 (sharing CUDA device 0) gave up ");
  CHECK_CONTAINS(told[0].message(), "rank 7 on host-b has died");
  CheckOnlyBuffersLeft(2);
}

void WhatMakesNoSenseLeavesTheGroupAsItWas() {
  ShareGpu(2, kSmallSlot, [&](Sharer& me) {
    const DeviceMemory memory(64);
    CheckRefusals(*me.group, {{SE_FLOAT32, SE_ADASUM, 1, 1}, {SE_BOOL, SE_AVERAGE, 1, 1}, {42, SE_SUM, 1, 1}});
    for (const int32_t op : {SE_BROADCAST, SE_ALLGATHER, SE_ALLTOALL, SE_BARRIER}) CHECK(me.group->Offers(op, {}));
    CHECK(!me.group->Offers(SE_JOIN, {}));
    // Contradictions are found by all ranks before anything is sent.
    const std::vector<size_t> sends = {4, me.rank == 0 ? size_t{8} : size_t{4}};
    const std::vector<size_t> receives = {4, 4};
    const Status contradiction = me.group->Alltoall(memory.get(), sends, memory.get(), receives, nullptr, nullptr);
    CHECK_EQ(contradiction.code(), SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(contradiction.message(), "rank 0 sends 8 bytes to rank 1, which expects 4");
    CHECK_OK(AllreduceOf(*me.group, memory.get(), 4));
  });
  CheckOnlyBuffersLeft(0);
}

void BeforeConnectAndTwice() {
  const HostExchange::RoomPtr room = HostExchange::MakeRoom();
  {
    SharedGpuGroup group(Fake().cuda, *Driver().kernels, OptionsOf(room.get(), 0, 1));
    CHECK_EQ(group.Barrier(nullptr, nullptr).code(), SE_INTERNAL);
    CHECK_EQ(group.AsyncError().code(), SE_INTERNAL);
    CHECK_OK(group.Connect());
    CHECK_OK(group.Barrier(nullptr, nullptr));
    CHECK_EQ(group.Connect().code(), SE_INTERNAL);
    CHECK_OK(group.AsyncError());
  }
  SharedGpuGroup aborted(Fake().cuda, *Driver().kernels, OptionsOf(room.get(), 0, 1));
  aborted.Abort(Status(SE_SHUT_DOWN, "too late"));
  CHECK_EQ(aborted.Connect().message(), "too late");
  CheckOnlyBuffersLeft(0);
}

// A launch that CUDA refuses, anywhere in an operation: the rank is told at once, and the others when they are aborted;
// nobody hangs, and nobody who has not failed reads nonsense.
void ALaunchThatIsRefused() {
  for (const int after : {0, 1, 5, 20, 33}) {
    const HostExchange::RoomPtr room = HostExchange::MakeRoom();
    std::atomic<int> connected{0};
    std::atomic<int> failed{0};
    OnOneGpu(2, [&](int rank) {
      SharedGpuGroup::Options options = OptionsOf(room.get(), rank, 2, 64);
      std::unique_ptr<SharedGpuGroup> group;
      CHECK_OK(SharedGpuGroup::Create(Fake().cuda, *Driver().kernels, options, &group));
      ++connected;
      Await([&] { return connected == 2; }, "the other rank");
      const DeviceMemory memory(4000);
      CudaEvent done = nullptr;
      CHECK_OK(group->events().Take(&done));
      if (rank == 0) {
        Driver().fake_driver_fail_launch(after, 719);
        const Status status = AllreduceOf(*group, memory.get(), 1000, done);
        CHECK_EQ(status.code(), SE_SYSTEM_ERROR);
        CHECK_CONTAINS(status.message(), "rank 0 of 2 (sharing CUDA device 0), allreduce: launching a kernel");
        CHECK_CONTAINS(status.message(), "CUDA driver error 719");
        group->Abort(Status(SE_SHUT_DOWN, "later"));
        CHECK_EQ(group->AsyncError().message(), status.message());
        failed = 1;
      } else {
        Await([&] { return failed == 1; }, "the failure");
        CHECK_OK(AllreduceOf(*group, memory.get(), 1000, done));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK_EQ(Fake().cuda.QueryEvent(done), kCudaNotReady);
        group->Abort(Status(SE_PEER_LOST, "rank 0 has failed"));
        Await([&] { return Fake().cuda.QueryEvent(done) == 0; }, "the end of what waited");
      }
      group->events().Give(done);
      room->lost = 0;
    });
    CheckOnlyBuffersLeft(2);
  }
  Driver().fake_driver_fail_launch(-1, 0);
}

// One rank is aborted in the middle of operations. What the other one has been told is there is right.
void AnAbortLeavesTheOthersDataAlone() {
  const uint32_t fresh = std::random_device{}();
  for (uint32_t round = 0; round < 20; ++round) {
    const HostExchange::RoomPtr room = HostExchange::MakeRoom();
    std::atomic<bool> over{false};
    OnOneGpu(2, [&](int rank) {
      SharedGpuGroup::Options options = OptionsOf(room.get(), rank, 2, 256);
      std::unique_ptr<SharedGpuGroup> group;
      CHECK_OK(SharedGpuGroup::Create(Fake().cuda, *Driver().kernels, options, &group));
      Sharer me{rank, 2, group.get(), room.get()};
      std::mt19937 random(fresh + round + At(rank));
      Caller caller;
      std::deque<Work> works;
      std::vector<CudaEvent> ends;
      // Behind the first few the reader falls behind, and its peer's slots must stay as they are.
      for (int i = 0; i < 8; ++i) {
        if (rank == 1 && i == 4) Fake().fake_cuda_delay(group->stream(), 3000);
        StartAllreduce(me, caller, works.emplace_back(), kSum, 700, fresh + 16 * static_cast<uint32_t>(i), false);
        CHECK_OK(group->events().Take(&ends.emplace_back()));
        CHECK_EQ(Fake().cuda.EventRecord(ends.back(), group->stream()), 0);
      }
      if (rank == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
        group->Abort(Status(SE_SHUT_DOWN, "enough"));
        caller.Synchronize();  // all of them come
        over = true;
      } else {
        Await([&] { return over.load(); }, "the abort");
        // Long enough for whatever is still to come by itself.
        Await(
            [&] {
              int come = 0;
              for (const CudaEvent end : ends) come += Fake().cuda.QueryEvent(end) == 0;
              std::this_thread::sleep_for(std::chrono::milliseconds(8));
              int later = 0;
              for (const CudaEvent end : ends) later += Fake().cuda.QueryEvent(end) == 0;
              return come == later;
            },
            "rest");
        size_t come = 0;
        while (come < ends.size() && Fake().cuda.QueryEvent(ends[come]) == 0) ++come;
        group->Abort(Status(SE_PEER_LOST, "rank 0 has left"));
        caller.Synchronize();
        for (size_t i = 0; i < come; ++i) works[i].Check();
      }
      for (const CudaEvent end : ends) group->events().Give(end);
      room->lost = 0;
    });
    CheckOnlyBuffersLeft(2);
  }
}

// The destructor of a healthy group whose peer does not come to its goodbye.
void AGoodbyeThatNobodyAnswers() {
  const HostExchange::RoomPtr room = HostExchange::MakeRoom();
  std::atomic<bool> gone{false};
  OnOneGpu(2, [&](int rank) {
    std::unique_ptr<SharedGpuGroup> group;
    CHECK_OK(SharedGpuGroup::Create(Fake().cuda, *Driver().kernels, OptionsOf(room.get(), rank, 2), &group));
    if (rank == 0) {
      room->lost = 1;
      group.reset();
      gone = true;
    } else {
      Await([&] { return gone.load(); }, "the other's goodbye");
      group->Abort(Status());
      CHECK_CONTAINS(group->AsyncError().message(), "rank 1 of 2 (sharing CUDA device 0) has left its group");
    }
  });
  CheckOnlyBuffersLeft(2);
}

}  // namespace

int main() {
  return RunTests({{"a rank that dies releases the others", ARankThatDiesReleasesTheOthers},
                   {"a rank that dies while connecting", ARankThatDiesWhileConnecting},
                   {"what a device lacks is said", WhatADeviceLacksIsSaid},
                   {"a failure to connect is everybody's", AFailureToConnectIsEverybodys},
                   {"an old NVRTC is everybody's sentence", AnOldNvrtcIsEverybodysSentence},
                   {"memory that cannot be mapped", MemoryThatCannotBeMapped},
                   {"what makes no sense leaves the group as it was", WhatMakesNoSenseLeavesTheGroupAsItWas},
                   {"before Connect and twice", BeforeConnectAndTwice},
                   {"a trial that does not end", ATrialThatDoesNotEnd},
                   {"a launch that is refused", ALaunchThatIsRefused},
                   {"an abort leaves the others' data alone", AnAbortLeavesTheOthersDataAlone},
                   {"a goodbye that nobody answers", AGoodbyeThatNobodyAnswers}});
}
