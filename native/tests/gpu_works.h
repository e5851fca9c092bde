// One operation of a rank on its NCCL group: its tensors, filled late and read at once, and the expected result,
// computed in float64.
#ifndef SPARK_ESTIMATOR_TESTS_GPU_WORKS_H_
#define SPARK_ESTIMATOR_TESTS_GPU_WORKS_H_

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/rows.h"
#include "gpu_ranks.h"

namespace spark_estimator::testing {

// Values that a dtype can hold, and whose sums and products over four ranks it can hold as well.
inline std::vector<double> RandomValues(int32_t dtype, int32_t reduce_op, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<double> values(count);
  int low = -20;
  int high = 20;
  if (reduce_op == SE_PRODUCT) low = -2, high = 2;
  if (dtype == SE_UINT8) low = 0;
  if (dtype == SE_BOOL) low = 0, high = 1;
  std::uniform_int_distribution<int> whole(low, high);
  for (double& value : values) value = whole(random) * (IsFloatingPoint(dtype) ? 0.125 : 1);
  return values;
}

inline double Reduced(int32_t dtype, int32_t reduce_op, double a, double b) {
  switch (reduce_op) {
    case SE_MIN:
      return std::min(a, b);
    case SE_MAX:
      return std::max(a, b);
    case SE_PRODUCT:
      return a * b;
    default:
      return dtype == SE_BOOL ? std::max(a, b) : a + b;
  }
}

inline double Tolerance(int32_t dtype) {
  switch (dtype) {
    case SE_FLOAT16:
      return 2e-3;
    case SE_BFLOAT16:
      return 2e-2;
    case SE_FLOAT32:
      return 1e-6;
    case SE_FLOAT64:
      return 1e-14;
    default:
      return 0;
  }
}

inline void CheckValues(int32_t dtype, const std::vector<uint8_t>& bytes, const std::vector<double>& expected,
                        const std::string& what) {
  const std::vector<double> values = ToDoubles(dtype, bytes);
  CHECK_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::fabs(values[i] - expected[i]) <= Tolerance(dtype) * (1 + std::fabs(expected[i]))) continue;
    Fail(__FILE__, __LINE__,
         what + ", element " + std::to_string(i) + ": " + std::to_string(values[i]) + " is not " +
             std::to_string(expected[i]));
  }
}

inline std::vector<double> ReduceOf(const Reduction& reduction, int size, size_t count, uint32_t seed,
                                    int joined = -1) {
  std::vector<double> expected;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<double> values = RandomValues(reduction.dtype, reduction.reduce_op, count, seed + At(rank));
    if (rank == joined) values.assign(count, 0);
    for (size_t i = 0; i < count; ++i) {
      if (rank == 0) expected.push_back(values[i]);
      if (rank > 0) expected[i] = Reduced(reduction.dtype, reduction.reduce_op, expected[i], values[i]);
    }
  }
  const double factor = reduction.prescale * reduction.postscale / (reduction.reduce_op == SE_AVERAGE ? size : 1);
  for (double& value : expected) value *= factor;
  return expected;
}

// What one operation needs for as long as the caller's stream may touch it.
struct Work {
  std::vector<uint8_t> input;
  std::vector<uint8_t> output;
  std::vector<double> expected;
  int32_t dtype = 0;
  std::string what;
  std::deque<DeviceMemory> memory;

  void Check() const { CheckValues(dtype, output, expected, what); }
};

inline std::string Describe(const char* op, const Reduction& reduction, size_t count) {
  return std::string(op) + " " + DtypeName(reduction.dtype) + " " + ReduceOpName(reduction.reduce_op) + " of " +
         std::to_string(count);
}

