// Every operation of ranks that share one GPU, on every type, in chunks of all sizes, against float64, on tensors that
// are filled late and read at once; as threads and as processes.
#include <random>

#include "gpu_works.h"
#include "one_gpu_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

// What float64 says of an integer's average is truncated, as the engine does.
void Truncate(Work& work) {
  if (!IsInteger(work.dtype)) return;
  for (double& value : work.expected) value = std::trunc(value);
}

void SynchronizeAndCheck(Caller& caller, Work& work) {
  caller.Synchronize();
  Truncate(work);
  work.Check();
}

// Before any thread runs.
void RanksMayBeProcesses() {
  const HostExchange::RoomPtr room = HostExchange::MakeRoom();
  const uint32_t fresh = std::random_device{}();
  AwaitProcesses(StartProcesses(3, [&](int rank) {
    CHECK_EQ(Fake().cuda.SetDevice(0), 0);
    RunSharer(OptionsOf(room.get(), rank, 3), room.get(), [&](Sharer& me) {
      Caller caller;
      uint32_t seed = fresh;
      for (int round = 0; round < 20; ++round) {
        Work works[5];
        StartAllreduce(me, caller, works[0], {SE_FLOAT32, SE_AVERAGE, 1, 1}, 5000, seed += 16, false);
        StartAllgather(me, caller, works[1], SE_INT64, {100, 0, 3000}, seed += 16, false);
        StartAlltoall(me, caller, works[2], SE_INT16, seed += 16, false);
        StartReducescatter(me, caller, works[3], {SE_BFLOAT16, SE_SUM, 1, 1}, 7, 300, seed += 16, true);
        StartBroadcast(me, caller, works[4], SE_FLOAT64, 1000, round % 3, seed += 16, false);
        for (Work& work : works) SynchronizeAndCheck(caller, work);
      }
    });
    CheckNothingLeft();
  }));
}

void AllreduceOfEveryTypeAndOp() {
  const uint32_t fresh = std::random_device{}();
  for (const int size : {1, 2, 3, 4}) {
    ShareGpu(size, kSmallSlot, [&](Sharer& me) {
      Caller caller;
      uint32_t seed = fresh;
      for (const int32_t dtype : kDtypes) {
        for (const int32_t reduce_op : kReduceOps) {
          const Reduction reduction{dtype, reduce_op, 1, 1};
          CHECK_EQ(me.group->Offers(SE_ALLREDUCE, reduction), dtype != SE_BOOL || reduce_op != SE_AVERAGE);
          if (!me.group->Offers(SE_ALLREDUCE, reduction)) continue;
          for (const size_t count : {size_t{1}, size_t{7}, size_t{255}, size_t{3001}}) {
            Work work;
            StartAllreduce(me, caller, work, reduction, count, seed += 16, count == 7);
            SynchronizeAndCheck(caller, work);
          }
        }
      }
    });
    CheckNothingLeft();
  }
}

// Slots that no tensor fits, and slots that all fit.
void ChunksOfAllSizes() {
  const uint32_t fresh = std::random_device{}();
  for (const size_t slot : {size_t{16}, size_t{48}, size_t{272}, size_t{1} << 20}) {
    ShareGpu(3, slot, [&](Sharer& me) {
      Caller caller;
      uint32_t seed = fresh;
      for (const size_t count : {1, 2, 3, 4, 5, 11, 12, 13, 67, 68, 69, 301}) {
        for (const int32_t dtype : {SE_UINT8, SE_FLOAT16, SE_FLOAT32, SE_INT64}) {
          Work work;
          StartAllreduce(me, caller, work, {dtype, SE_SUM, 1, 1}, count, seed += 16, count % 2 == 0);
          SynchronizeAndCheck(caller, work);
        }
      }
    });
  }
  CheckNothingLeft();
}

void FactorsOfFloatingPoint() {
  const uint32_t fresh = std::random_device{}();
  ShareGpu(2, kSmallSlot, [&](Sharer& me) {
    Caller caller;
    uint32_t seed = fresh;
    for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16, SE_FLOAT32, SE_FLOAT64}) {
      for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE}) {
        for (const auto& [prescale, postscale] : {std::pair{0.5, 1.0}, std::pair{1.0, 3.0}, std::pair{-4.0, 0.75}}) {
          Work work;
          StartAllreduce(me, caller, work, {dtype, reduce_op, prescale, postscale}, 100, seed += 16, false);
          SynchronizeAndCheck(caller, work);
        }
      }
    }
  });
  CheckNothingLeft();
}

