// Engines with GPU tensors of the fake CUDA: every op by every backend, compared with the same engines and values in
// host memory.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "gpu_engine_ranks.h"

namespace spark_estimator::testing {
namespace {

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
    // Earlier work of the caller's stream on the output also runs first.
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
        for (const int fd : {peer.control_fd, peer.data_fds[0], peer.segment_fd}) close(fd);
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
      for (const int fd : {peer.control_fd, peer.data_fds[0], peer.segment_fd}) close(fd);
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
  std::fprintf(stderr, "%d ranks, seed %llu\n", size, static_cast<unsigned long long>(seed));  // shown when one fails
  const bool is_staged = size > 1 && (operations == SE_GPU_STAGED || device == 0);
  JobOptions options = OnGpu(channel, operations);
  options.heartbeat_seconds = 0;  // the next heartbeat does not hide a missing wake-up
  const auto body = [&](Rank& me) {
    GpuRank gpu(me, seed * 31 + static_cast<uint64_t>(me.rank), device);
    std::mt19937_64 common(seed);
    std::vector<Twins> open;
    for (int i = 0; i < count; ++i) {
      open.push_back(SubmitBoth(gpu, DrawOne(common, size), i));
      // Several are in flight at once, and completed in another order.
      if (open.size() < 4 && i + 1 < count) continue;
      std::shuffle(open.begin(), open.end(), gpu.random);
      for (Twins& twins : open) CheckBoth(gpu, twins, is_staged || size == 1);
      open.clear();
    }
    const int64_t on_gpu = se_counter(me.engine, "gpu_operations");
    const int64_t staged = se_counter(me.engine, "staged_operations");
    CHECK(is_staged ? on_gpu == 0 : on_gpu > 0);
    CHECK(staged > 0 || size == 1);  // what NCCL does not offer
    if (device == 0) {
      CHECK_CONTAINS(gpu.Way(), "through pinned host memory");
      CHECK_CONTAINS(gpu.Way(), operations == SE_GPU_STAGED ? "as was asked for" : "share one GPU");
    }
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

// All ranks on device 0, which the driver reports as one GPU.
void SequencesOnOneGpu() {
  for (const int size : {2, 3}) RunSequence(size, Channel::kShared, SE_GPU_STAGED, 60, 0);
  // All that each of them sees.
  CHECK_EQ(setenv("FAKE_CUDA_DEVICES", "1", 1), 0);
  RunSequence(2, Channel::kStream, SE_GPU_AUTO, 60, 0);
  RunSequence(3, Channel::kShared, SE_GPU_AUTO, 60, 0);
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

// A piece's memory is reused while an earlier piece is still copied back to the device.
void SlowCopiesAreWaitedFor() {
  Fake().fake_cuda_slow_copies(20'000);
  RunRanks(2, OnGpu(Channel::kShared, SE_GPU_STAGED), [](Rank& me) {
    GpuRank gpu(me, 7 + static_cast<uint64_t>(me.rank));
    Draw draw;
    draw.op = SE_ALLREDUCE;
    // So that copies to the device follow many small copies, and the copy from it is one.
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
                   {"slow copies are waited for", SlowCopiesAreWaitedFor}});
}
