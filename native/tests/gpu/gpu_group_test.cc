// Every operation of a group on every type, against float64, on tensors that are filled late and read at once; what
// NCCL is asked for, and in which order.
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <numeric>
#include <random>

#include "gpu_works.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

constexpr int32_t kDtypes[] = {SE_UINT8,    SE_INT8,    SE_INT32,   SE_INT64, SE_FLOAT16,
                               SE_BFLOAT16, SE_FLOAT32, SE_FLOAT64, SE_BOOL};

void AllreduceOfEveryTypeAndOp() {
  const uint32_t fresh = std::random_device{}();
  for (const int size : {1, 2, 3, 4}) {
    RunGroup(size, [&](Member& me) {
      Caller caller;
      uint32_t seed = fresh;
      for (const int32_t dtype : kDtypes) {
        for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE, SE_MIN, SE_MAX, SE_PRODUCT}) {
          for (const size_t count : {size_t{1}, size_t{7}, size_t{1000}, size_t{20000}}) {
            if (count == 20000 && (size != 3 || reduce_op != SE_SUM)) continue;  // more than the fake sends at once
            const Reduction reduction{dtype, reduce_op, 1, 1};
            if (!NcclOffers(SE_ALLREDUCE, reduction, size)) continue;
            Work work;
            StartAllreduce(me, caller, work, reduction, count, seed += 16, count == 7);
            caller.Synchronize();
            work.Check();
          }
        }
      }
    });
    CheckNothingLeft();
  }
}

void FactorsAreOneOperatorEach() {
  const uint32_t fresh = std::random_device{}();
  RunGroup(2, [&](Member& me) {
    Caller caller;
    uint32_t seed = fresh;
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16, SE_FLOAT32, SE_FLOAT64}) {
        for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE}) {
          for (const auto& [prescale, postscale] : {std::pair{0.5, 1.0}, std::pair{1.0, 3.0}, std::pair{-4.0, 0.75}}) {
            Work work;
            StartAllreduce(me, caller, work, {dtype, reduce_op, prescale, postscale}, 100, seed += 16, false);
            caller.Synchronize();
            work.Check();
          }
        }
      }
    }
    // 0.5, 3, -3, 0.25, 1.5, -1.5 of four types, on each rank.
    CHECK_OK(caller.Order(*me.group, [&](auto ready, auto done) { return me.group->Barrier(ready, done); }));
    caller.Synchronize();
    CHECK_EQ(Fake().fake_nccl_live_operators(), 48);
    CHECK_OK(caller.Order(*me.group, [&](auto ready, auto done) { return me.group->Barrier(ready, done); }));
    caller.Synchronize();
    // A factor that changes all the time does not pile operators up.
    for (int i = 0; i < 100; ++i) {
      Work work;
      StartAllreduce(me, caller, work, {SE_FLOAT64, SE_SUM, 2.0 + i, 1}, 3, seed += 16, false);
      caller.Synchronize();
      work.Check();
    }
    CHECK(Fake().fake_nccl_live_operators() <= 128);
  });
  CheckNothingLeft();
}

// Compares what the operation before has written; a joined rank may have no place for it.
template <typename Tensors, typename Works>
void CheckWritten(Caller& caller, const Tensors& tensors, Works& works) {
  for (size_t i = 0; i < works.size(); ++i) {
    if (tensors[i].output != nullptr) caller.Download(tensors[i].output, &works[i].output);
  }
  caller.Synchronize();
  for (size_t i = 0; i < works.size(); ++i) {
    if (tensors[i].output != nullptr) works[i].Check();
  }
}

void AJoinedRankTakesPartWithZeros() {
  const uint32_t seed = std::random_device{}();
  for (const bool with_output : {true, false}) {
    for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE, SE_MIN, SE_MAX}) {
      RunGroup(3, [&](Member& me) {
        const Reduction reduction{reduce_op == SE_AVERAGE ? SE_FLOAT32 : SE_INT32, reduce_op, 1, 1};
        const bool joined = me.rank == 1;
        Caller caller;
        constexpr size_t kCounts[] = {5, 3000};
        std::vector<Work> works(2);
        std::vector<ReduceTensor> tensors;
        for (size_t i = 0; i < works.size(); ++i) {
          Work& work = works[i];
          const size_t count = kCounts[i];
          work.dtype = reduction.dtype;
          work.what = Describe("with a joined rank:", reduction, count);
          work.input = ToBytes(reduction.dtype, RandomValues(reduction.dtype, reduce_op, count, seed + At(me.rank)));
          work.output.assign(work.input.size(), 0);
          work.expected = ReduceOf(reduction, 3, count, seed, 1);
          void* input = joined ? nullptr : work.memory.emplace_back(work.input.size()).get();
          void* output = joined && !with_output ? nullptr : work.memory.emplace_back(work.input.size()).get();
          if (input != nullptr) caller.Upload(work.input, input);
          tensors.push_back({input, output, count});
        }
        CHECK_OK(caller.Order(*me.group, [&](CudaEvent ready, CudaEvent done) {
          return me.group->Allreduce(tensors, reduction, ready, done);
        }));
        CheckWritten(caller, tensors, works);
      });
    }
  }
  CheckNothingLeft();
}