// More tensors than one launch serves, of sizes that lie across chunks, some empty, at addresses of all kinds.
void ManyTensorsAreOneOperation() {
  const uint32_t fresh = std::random_device{}();
  ShareGpu(3, 4096, [&](Sharer& me) {
    Caller caller;
    std::mt19937 random(fresh);
    for (int round = 0; round < 4; ++round) {
      std::deque<DeviceMemory> memory;
      std::deque<Work> works;
      std::vector<ReduceTensor> tensors;
      for (int i = 0; i < 300; ++i) {
        Work& work = works.emplace_back();
        const size_t count = random() % 8 == 0 ? random() % 3000 : random() % 40;
        const size_t shift = random() % 5;  // elements
        work.dtype = SE_BFLOAT16;
        work.what = "tensor " + std::to_string(i);
        const uint32_t seed = random();
        work.input = ToBytes(SE_BFLOAT16, RandomValues(SE_BFLOAT16, SE_SUM, count, seed + At(me.rank)));
        work.output.assign(work.input.size(), 0);
        work.expected = ReduceOf({SE_BFLOAT16, SE_SUM, 1, 1}, me.size, count, seed);
        auto* input = static_cast<uint8_t*>(memory.emplace_back(2 * (count + shift + 1)).get()) + 2 * shift;
        auto* output = static_cast<uint8_t*>(memory.emplace_back(2 * (count + shift + 1)).get()) + 2 * (shift / 2);
        caller.Upload(work.input, input);
        tensors.push_back({input, i % 3 == 0 ? input : output, count});
      }
      const int before = Driver().fake_driver_launches();
      CHECK_OK(caller.Order(*me.group, [&](auto ready, auto done) {
        return me.group->Allreduce(tensors, {SE_BFLOAT16, SE_SUM, 1, 1}, ready, done);
      }));
      // Of three ranks: far from one for each tensor.
      CHECK(Driver().fake_driver_launches() - before < 3 * 300);
      for (size_t i = 0; i < works.size(); ++i) caller.Download(tensors[i].output, &works[i].output);
      caller.Synchronize();
      for (const Work& work : works) work.Check();
    }
  });
  CheckNothingLeft();
}

void AJoinedRankTakesPartWithZeros() {
  const uint32_t seed = std::random_device{}();
  constexpr size_t kCounts[] = {5, 3000};
  for (const bool with_output : {true, false}) {
    for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE, SE_MIN, SE_MAX, SE_PRODUCT}) {
      ShareGpu(3, kSmallSlot, [&](Sharer& me) {
        const Reduction reduction{reduce_op == SE_AVERAGE ? SE_FLOAT32 : SE_INT32, reduce_op, 1, 1};
        const bool joined = me.rank == 1;
        Caller caller;
        std::deque<Work> works;
        std::vector<ReduceTensor> tensors;
        for (const size_t count : kCounts) {
          Work& work = works.emplace_back();
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
        CHECK_OK(caller.Order(
            *me.group, [&](auto ready, auto done) { return me.group->Allreduce(tensors, reduction, ready, done); }));
        for (size_t i = 0; i < works.size(); ++i) {
          if (tensors[i].output != nullptr) caller.Download(tensors[i].output, &works[i].output);
        }
        caller.Synchronize();
        for (size_t i = 0; i < works.size(); ++i) {
          if (tensors[i].output != nullptr) works[i].Check();
        }
      });
    }
  }
  CheckNothingLeft();
}

void AJoinedRankScattersZeros() {
  const uint32_t seed = std::random_device{}();
  const Reduction reduction{SE_INT64, SE_SUM, 1, 1};
  const std::vector<size_t> shares[] = {{4, 4, 4}, {500, 300, 0}};
  for (const bool with_output : {true, false}) {
    ShareGpu(3, 272, [&](Sharer& me) {
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
      CHECK_OK(caller.Order(
          *me.group, [&](auto ready, auto done) { return me.group->Reducescatter(tensors, reduction, ready, done); }));
      for (size_t i = 0; i < works.size(); ++i) {
        if (tensors[i].output != nullptr) caller.Download(tensors[i].output, &works[i].output);
      }
      caller.Synchronize();
      for (size_t i = 0; i < works.size(); ++i) {
        if (tensors[i].output != nullptr) works[i].Check();
      }
    });
  }
  CheckNothingLeft();
}

void BroadcastFromEveryRoot() {
  const uint32_t fresh = std::random_device{}();
  for (const int size : {1, 3}) {
    ShareGpu(size, kSmallSlot, [&](Sharer& me) {
      Caller caller;
      uint32_t seed = fresh;
      for (const int32_t dtype : kDtypes) {
        for (int root = 0; root < me.size; ++root) {
          for (const size_t count : {0, 1, 9000}) {
            Work work;
            StartBroadcast(me, caller, work, dtype, count, root, seed += 16, count == 1);
            SynchronizeAndCheck(caller, work);
          }
        }
      }
    });
  }
  CheckNothingLeft();
}

