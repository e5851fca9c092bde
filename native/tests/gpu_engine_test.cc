// Engines whose ranks, as threads, give GPU tensors of the fake CUDA: every op by every way, against what the same
// engines make of the same values in host memory.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <random>

#include "gpu_ranks.h"
#include "ranks.h"
#include "spark_estimator/engine.h"

namespace spark_estimator::testing {
namespace {

JobOptions OnGpu(Channel channel, int32_t operations) {
  JobOptions options;
  options.channel = channel;
  options.gpu_operations = operations;
  options.cuda_library = FAKE_CUDART;
  options.nccl_library = FAKE_NCCL;
  options.nvrtc_library = FAKE_NVRTC;
  return options;
}

// One tensor of a request, in host memory and on a device.
struct TwoFold {
  int32_t dtype;
  std::vector<int64_t> dims;
  std::vector<uint8_t> input;
  std::vector<uint8_t> output;  // of the host's request
  std::vector<uint8_t> before;  // of the device's result
  DeviceMemory on_gpu;
  DeviceMemory result;

  TwoFold(int32_t dtype_in, std::vector<int64_t> dims_in, std::vector<uint8_t> values, size_t output_bytes)
      : dtype(dtype_in),
        dims(std::move(dims_in)),
        input(std::move(values)),
        output(output_bytes, 0xEE),
        before(output_bytes, 0x11),
        on_gpu(input.size()),
        result(output_bytes) {}
};

// A rank with a stream of its own on its device.
struct GpuRank {
  Rank& me;
  Caller caller;
  std::mt19937_64 random;
  int device;

  explicit GpuRank(Rank& rank, uint64_t seed = 1, int on_device = -1)
      : me(rank), random(seed), device(on_device < 0 ? rank.rank : on_device) {
    CHECK_EQ(Fake().cuda.SetDevice(device), 0);
  }

  Asked OnDevice(Asked asked) {
    asked.request.place = SE_GPU;
    asked.request.device = device;
    asked.request.stream = caller.stream();
    return asked;
  }
  std::vector<uint8_t> Values(int32_t dtype, size_t count) {
    std::vector<double> values(count);
    const bool is_bool = dtype == SE_BOOL;
    for (double& value : values) value = static_cast<double>(random() % (is_bool ? 2 : 5)) + (is_bool ? 0 : 1);
    return ToBytes(dtype, values);
  }
  std::vector<uint8_t> Read(const void* from, size_t bytes) {
    std::vector<uint8_t> got(bytes);
    if (bytes > 0) caller.Download(from, &got);
    caller.Synchronize();
    return got;
  }
  std::string Way() const {
    char text[2048];
    int64_t bytes = 0;
    CHECK_EQ(se_describe(me.engine, "gpu", text, sizeof(text), &bytes), SE_OK);
    return text;
  }
};

size_t Elements(const std::vector<int64_t>& dims) {
  size_t count = 1;
  for (const int64_t dim : dims) count *= static_cast<size_t>(dim);
  return count;
}

// What all ranks of a job ask for, drawn from one seed; `rows` are a rank's own.
struct Draw {
  int32_t op;
  int32_t reduce_op = SE_SUM;
  int root = 0;
  double prescale = 1;
  double postscale = 1;
  std::vector<int32_t> dtypes;
  std::vector<int64_t> columns;              // [parts]
  std::vector<std::vector<int64_t>> rows;    // [size][parts]
  std::vector<std::vector<int64_t>> splits;  // [size][size]
  bool in_place = false;
};

Draw DrawOne(std::mt19937_64& random, int size) {
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random() % limit); };
  constexpr int32_t kOps[] = {SE_ALLREDUCE, SE_ALLREDUCE,     SE_ALLREDUCE, SE_ALLGATHER,
                              SE_BROADCAST, SE_REDUCESCATTER, SE_ALLTOALL,  SE_BARRIER};
  Draw draw;
  draw.op = kOps[below(8)];
  if (draw.op == SE_BARRIER) return draw;
  const bool one = draw.op == SE_BROADCAST || draw.op == SE_ALLTOALL;
  const auto parts = static_cast<size_t>(one ? 1 : 1 + below(3));
  if (draw.op == SE_ALLREDUCE) draw.reduce_op = static_cast<int32_t>(below(6));
  if (draw.op == SE_REDUCESCATTER) draw.reduce_op = static_cast<int32_t>(below(2));
  if (draw.reduce_op == SE_ADASUM && (size & (size - 1)) != 0) draw.reduce_op = SE_MAX;
  const bool reduces = draw.op == SE_ALLREDUCE || draw.op == SE_REDUCESCATTER;
  if (reduces && draw.reduce_op <= SE_SUM && below(3) == 0) {
    draw.prescale = 0.5;
    draw.postscale = 4;
  }
  if (draw.op == SE_BROADCAST) draw.root = static_cast<int>(below(static_cast<uint64_t>(size)));
  draw.in_place = below(2) == 0;
  for (size_t i = 0; i < parts; ++i) {
    int32_t dtype = static_cast<int32_t>(below(SE_BOOL + 1));
    const bool no_bool = draw.reduce_op == SE_AVERAGE || draw.prescale != 1 || draw.reduce_op == SE_ADASUM;
    if (reduces && dtype == SE_BOOL && no_bool) dtype = SE_FLOAT32;
    if (draw.reduce_op == SE_ADASUM && dtype < SE_FLOAT16) dtype = SE_FLOAT64;
    draw.dtypes.push_back(dtype);
    draw.columns.push_back(1 + below(40));
  }
  draw.rows.resize(At(size));
  draw.splits.resize(At(size));
  const bool ragged = draw.op == SE_ALLGATHER || draw.op == SE_ALLTOALL;
  std::vector<int64_t> same;
  for (size_t i = 0; i < parts; ++i) same.push_back(below(12));
  for (int rank = 0; rank < size; ++rank) {
    std::vector<int64_t>& rows = draw.rows[At(rank)];
    rows = same;
    if (!ragged) continue;
    for (int64_t& count : rows) count = below(9);
    if (draw.op != SE_ALLTOALL) continue;
    int64_t left = rows[0];
    for (int to = 0; to < size; ++to) {
      const int64_t split = to + 1 == size ? left : below(static_cast<uint64_t>(left) + 1);
      draw.splits[At(rank)].push_back(split);
      left -= split;
    }
  }
  return draw;
}