// The same for a reducescatter of equal and one of ragged rows, with its output and without.
void AJoinedRankScattersZeros() {
  const uint32_t seed = std::random_device{}();
  const Reduction reduction{SE_INT64, SE_SUM, 1, 1};
  const std::vector<size_t> shares[] = {{4, 4, 4}, {500, 300, 0}};
  for (const bool with_output : {true, false}) {
    RunGroup(3, [&](Member& me) {
      const bool joined = me.rank == 1;
      Caller caller;
      std::deque<Work> works;
      std::vector<ScatterTensor> tensors;
      for (const std::vector<size_t>& count_of : shares) {
        Work& work = works.emplace_back();
        const size_t count = std::accumulate(count_of.begin(), count_of.end(), size_t{0});
        const auto before = std::accumulate(count_of.begin(), count_of.begin() + me.rank, std::ptrdiff_t{0});
        const size_t own = count_of[At(me.rank)];
        const std::vector<double> all = ReduceOf(reduction, 3, count, seed, 1);
        work.dtype = SE_INT64;
        work.what = "reducescatter with a joined rank";
        work.input = ToBytes(SE_INT64, RandomValues(SE_INT64, SE_SUM, count, seed + At(me.rank)));
        work.expected.assign(all.begin() + before, all.begin() + before + static_cast<std::ptrdiff_t>(own));
        work.output.assign(own * 8, 0);
        void* input = joined ? nullptr : work.memory.emplace_back(work.input.size()).get();
        void* output = joined && !with_output ? nullptr : work.memory.emplace_back(work.output.size()).get();
        if (input != nullptr) caller.Upload(work.input, input);
        tensors.push_back({input, output, count_of});
      }
      CHECK_OK(caller.Order(*me.group, [&](CudaEvent ready, CudaEvent done) {
        return me.group->Reducescatter(tensors, reduction, ready, done);
      }));
      CheckWritten(caller, tensors, works);
    });
  }
  CheckNothingLeft();
}

void BroadcastFromEveryRoot() {
  const uint32_t fresh = std::random_device{}();
  RunGroup(3, [&](Member& me) {
    Caller caller;
    uint32_t seed = fresh;
    for (const int32_t dtype : {SE_INT16, SE_BOOL, SE_FLOAT16, SE_INT64, SE_FLOAT32}) {
      for (int root = 0; root < me.size; ++root) {
        for (const bool in_place : {false, true}) {
          Work work;
          StartBroadcast(me, caller, work, dtype, in_place ? 1 : 9000, root, seed += 16, in_place);
          caller.Synchronize();
          work.Check();
        }
      }
    }
  });
  CheckNothingLeft();
}

void AllgatherOfEqualAndRaggedRows() {
  const uint32_t fresh = std::random_device{}();
  RunGroup(3, [&](Member& me) {
    Caller caller;
    uint32_t seed = fresh;
    for (const int32_t dtype : {SE_INT16, SE_BOOL, SE_BFLOAT16, SE_FLOAT64}) {
      for (const auto& rows : {std::vector<size_t>{4, 4, 4}, {1, 0, 2}, {0, 0, 5}, {0, 0, 0}, {3000, 1, 4000}}) {
        for (const bool in_place : {false, true}) {
          Work work;
          StartAllgather(me, caller, work, dtype, rows, seed += 16, in_place);
          caller.Synchronize();
          work.Check();
        }
      }
    }
  });
  CheckNothingLeft();
}

void ReducescatterOfEqualAndRaggedRows() {
  const uint32_t fresh = std::random_device{}();
  RunGroup(3, [&](Member& me) {
    Caller caller;
    uint32_t seed = fresh;
    for (const int32_t dtype : kDtypes) {
      for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE}) {
        const Reduction reduction{dtype, reduce_op, 1, 1};
        if (!NcclOffers(SE_REDUCESCATTER, reduction, me.size)) continue;
        for (const int64_t rows : {6, 7, 2, 0, 900}) {
          for (const bool in_place : {false, true}) {
            Work work;
            StartReducescatter(me, caller, work, reduction, rows, 5, seed += 16, in_place);
            caller.Synchronize();
            work.Check();
          }
        }
      }
    }
  });
  CheckNothingLeft();
}