void AllgatherOfEqualAndRaggedRows() {
  const uint32_t fresh = std::random_device{}();
  ShareGpu(3, kSmallSlot, [&](Sharer& me) {
    Caller caller;
    uint32_t seed = fresh;
    for (const int32_t dtype : {SE_INT16, SE_BOOL, SE_BFLOAT16, SE_FLOAT64}) {
      for (const auto& rows : {std::vector<size_t>{4, 4, 4}, {1, 0, 2}, {0, 0, 5}, {0, 0, 0}, {3000, 1, 4000}}) {
        for (const bool in_place : {false, true}) {
          Work work;
          StartAllgather(me, caller, work, dtype, rows, seed += 16, in_place);
          SynchronizeAndCheck(caller, work);
        }
      }
    }
  });
  ShareGpu(1, kSmallSlot, [&](Sharer& me) {
    Caller caller;
    Work work;
    StartAllgather(me, caller, work, SE_INT32, {3000}, fresh, false);
    SynchronizeAndCheck(caller, work);
  });
  CheckNothingLeft();
}

void ReducescatterOfEqualAndRaggedRows() {
  const uint32_t fresh = std::random_device{}();
  for (const int size : {1, 3}) {
    ShareGpu(size, kSmallSlot, [&](Sharer& me) {
      Caller caller;
      uint32_t seed = fresh;
      for (const int32_t dtype : kDtypes) {
        for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE, SE_MAX}) {
          const Reduction reduction{dtype, reduce_op, 1, 1};
          if (!me.group->Offers(SE_REDUCESCATTER, reduction)) continue;
          for (const int64_t rows : {6, 7, 2, 0, 900}) {
            for (const bool in_place : {false, true}) {
              Work work;
              StartReducescatter(me, caller, work, reduction, rows, 5, seed += 16, in_place);
              SynchronizeAndCheck(caller, work);
            }
          }
        }
      }
    });
  }
  CheckNothingLeft();
}

void AlltoallWithSplits() {
  const uint32_t fresh = std::random_device{}();
  for (const int size : {1, 2, 4}) {
    ShareGpu(size, kSmallSlot, [&](Sharer& me) {
      Caller caller;
      for (uint32_t round = 0; round < 12; ++round) {
        Work work;
        const int32_t dtype = round % 3 == 0 ? SE_INT16 : round % 3 == 1 ? SE_FLOAT32 : SE_BOOL;
        StartAlltoall(me, caller, work, dtype, fresh + 16 * round, round < 3);
        SynchronizeAndCheck(caller, work);
      }
    });
  }
  CheckNothingLeft();
}

// `done` of a barrier comes when the last rank's stream has come to it.
void ABarrierWaitsForAllStreams() {
  std::atomic<int> arrived{0};
  struct Arrival {
    static void Run(void* count) { ++*static_cast<std::atomic<int>*>(count); }
  };
  ShareGpu(4, kSmallSlot, [&](Sharer& me) {
    Caller caller;
    for (int round = 1; round <= 10; ++round) {
      caller.Delay(me.rank * 1000);
      Driver().fake_cuda_enqueue(caller.stream(), Arrival::Run, &arrived);
      CHECK_OK(caller.Order(*me.group, [&](auto ready, auto done) { return me.group->Barrier(ready, done); }));
      caller.Synchronize();
      CHECK(arrived >= 4 * round);
    }
  });
  CheckNothingLeft();
}