// The two requests of a rank for one draw.
struct Twins {
  Draw draw;
  std::vector<TwoFold> tensors;
  Submitted on_host{};
  Submitted on_gpu{};
};

Twins SubmitBoth(GpuRank& gpu, const Draw& draw, int number) {
  const auto me = At(gpu.me.rank);
  Twins twins;
  twins.draw = draw;
  Asked host("host" + std::to_string(number), draw.op, draw.reduce_op, draw.root, draw.prescale, draw.postscale);
  Asked device("gpu" + std::to_string(number), draw.op, draw.reduce_op, draw.root, draw.prescale, draw.postscale);
  const bool makes_result = draw.op == SE_ALLGATHER || draw.op == SE_ALLTOALL;
  twins.tensors.reserve(draw.dtypes.size());
  for (size_t i = 0; i < draw.dtypes.size(); ++i) {
    const std::vector<int64_t> dims = {draw.rows[me][i], draw.columns[i]};
    const int32_t dtype = draw.dtypes[i];
    int64_t rows = makes_result ? 0 : dims[0];
    if (draw.op == SE_REDUCESCATTER) rows = se_rows_of(dims[0], gpu.me.rank, gpu.me.size);
    const size_t bytes = Elements({rows, dims[1]}) * DtypeBytes(dtype);
    twins.tensors.emplace_back(dtype, dims, gpu.Values(dtype, Elements(dims)), bytes);
    TwoFold& tensor = twins.tensors.back();
    gpu.caller.Delay(static_cast<int>(gpu.random() % 300));
    if (!tensor.input.empty()) gpu.caller.Upload(tensor.input, tensor.on_gpu.get());
    // What the caller's stream still does to the output comes first as well.
    if (!tensor.before.empty()) gpu.caller.Upload(tensor.before, tensor.result.get());
    const bool in_place = draw.in_place && (draw.op == SE_ALLREDUCE || draw.op == SE_BROADCAST);
    host.With(tensor.input.data(), makes_result ? nullptr : tensor.output.data(), dims, dtype);
    device.With(tensor.on_gpu.get(), makes_result ? nullptr : (in_place ? tensor.on_gpu : tensor.result).get(), dims,
                dtype);
  }
  if (draw.op == SE_ALLTOALL) {
    host.Split(draw.splits[me]);
    device.Split(draw.splits[me]);
  }
  twins.on_host = gpu.me.Submit(host);
  Asked placed = gpu.OnDevice(std::move(device));
  twins.on_gpu = gpu.me.Submit(placed);
  return twins;
}