// The input is late, the output is read at once.
inline void StartAllreduce(Member& me, Caller& caller, Work& work, const Reduction& reduction, size_t count,
                           uint32_t seed, bool in_place) {
  work.dtype = reduction.dtype;
  work.what = Describe("allreduce", reduction, count);
  work.input = ToBytes(reduction.dtype, RandomValues(reduction.dtype, reduction.reduce_op, count, seed + At(me.rank)));
  work.output.assign(work.input.size(), 0);
  work.expected = ReduceOf(reduction, me.size, count, seed);
  void* input = work.memory.emplace_back(work.input.size()).get();
  void* output = in_place ? input : work.memory.emplace_back(work.input.size()).get();
  caller.Delay(100);
  caller.Upload(work.input, input);
  CHECK_OK(caller.Order(*me.group, [&](CudaEvent ready, CudaEvent done) {
    const ReduceTensor tensor{input, output, count};
    return me.group->Allreduce({&tensor, 1}, reduction, ready, done);
  }));
  caller.Download(output, &work.output);
}

inline void StartBroadcast(Member& me, Caller& caller, Work& work, int32_t dtype, size_t count, int root, uint32_t seed,
                           bool in_place) {
  work.dtype = dtype;
  work.what = "broadcast " + DtypeName(dtype);
  work.input = ToBytes(dtype, RandomValues(dtype, SE_SUM, count, seed + At(me.rank)));
  work.output.assign(work.input.size(), 0);
  work.expected = RandomValues(dtype, SE_SUM, count, seed + At(root));
  void* input = work.memory.emplace_back(work.input.size()).get();
  void* output = in_place ? input : work.memory.emplace_back(work.input.size()).get();
  caller.Delay(100);
  caller.Upload(work.input, input);
  CHECK_OK(caller.Order(*me.group, [&](CudaEvent ready, CudaEvent done) {
    const BroadcastTensor tensor{me.rank == root || in_place ? input : nullptr, output, work.input.size()};
    return me.group->Broadcast({&tensor, 1}, root, ready, done);
  }));
  caller.Download(output, &work.output);
}

// `rows` of each rank, of three elements.
inline void StartAllgather(Member& me, Caller& caller, Work& work, int32_t dtype, const std::vector<size_t>& rows,
                           uint32_t seed, bool in_place) {
  const size_t row = 3;
  work.dtype = dtype;
  work.what = "allgather " + DtypeName(dtype);
  auto bytes_of = std::vector<size_t>();
  size_t before = 0;
  size_t total = 0;
  for (int rank = 0; rank < me.size; ++rank) {
    const std::vector<double> values = RandomValues(dtype, SE_SUM, rows[At(rank)] * row, seed + At(rank));
    if (rank == me.rank) work.input = ToBytes(dtype, values);
    work.expected.insert(work.expected.end(), values.begin(), values.end());
    bytes_of.push_back(values.size() * DtypeBytes(dtype));
    if (rank < me.rank) before += bytes_of.back();
    total += bytes_of.back();
  }
  work.output.assign(total, 0);
  auto* output = static_cast<uint8_t*>(work.memory.emplace_back(total).get());
  void* input = in_place && total > 0 ? output + before : work.memory.emplace_back(work.input.size()).get();
  caller.Delay(100);
  caller.Upload(work.input, input);
  CHECK_OK(caller.Order(*me.group, [&](CudaEvent ready, CudaEvent done) {
    const GatherTensor tensor{input, output, bytes_of};
    return me.group->Allgather({&tensor, 1}, ready, done);
  }));
  caller.Download(output, &work.output);
}

inline void StartReducescatter(Member& me, Caller& caller, Work& work, const Reduction& reduction, int64_t rows,
                               size_t row, uint32_t seed, bool in_place) {
  work.dtype = reduction.dtype;
  work.what = Describe("reducescatter", reduction, static_cast<size_t>(rows) * row);
  std::vector<size_t> count_of;
  size_t before = 0;
  for (int rank = 0; rank < me.size; ++rank) {
    count_of.push_back(static_cast<size_t>(RowsOf(rows, rank, me.size)) * row);
    if (rank < me.rank) before += count_of.back();
  }
  const size_t count = static_cast<size_t>(rows) * row;
  const size_t own = count_of[At(me.rank)];
  const size_t element = DtypeBytes(reduction.dtype);
  work.input = ToBytes(reduction.dtype, RandomValues(reduction.dtype, reduction.reduce_op, count, seed + At(me.rank)));
  work.output.assign(own * element, 0);
  const std::vector<double> all = ReduceOf(reduction, me.size, count, seed);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(before);
  work.expected.assign(begin, begin + static_cast<std::ptrdiff_t>(own));
  auto* input = static_cast<uint8_t*>(work.memory.emplace_back(work.input.size()).get());
  void* output = in_place && own > 0 ? input + before * element : work.memory.emplace_back(own * element).get();
  caller.Delay(100);
  caller.Upload(work.input, input);
  CHECK_OK(caller.Order(*me.group, [&](CudaEvent ready, CudaEvent done) {
    const ScatterTensor tensor{input, output, count_of};
    return me.group->Reducescatter({&tensor, 1}, reduction, ready, done);
  }));
  caller.Download(output, &work.output);
}