// Handing an operation over is all that the CPU does: it comes back while the inputs, and the other rank, are far.
void TheCpuWaitsForNobody() {
  std::atomic<bool> may_end{false};
  struct Gate {
    static void Run(void* open) {
      while (!*static_cast<std::atomic<bool>*>(open)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  };
  std::atomic<bool> first_is_back{false};
  ShareGpu(2, 64, [&](Sharer& me) {
    Caller caller;
    std::vector<uint8_t> ones(4000, 1);
    const DeviceMemory memory(ones.size());
    const int calls = me.room->calls;
    if (me.rank == 0) {
      Driver().fake_cuda_enqueue(caller.stream(), Gate::Run, &may_end);
    } else {
      while (!first_is_back) std::this_thread::sleep_for(std::chrono::microseconds(50));
      may_end = true;
    }
    caller.Upload(ones, memory.get());
    CHECK_OK(caller.Order(*me.group, [&](auto ready, auto done) {
      const ReduceTensor tensor{memory.get(), memory.get(), ones.size()};
      return me.group->Allreduce({&tensor, 1}, {SE_UINT8, SE_SUM, 1, 1}, ready, done);
    }));
    if (me.rank == 0) CHECK_EQ(me.room->calls, calls);
    first_is_back = true;
    caller.Download(memory.get(), &ones);
    caller.Synchronize();
    for (const uint8_t value : ones) CHECK_EQ(int{value}, 2);
  });
  CheckNothingLeft();
}

// Two caller streams a rank, late inputs, and nobody waits until the end. A rank whose own work takes longer is behind
// with copying and with reading, so that others' slots are used again before it is their turn if nobody looks.
void ManyOperationsOnTwoStreams() {
  const uint32_t fresh = std::random_device{}();
  std::cout << "seed " << fresh << std::endl;
  ShareGpu(3, 1040, [&](Sharer& me) {
    Caller callers[2];
    std::mt19937 common(fresh);                          // all ranks draw the same operations
    std::mt19937 own(fresh + 7919 * (1 + At(me.rank)));  // and each its own stream for them
    std::deque<Work> works;
    for (int i = 0; i < 200; ++i) {
      Work& work = works.emplace_back();
      Caller& caller = callers[own() % 2];
      if (own() % 5 == 0) Fake().fake_cuda_delay(me.group->stream(), static_cast<int>(own() % 2000));
      StartAny(me, caller, work, kDtypes, 3000, common);
    }
    for (Caller& caller : callers) caller.Synchronize();
    for (const Work& work : works) work.Check();
  });
  CheckNothingLeft();
}

void GroupsStandSideBySide() {
  const HostExchange::RoomPtr rooms[] = {HostExchange::MakeRoom(), HostExchange::MakeRoom()};
  OnOneGpu(2, [&](int rank) {
    std::unique_ptr<SharedGpuGroup> groups[2];
    for (int i = 0; i < 2; ++i) {
      CHECK_OK(SharedGpuGroup::Create(Fake().cuda, *Driver().kernels, OptionsOf(rooms[i].get(), rank, 2), &groups[i]));
    }
    Caller caller;
    for (const int i : {0, 1, 0, 1, 1}) {
      Sharer me{rank, 2, groups[i].get()};
      Work work;
      StartAllreduce(me, caller, work, {SE_INT64, SE_SUM, 1, 1}, 1000, 5, false);
      SynchronizeAndCheck(caller, work);
    }
  });
  CheckNothingLeft();
}

// Each dtype once for all groups and ranks of a process.
void KernelsAreCompiledOnce() {
  DeviceKernels kernels(Driver().driver, Driver().nvrtc);
  const int before = Driver().fake_nvrtc_compilations();
  for (int round = 0; round < 2; ++round) {
    const HostExchange::RoomPtr room = HostExchange::MakeRoom();
    OnOneGpu(3, [&](int rank) {
      std::unique_ptr<SharedGpuGroup> group;
      CHECK_OK(SharedGpuGroup::Create(Fake().cuda, kernels, OptionsOf(room.get(), rank, 3), &group));
      Sharer me{rank, 3, group.get()};
      Caller caller;
      for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE, SE_MAX}) {
        Work work;
        StartAllreduce(me, caller, work, {SE_INT32, reduce_op, 1, 1}, 10, 7, false);
        SynchronizeAndCheck(caller, work);
      }
    });
  }
  CHECK_EQ(Driver().fake_nvrtc_compilations() - before, 3);  // no type, float32 for the trial, int32
  CheckNothingLeft();
}

}  // namespace

int main() {
  return RunTests({{"ranks may be processes", RanksMayBeProcesses},
                   {"allreduce of every type and op", AllreduceOfEveryTypeAndOp},
                   {"chunks of all sizes", ChunksOfAllSizes},
                   {"factors of floating point", FactorsOfFloatingPoint},
                   {"many tensors are one operation", ManyTensorsAreOneOperation},
                   {"a joined rank takes part with zeros", AJoinedRankTakesPartWithZeros},
                   {"a joined rank scatters zeros", AJoinedRankScattersZeros},
                   {"broadcast from every root", BroadcastFromEveryRoot},
                   {"allgather of equal and ragged rows", AllgatherOfEqualAndRaggedRows},
                   {"reducescatter of equal and ragged rows", ReducescatterOfEqualAndRaggedRows},
                   {"alltoall with splits", AlltoallWithSplits},
                   {"a barrier waits for all streams", ABarrierWaitsForAllStreams},
                   {"the CPU waits for nobody", TheCpuWaitsForNobody},
                   {"many operations on two streams", ManyOperationsOnTwoStreams},
                   {"groups stand side by side", GroupsStandSideBySide},
                   {"kernels are compiled once", KernelsAreCompiledOnce}});
}