// 16-bit floats are rounded at each of NCCL's steps.
void CheckSame(const Draw& draw, int32_t dtype, const std::vector<uint8_t>& got, const std::vector<uint8_t>& wanted,
               bool exactly) {
  CHECK_EQ(got.size(), wanted.size());
  const std::vector<double> a = ToDoubles(dtype, got);
  const std::vector<double> b = ToDoubles(dtype, wanted);
  const double close = exactly || !IsFloatingPoint(dtype) ? 0 : IsHalf(dtype) ? 0.03 : 1e-5;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::abs(a[i] - b[i]) <= close * std::max(1.0, std::abs(b[i]))) continue;
    Fail(__FILE__, __LINE__,
         OpName(draw.op) + " by " + ReduceOpName(draw.reduce_op) + " of " + DtypeName(dtype) + " times " +
             std::to_string(draw.prescale) + ": element " + std::to_string(i) + " of " + std::to_string(a.size()) +
             " is " + std::to_string(a[i]) + ", on the host " + std::to_string(b[i]));
  }
}

void CheckBoth(GpuRank& gpu, Twins& twins, bool exactly) {
  const Draw& draw = twins.draw;
  const bool makes_result = draw.op == SE_ALLGATHER || draw.op == SE_ALLTOALL;
  const int32_t host_status = gpu.me.Wait(twins.on_host);
  if (host_status != SE_OK) Fail(__FILE__, __LINE__, se_last_error());
  const int32_t status = gpu.me.Wait(twins.on_gpu);
  if (status != SE_OK) Fail(__FILE__, __LINE__, se_last_error());
  for (size_t i = 0; i < twins.tensors.size(); ++i) {
    TwoFold& tensor = twins.tensors[i];
    if (!makes_result) {
      CHECK_EQ(se_await_on_stream(gpu.me.engine, twins.on_gpu.handle, gpu.caller.stream()), SE_OK);
      const bool in_place = draw.in_place && (draw.op == SE_ALLREDUCE || draw.op == SE_BROADCAST);
      CheckSame(draw, tensor.dtype, gpu.Read((in_place ? tensor.on_gpu : tensor.result).get(), tensor.output.size()),
                tensor.output, exactly);
      continue;
    }
    se_result wanted{};
    se_result got{};
    CHECK_EQ(se_get_result(gpu.me.engine, twins.on_host.handle, static_cast<int>(i), &wanted), SE_OK);
    CHECK_EQ(se_get_result(gpu.me.engine, twins.on_gpu.handle, static_cast<int>(i), &got), SE_OK);
    CHECK_EQ(got.place, SE_GPU);
    CHECK_EQ(got.bytes, wanted.bytes);
    for (int rank = 0; rank < gpu.me.size; ++rank) CHECK_EQ(got.rows[rank], wanted.rows[rank]);
    const DeviceMemory own(static_cast<size_t>(got.bytes));
    CHECK_EQ(se_copy_result(gpu.me.engine, twins.on_gpu.handle, static_cast<int>(i), own.get(), gpu.caller.stream()),
             SE_OK);
    const auto* data = static_cast<const uint8_t*>(wanted.data);
    CheckSame(draw, tensor.dtype, gpu.Read(own.get(), static_cast<size_t>(got.bytes)),
              std::vector<uint8_t>(data, data + wanted.bytes), exactly);
  }
  se_release(gpu.me.engine, twins.on_host.handle);
  se_release(gpu.me.engine, twins.on_gpu.handle);
}