inline void StartAlltoall(Member& me, Caller& caller, Work& work, int32_t dtype, uint32_t seed, bool even) {
  // All ranks know the whole table of rows.
  std::mt19937 random(seed);
  std::vector<std::vector<size_t>> rows(At(me.size), std::vector<size_t>(At(me.size), 4));
  for (auto& from : rows) {
    for (size_t& to : from) to = even ? 4 : random() % 3 == 0 ? 0 : random() % 700;
  }
  work.dtype = dtype;
  work.what = "alltoall " + DtypeName(dtype);
  std::vector<size_t> send_bytes;
  std::vector<size_t> receive_bytes;
  for (int peer = 0; peer < me.size; ++peer) {
    send_bytes.push_back(rows[At(me.rank)][At(peer)] * DtypeBytes(dtype));
    receive_bytes.push_back(rows[At(peer)][At(me.rank)] * DtypeBytes(dtype));
    const std::vector<size_t>& theirs = rows[At(peer)];
    const size_t total = std::accumulate(theirs.begin(), theirs.end(), size_t{0});
    const std::vector<double> values = RandomValues(dtype, SE_SUM, total, seed + At(peer));
    if (peer == me.rank) work.input = ToBytes(dtype, values);
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(
                                            std::accumulate(theirs.begin(), theirs.begin() + me.rank, size_t{0}));
    work.expected.insert(work.expected.end(), begin, begin + static_cast<std::ptrdiff_t>(theirs[At(me.rank)]));
  }
  work.output.assign(work.expected.size() * DtypeBytes(dtype), 0);
  void* input = work.memory.emplace_back(work.input.size()).get();
  void* output = work.memory.emplace_back(work.output.size()).get();
  caller.Delay(100);
  caller.Upload(work.input, input);
  CHECK_OK(caller.Order(*me.group, [&](CudaEvent ready, CudaEvent done) {
    return me.group->Alltoall(input, send_bytes, output, receive_bytes, ready, done);
  }));
  caller.Download(output, &work.output);
}

// One of all operations, drawn equally by all of three ranks, on tensors of up to this number of elements.
inline void StartAny(Member& me, Caller& caller, Work& work, std::span<const int32_t> dtypes, size_t most,
                     std::mt19937& common) {
  const int32_t dtype = dtypes[common() % dtypes.size()];
  const uint32_t seed = common();
  const size_t count = common() % most;
  const bool in_place = common() % 2 == 0;
  const Reduction sum{dtype, SE_SUM, 1, 1};
  const bool scales = IsFloatingPoint(dtype);
  switch (common() % 6) {
    case 0:
      return StartBroadcast(me, caller, work, dtype, count, static_cast<int>(common() % At(me.size)), seed, in_place);
    case 1:
      return StartAllgather(me, caller, work, dtype, {count % 50, count % 7, count % (most / 3)}, seed, in_place);
    case 2:
      return StartReducescatter(me, caller, work, sum, static_cast<int64_t>(count % (most / 8)), 4, seed, in_place);
    case 3:
      return StartAlltoall(me, caller, work, dtype, seed, in_place);
    case 4:
      return StartAllreduce(me, caller, work, {dtype, SE_MAX, 1, 1}, count, seed, in_place);
    default:
      return StartAllreduce(me, caller, work, scales ? Reduction{dtype, SE_AVERAGE, 0.5, 4} : sum, count, seed,
                            in_place);
  }
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_GPU_WORKS_H_
