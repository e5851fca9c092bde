// Allreduce over streams: which form the values are sent in, and which algorithm carries them.
#include <cstring>
#include <vector>

#include "algorithms/buffer_list.h"
#include "algorithms/streams/direct.h"
#include "algorithms/streams/list.h"
#include "algorithms/streams/recursive.h"
#include "algorithms/streams/ring.h"
#include "algorithms/streams/stream.h"
#include "base/dtype.h"
#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

using Recursion = Status (*)(StreamGroup&, uint8_t*, uint8_t*, size_t, int32_t, int32_t, Finish);

Status ExchangeAllreduce(StreamGroup& group, const void* input, void* output, size_t count, int32_t dtype,
                         int32_t reduce_op, Finish finish) {
  const size_t bytes = count * DtypeBytes(dtype);
  const auto ranks = static_cast<size_t>(group.size());
  uint8_t* all = nullptr;
  SE_RETURN_IF_ERROR(group.Scratch(bytes * ranks, &all));
  const std::vector<size_t> bytes_of(ranks, bytes);
  SE_RETURN_IF_ERROR(StreamAllgather(group, AllgatherAlgorithm::kExchange, input, bytes_of, all));
  std::vector<const void*> sources;
  for (size_t rank = 0; rank < ranks; ++rank) sources.push_back(all + bytes * rank);
  GetKernels().combine(dtype, reduce_op, output, sources.data(), group.size(), count, finish);
  return Status::Ok();
}

// The 16-bit types are sent as float32: they are rounded once, in the end, by everybody alike.
Status RecursiveAllreduce(Recursion recursion, StreamGroup& group, const void* input, void* output, size_t count,
                          int32_t dtype, int32_t reduce_op, Finish finish) {
  uint8_t* scratch = nullptr;
  if (!IsHalf(dtype)) {
    const size_t bytes = count * DtypeBytes(dtype);
    SE_RETURN_IF_ERROR(group.Scratch(bytes, &scratch));
    if (input != output) std::memcpy(output, input, bytes);
    return recursion(group, static_cast<uint8_t*>(output), scratch, count, dtype, reduce_op, finish);
  }
  SE_RETURN_IF_ERROR(group.Scratch(2 * count * sizeof(float), &scratch));
  auto* floats = reinterpret_cast<float*>(scratch);
  HalvesToFloat32(dtype, floats, input, count);
  SE_RETURN_IF_ERROR(recursion(group, scratch, scratch + count * sizeof(float), count, SE_FLOAT32, reduce_op, finish));
  HalvesFromFloat32(dtype, output, floats, count);
  return Status::Ok();
}

}  // namespace

Status StreamAllreduce(StreamGroup& group, AllreduceAlgorithm algorithm, const void* input, void* output, size_t count,
                       int32_t dtype, int32_t reduce_op, Finish finish) {
  if (count == 0) return Status::Ok();
  if (group.size() == 1) {
    if (!finish.nothing()) {
      GetKernels().finish(dtype, output, input, count, finish);
    } else if (input != output) {
      std::memcpy(output, input, count * DtypeBytes(dtype));
    }
    return Status::Ok();
  }
  const auto* in = static_cast<const uint8_t*>(input);
  auto* out = static_cast<uint8_t*>(output);
  switch (algorithm) {
    case AllreduceAlgorithm::kExchange:
      return ExchangeAllreduce(group, input, output, count, dtype, reduce_op, finish);
    case AllreduceAlgorithm::kDoubling:
      return RecursiveAllreduce(DoublingAllreduce, group, input, output, count, dtype, reduce_op, finish);
    case AllreduceAlgorithm::kHalving:
      return RecursiveAllreduce(HalvingAllreduce, group, input, output, count, dtype, reduce_op, finish);
    case AllreduceAlgorithm::kDirect:
      return DirectAllreduce(group, in, out, count, dtype, reduce_op, finish);
    case AllreduceAlgorithm::kRing:
      if (IsHalf(dtype)) {  // in blocks: the float32 values of all of it would need memory
        BufferList whole;
        whole.Add(in, out, count * DtypeBytes(dtype));
        return StreamListAllreduce(group, algorithm, whole, dtype, reduce_op, finish);
      }
      return RingAllreduce(group, in, out, count, dtype, reduce_op, finish);
    default:
      return Status(SE_INTERNAL, std::string("allreduce by '") + Name(algorithm) + "' does not go over streams");
  }
}

Status StreamAllreduce(StreamGroup& group, const void* input, void* output, size_t count, int32_t dtype,
                       int32_t reduce_op, Finish finish, const Tuning& tuning) {
  Situation situation;
  situation.bytes = count * DtypeBytes(dtype);
  situation.ranks = situation.hosts = group.size();
  situation.dtype = dtype;
  situation.tuning = tuning;
  return StreamAllreduce(group, ChooseAllreduce(situation), input, output, count, dtype, reduce_op, finish);
}

Status StreamReducescatter(StreamGroup& group, const void* input, std::span<const size_t> bytes_of, void* output,
                           int32_t dtype, int32_t reduce_op, Finish finish) {
  const Shares shares(bytes_of);
  if (group.size() == 1) {
    return StreamAllreduce(group, AllreduceAlgorithm::kDirect, input, output, shares.total() / DtypeBytes(dtype), dtype,
                           reduce_op, finish);
  }
  return DirectReducescatter(group, static_cast<const uint8_t*>(input), shares, static_cast<uint8_t*>(output), dtype,
                             reduce_op, finish);
}

}  // namespace spark_estimator