// As RunRanks, with ranks that are processes. To be called before this one uses CUDA or has threads.
void RunProcesses(int size, const JobOptions& options, const std::function<void(Rank&)>& body) {
  Wiring wiring = Wire(size, options);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    // The others' ends are theirs: who dies must be seen to.
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      for (const se_peer& peer : wiring.peers[At(other)]) {
        for (const int fd : {peer.control_fd, peer.data_fd, peer.segment_fd}) close(fd);
      }
      close(wiring.configs[At(other)].own_segment_fd);
    }
    CHECK(dlopen(FAKE_CUDA_DRIVER, RTLD_NOW) != nullptr);
    {
      Rank me(rank, size, Join(wiring, rank));
      body(me);
      se_engine_destroy(me.engine);
    }
    std::_Exit(0);
  }
  for (int rank = 0; rank < size; ++rank) {
    for (const se_peer& peer : wiring.peers[At(rank)]) {
      for (const int fd : {peer.control_fd, peer.data_fd, peer.segment_fd}) close(fd);
    }
    close(wiring.configs[At(rank)].own_segment_fd);
  }
  for (const pid_t child : children) {
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
}

void RunSequence(int size, Channel channel, int32_t operations, int count, int device = -1) {
  const uint64_t seed = std::random_device{}();
  JobOptions options = OnGpu(channel, operations);
  options.heartbeat_seconds = 0;  // a wake-up that is forgotten is not made up for by the next sign of life
  const auto body = [&](Rank& me) {
    GpuRank gpu(me, seed * 31 + static_cast<uint64_t>(me.rank), device);
    std::mt19937_64 common(seed);
    std::vector<Twins> open;
    for (int i = 0; i < count; ++i) {
      open.push_back(SubmitBoth(gpu, DrawOne(common, size), i));
      // Several are under way at once, and concluded in another order.
      if (open.size() < 4 && i + 1 < count) continue;
      std::shuffle(open.begin(), open.end(), gpu.random);
      for (Twins& twins : open) CheckBoth(gpu, twins, operations == SE_GPU_STAGED || size == 1);
      open.clear();
    }
    const int64_t on_gpu = se_counter(me.engine, "gpu_operations");
    const int64_t staged = se_counter(me.engine, "staged_operations");
    CHECK(operations == SE_GPU_STAGED && size > 1 ? on_gpu == 0 : on_gpu > 0);
    CHECK(staged > 0 || device == 0 || size == 1);  // what the way does not offer
    if (size > 1 && device == 0) CHECK_CONTAINS(gpu.Way(), "on the GPU that all ranks share");
  };
  if (device == 0) return RunProcesses(size, options, body);
  RunRanks(size, options, body);
  CheckNothingLeft();
}

void SequencesByNccl() {
  RunSequence(2, Channel::kShared, SE_GPU_AUTO, 60);
  RunSequence(3, Channel::kStream, SE_GPU_NCCL, 60);
  RunSequence(4, Channel::kShared, SE_GPU_NCCL, 60);
}

void SequencesStaged() {
  RunSequence(2, Channel::kShared, SE_GPU_STAGED, 60);
  RunSequence(3, Channel::kStream, SE_GPU_STAGED, 60);
}

// All ranks on device 0, which the driver says is one GPU.
void SequencesOnOneGpu() {
  for (const int size : {2, 3}) RunSequence(size, Channel::kShared, SE_GPU_SHARED, 60, 0);
  // All that each of them sees.
  CHECK_EQ(setenv("FAKE_CUDA_DEVICES", "1", 1), 0);
  RunSequence(2, Channel::kStream, SE_GPU_AUTO, 60, 0);
  CHECK_EQ(unsetenv("FAKE_CUDA_DEVICES"), 0);
}

// By the name by which the engine asks the linker for it, from now on.
void OpenTheDriver() { CHECK(dlopen(FAKE_CUDA_DRIVER, RTLD_NOW) != nullptr); }

void SequencesAlone() { RunSequence(1, Channel::kShared, SE_GPU_AUTO, 60); }