void AlltoallWithSplits() {
  const uint32_t fresh = std::random_device{}();
  for (const int size : {1, 2, 4}) {
    RunGroup(size, [&](Member& me) {
      Caller caller;
      for (uint32_t round = 0; round < 12; ++round) {
        Work work;
        const int32_t dtype = round % 3 == 0 ? SE_INT16 : round % 3 == 1 ? SE_FLOAT32 : SE_BOOL;
        StartAlltoall(me, caller, work, dtype, fresh + 16 * round, round < 3);
        caller.Synchronize();
        work.Check();
      }
    });
  }
  CheckNothingLeft();
}

// `done` of a barrier is reached when the last rank's stream has reached it.
void ABarrierWaitsForAllStreams() {
  std::atomic<int> arrived{0};
  struct Arrival {
    static void Run(void* count) { ++*static_cast<std::atomic<int>*>(count); }
  };
  decltype(::fake_cuda_enqueue)* enqueue = nullptr;
  CHECK_OK(Fake().cuda.library.Resolve("fake_cuda_enqueue", &enqueue));
  RunGroup(4, [&](Member& me) {
    Caller caller;
    for (int round = 1; round <= 10; ++round) {
      caller.Delay(me.rank * 1000);
      enqueue(caller.stream(), Arrival::Run, &arrived);
      CHECK_OK(caller.Order(*me.group, [&](auto ready, auto done) { return me.group->Barrier(ready, done); }));
      caller.Synchronize();
      CHECK(arrived >= 4 * round);
    }
  });
  CheckNothingLeft();
}

void OneRequestIsOneGroupOfCalls() {
  const std::vector<size_t> equal = {8, 8};
  const std::vector<size_t> ragged = {4, 8};
  const std::vector<size_t> counts = {2, 1};
  RunGroup(2, [&](Member& me) {
    const DeviceMemory memory(4096);
    auto* data = static_cast<uint8_t*>(memory.get());
    NcclGroup& group = *me.group;
    const std::vector<ReduceTensor> three = {
        {data, data, 10}, {data + 512, data + 512, 0}, {data + 1024, data + 1024, 20}};
    CHECK_OK(group.Allreduce(three, {SE_FLOAT32, SE_SUM, 1, 1}, nullptr, nullptr));
    CHECK_OK(group.Allreduce(three, {SE_FLOAT16, SE_AVERAGE, 1, 0.5}, nullptr, nullptr));
    CHECK_OK(group.Allreduce(three, {SE_BOOL, SE_SUM, 1, 1}, nullptr, nullptr));
    const std::vector<BroadcastTensor> two = {{data, data, 100}, {data + 512, data + 512, 50}};
    CHECK_OK(group.Broadcast(two, 1, nullptr, nullptr));
    const std::vector<GatherTensor> gathers = {{data + 8 * me.rank, data, equal}, {data + 512, data + 1024, ragged}};
    CHECK_OK(group.Allgather(gathers, nullptr, nullptr));
    const std::vector<ScatterTensor> scatters = {{data, data + 2048, counts}};
    CHECK_OK(group.Reducescatter(scatters, {SE_INT32, SE_MAX, 1, 1}, nullptr, nullptr));
    CHECK_OK(group.Alltoall(data, me.rank == 0 ? ragged : equal, data + 1024,
                            me.rank == 0 ? std::vector<size_t>{4, 8} : std::vector<size_t>{8, 8}, nullptr, nullptr));
    CHECK_OK(group.Barrier(nullptr, nullptr));
    // Nothing to do is no call.
    CHECK_OK(group.Allreduce({}, {SE_FLOAT32, SE_SUM, 1, 1}, nullptr, nullptr));
    CudaEvent done = nullptr;
    CHECK_OK(group.events().Take(&done));
    CHECK_OK(group.Barrier(nullptr, done));
    CHECK_EQ(Fake().cuda.EventSynchronize(done), 0);
    group.events().Give(done);
  });
  const std::string barrier = "GroupStart AllReduce(uint8,1,max) GroupEnd";
  CHECK_EQ(std::string(Fake().fake_nccl_calls(0)),
           "GroupStart AllReduce(float32,10,sum) AllReduce(float32,20,sum) GroupEnd "
           "GroupStart AllReduce(float16,10,premulsum(0.25)) AllReduce(float16,20,premulsum(0.25)) GroupEnd "
           "GroupStart AllReduce(uint8,10,max) AllReduce(uint8,20,max) GroupEnd "
           "GroupStart Broadcast(uint8,100,root 1) Broadcast(uint8,50,root 1) GroupEnd "
           "GroupStart AllGather(uint8,8) Broadcast(uint8,4,root 0) Broadcast(uint8,8,root 1) GroupEnd "
           "GroupStart Reduce(int32,2,max,root 0) Reduce(int32,1,max,root 1) GroupEnd "
           "GroupStart Send(uint8,4,to 0) Recv(uint8,4,from 0) Send(uint8,8,to 1) Recv(uint8,8,from 1) GroupEnd " +
               barrier + " " + barrier);
  CheckNothingLeft();
}