// More than one piece holds, cut in the middle of tensors.
void LargeTensorsGoInPieces() {
  for (const Channel channel : {Channel::kShared, Channel::kStream}) {
    const uint64_t seed = std::random_device{}();
    RunRanks(2, OnGpu(channel, SE_GPU_STAGED), [&](Rank& me) {
      GpuRank gpu(me, seed + static_cast<uint64_t>(me.rank));
      Draw draw;
      draw.op = SE_ALLREDUCE;
      draw.dtypes = {SE_FLOAT32, SE_INT8, SE_FLOAT32, SE_FLOAT16};
      draw.columns = {600'001, 5'000'003, 1'500'000, 100'001};
      draw.rows = {{2, 1, 1, 1}, {2, 1, 1, 1}};
      for (const int32_t reduce_op : {SE_SUM, SE_AVERAGE}) {
        draw.reduce_op = reduce_op;
        draw.in_place = reduce_op == SE_AVERAGE;
        Twins twins = SubmitBoth(gpu, draw, reduce_op);
        CheckBoth(gpu, twins, true);
      }
      draw.op = SE_BROADCAST;
      draw.root = 1;
      draw.dtypes = {SE_FLOAT64};
      draw.columns = {600'003};
      Twins twins = SubmitBoth(gpu, draw, 9);
      CheckBoth(gpu, twins, true);
    });
    CheckNothingLeft();
  }
}

// A piece's memory is used again while an earlier piece is still on its way back to the device.
void SlowCopiesAreWaitedFor() {
  Fake().fake_cuda_slow_copies(20'000);
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_STAGED), [](Rank& me) {
    GpuRank gpu(me, 7 + static_cast<uint64_t>(me.rank));
    Draw draw;
    draw.op = SE_ALLREDUCE;
    // So that what goes back has many small copies before it, and what comes is one.
    draw.dtypes = std::vector<int32_t>(12, SE_INT32);
    draw.columns = std::vector<int64_t>(11, 1000);
    draw.columns.push_back(5'300'000);
    draw.rows = {std::vector<int64_t>(12, 1), std::vector<int64_t>(12, 1)};
    draw.in_place = true;
    Twins twins = SubmitBoth(gpu, draw, 0);
    CheckBoth(gpu, twins, true);
  });
  Fake().fake_cuda_slow_copies(0);
  CheckNothingLeft();
}

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

// One float32 tensor of 1000 elements on a rank's device, all of them `value`.
struct Plain {
  std::vector<uint8_t> input;
  DeviceMemory on_gpu;
  DeviceMemory result;

  Plain(GpuRank& gpu, double value)
      : input(ToBytes(SE_FLOAT32, std::vector<double>(1000, value))), on_gpu(input.size()), result(input.size()) {
    gpu.caller.Delay(500);
    gpu.caller.Upload(input, on_gpu.get());
  }
  Asked Sum(GpuRank& gpu, const std::string& name) {
    Asked asked(name, SE_ALLREDUCE);
    asked.With(on_gpu.get(), result.get(), {1000});
    return gpu.OnDevice(std::move(asked));
  }
  void CheckIs(GpuRank& gpu, double value) {
    const std::vector<double> wanted(1000, value);
    CHECK(ToDoubles(SE_FLOAT32, gpu.Read(result.get(), result.bytes())) == wanted);
  }
};

std::string ErrorOf(Rank& me, int32_t status) {
  CHECK(status != SE_OK && status != SE_IN_PROGRESS);
  (void)me;
  return se_last_error();
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
      const std::string error = ErrorOf(me, me.Run(std::move(asked)));
      CHECK_CONTAINS(error, "Mismatched ALLREDUCE places: rank 0 has a GPU tensor; rank 1 has a CPU tensor");
    }
    // The group goes on.
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
    CHECK_CONTAINS(ErrorOf(me, me.Run(nowhere)), "there is no CUDA device 8; this process sees 8");
    nowhere.request.device = -1;
    CHECK_CONTAINS(ErrorOf(me, me.Run(nowhere)), "there is no CUDA device -1");
    me.RunOk(plain.Sum(gpu, "x"));
    plain.CheckIs(gpu, 1);
    Asked elsewhere = plain.Sum(gpu, "x");
    elsewhere.request.device = 3;
    CHECK_CONTAINS(ErrorOf(me, me.Run(elsewhere)), "on CUDA device 3, and this rank has used device 0 before");
    Fake().fake_cuda_capture(gpu.caller.stream(), 1);
    CHECK_CONTAINS(ErrorOf(me, me.Run(plain.Sum(gpu, "x"))), "captured");
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

void WhatIsMissingIsSaid() {
  JobOptions options = OnGpu(Channel::kShared, SE_GPU_AUTO);
  options.cuda_library = "/nowhere/libcudart.so";
  RunRanks(2, options, [](Rank& me) {
    GpuRank gpu(me);
    Plain plain(gpu, 1);
    const std::string error = ErrorOf(me, me.Run(plain.Sum(gpu, "x")));
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
    const std::string error = ErrorOf(me, me.Run(plain.Sum(gpu, "x")));
    CHECK_CONTAINS(error, "NCCL was asked for, and cannot be used: rank 0 on testhost has no NCCL");
    gpu.caller.Synchronize();
  });
  CheckNothingLeft();
}

void RanksThatLeaveItAtTheFirstGpuAreTold() {
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_AUTO), [](Rank& me) {
    GpuRank gpu(me, 1, 0);
    Plain plain(gpu, me.rank + 1);
    const std::string error = ErrorOf(me, me.Run(plain.Sum(gpu, "x")));
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
    CHECK_CONTAINS(ErrorOf(me, me.Run(plain.Sum(gpu, "x"))), "rank 0 on testhost and rank 1 on testhost share one GPU");
    gpu.caller.Synchronize();
  });
  CheckNothingLeft();
}

// The device computes by itself: what happens there is found out without anybody asking.
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
      CHECK_CONTAINS(ErrorOf(me, me.Wait(last)), "rank 0");
      return;
    }
    int32_t status = SE_OK;
    for (int look = 0; look < 1000 && status == SE_OK; ++look) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      int64_t question = 0;
      status = se_await_question(me.engine, 0, &question);
      if (status == SE_IN_PROGRESS) status = me.Submit(Asked("later" + std::to_string(look), SE_BARRIER)).status;
    }
    CHECK_CONTAINS(ErrorOf(me, status), "CUDA");
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
    const std::string error = ErrorOf(me, me.Run(plain.Sum(gpu, "x")));
    CHECK_CONTAINS(error, "making a group of GPUs by NCCL (HOROVOD_GPU_OPERATIONS=staged does without it)");
    gpu.caller.Synchronize();
  });
  Fake().fake_nccl_hang_init(-1);
  CheckNothingLeft();
}

// Who is through early does not take from the others what their GPUs have yet to come to.
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

// A kernel that waits for a peer that never comes holds the stream, and whoever waits for it, for ever.
void ALostPeersKernelsEnd() {
  Wiring wiring = Wire(2, OnGpu(Channel::kStream, SE_GPU_NCCL));
  std::barrier<> both_have_it(2);
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
          // Its kernel comes behind what takes long; meanwhile it is gone.
          gpu.caller.Delay(3'000'000);
          late = gpu.caller.stream();
        }
        const Submitted last = me.Submit(plain.Sum(gpu, "y"));
        CHECK_EQ(me.Wait(last), SE_OK);
        both_have_it.arrive_and_wait();
        CHECK_EQ(se_await_on_stream(me.engine, last.handle, gpu.caller.stream()), SE_OK);
        if (rank == 1) shutdown(control, SHUT_RDWR);
        gpu.caller.Synchronize();                                               // comes to its end on both
        if (rank == 0) CHECK_EQ(Fake().cuda.StreamQuery(late), kCudaNotReady);  // without the other's kernel
        CHECK_CONTAINS(ErrorOf(me, me.Run(plain.Sum(gpu, "z"))), "is lost");
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
  return RunTests({{"sequences on one GPU", SequencesOnOneGpu},
                   {"open the driver", OpenTheDriver},
                   {"sequences by NCCL", SequencesByNccl},
                   {"sequences through host memory", SequencesStaged},
                   {"sequences of one rank", SequencesAlone},
                   {"large tensors go in pieces", LargeTensorsGoInPieces},
                   {"slow copies are waited for", SlowCopiesAreWaitedFor},
                   {"results are not overwritten", ResultsAreNotOverwritten},
                   {"places must be the same", PlacesMustBeTheSame},
                   {"plans and runs order the caller's stream", PlansAndRunsOrderTheCallersStream},
                   {"a joined rank takes part", AJoinedRankTakesPart},
                   {"what the caller does wrong", WhatTheCallerDoesWrong},
                   {"what is missing is said", WhatIsMissingIsSaid},
                   {"ranks that leave it at the first GPU are told", RanksThatLeaveItAtTheFirstGpuAreTold},
                   {"NCCL is not for ranks that share a GPU", NcclIsNotForRanksThatShareAGpu},
                   {"an async error ends the group", AnAsyncErrorEndsTheGroup},
                   {"an init that hangs is given up", AnInitThatHangsIsGivenUp},
                   {"who leaves waits for its GPU", WhoLeavesWaitsForItsGpu},
                   {"a lost peer's kernels end", ALostPeersKernelsEnd}});
}