// Two caller streams per rank, late inputs, and no wait until the end.
void ManyOperationsOnTwoStreams() {
  const uint32_t fresh = std::random_device{}();
  std::cout << "seed " << fresh << std::endl;
  const int made = Fake().fake_cuda_events_made();
  RunGroup(3, [&](Member& me) {
    Caller callers[2];
    std::mt19937 common(fresh);                          // all ranks draw the same operations
    std::mt19937 own(fresh + 7919 * (1 + At(me.rank)));  // and each its own stream for them
    std::deque<Work> works;
    for (int i = 0; i < 200; ++i) {
      Work& work = works.emplace_back();
      Caller& caller = callers[own() % 2];
      StartAny(me, caller, work, kDtypes, 800, common);
    }
    for (Caller& caller : callers) caller.Synchronize();
    for (const Work& work : works) work.Check();
  });
  // Each rank's pool holds the two of one operation; five more are of the synchronisations (and of the callers' ends).
  CHECK(Fake().fake_cuda_events_made() - made <= 3 * (2 + 4));
  CheckNothingLeft();
}

void GroupsFollowOneAnotherAndStandSideBySide() {
  RunThreads(2, [&](int rank) {
    static const NcclUniqueId ids[3] = {MakeId(), MakeId(), MakeId()};
    std::unique_ptr<NcclGroup> first;
    std::unique_ptr<NcclGroup> second;
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, OptionsOf(rank, 2, ids[0]), &first));
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, OptionsOf(rank, 2, ids[1]), &second));
    for (NcclGroup* group : {first.get(), second.get(), first.get()}) {
      Caller caller;
      Member me{rank, 2, group};
      Work work;
      StartAllreduce(me, caller, work, {SE_INT64, SE_SUM, 1, 1}, 100, 5, false);
      caller.Synchronize();
      work.Check();
    }
    first.reset();
    CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, OptionsOf(rank, 2, ids[2]), &first));
    CHECK_OK(first->Barrier(nullptr, nullptr));
    CHECK_OK(second->Barrier(nullptr, nullptr));
    second.reset();
  });
  CheckNothingLeft();
}

// Before any thread runs: the fakes' meeting place serves processes.
void RanksMayBeProcesses() {
  const NcclUniqueId id = MakeId();
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    alarm(100);
    {
      CHECK_EQ(Fake().cuda.SetDevice(rank), 0);
      std::unique_ptr<NcclGroup> group;
      CHECK_OK(NcclGroup::Create(Fake().nccl, Fake().cuda, OptionsOf(rank, 3, id), &group));
      Member me{rank, 3, group.get()};
      Caller caller;
      for (uint32_t seed = 0; seed < 320; seed += 16) {
        Work reduced;
        Work gathered;
        StartAllreduce(me, caller, reduced, {SE_FLOAT32, SE_AVERAGE, 1, 1}, 5000, seed, false);
        StartAllgather(me, caller, gathered, SE_INT64, {100, 0, 3000}, seed, false);
        caller.Synchronize();
        reduced.Check();
        gathered.Check();
      }
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
}

// The fakes' files are removed with the last rank.
void NoFilesStay(const std::string& folder) { CHECK(std::filesystem::is_empty(folder)); }

}  // namespace

int main() {
  char folder[] = "/tmp/gpu_group_test.XXXXXX";
  CHECK(mkdtemp(folder) != nullptr);
  CHECK_EQ(setenv("TMPDIR", folder, 1), 0);
  const int result =
      RunTests({{"ranks may be processes", RanksMayBeProcesses},
                {"allreduce of every type and op", AllreduceOfEveryTypeAndOp},
                {"factors are one operator each", FactorsAreOneOperatorEach},
                {"a joined rank takes part with zeros", AJoinedRankTakesPartWithZeros},
                {"a joined rank scatters zeros", AJoinedRankScattersZeros},
                {"broadcast from every root", BroadcastFromEveryRoot},
                {"allgather of equal and ragged rows", AllgatherOfEqualAndRaggedRows},
                {"reducescatter of equal and ragged rows", ReducescatterOfEqualAndRaggedRows},
                {"alltoall with splits", AlltoallWithSplits},
                {"a barrier waits for all streams", ABarrierWaitsForAllStreams},
                {"one request is one group of calls", OneRequestIsOneGroupOfCalls},
                {"many operations on two streams", ManyOperationsOnTwoStreams},
                {"groups follow one another and stand side by side", GroupsFollowOneAnotherAndStandSideBySide},
                {"no files stay", [&] { NoFilesStay(folder); }}});
  std::filesystem::remove_all(folder);
  return result;
}
