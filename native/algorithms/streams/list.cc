#include "algorithms/streams/list.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/streams/direct.h"
#include "algorithms/streams/halves.h"
#include "algorithms/streams/operation.h"
#include "algorithms/streams/ring.h"
#include "base/dtype.h"
#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

// A block is long against what fills a ring, and so is each rank's share, which is a step of that ring. Of few ranks,
// two blocks fit into memory that a group keeps. Blocks are multiples of a page, and so of every element.
constexpr size_t kBlockBytes = size_t{2} << 20;
constexpr size_t kShareBytes = size_t{256} << 10;
constexpr size_t kPageBytes = size_t{4} << 10;

class ListAllreduce {
 public:
  using BeginAllreduce = std::unique_ptr<StreamOperation> (*)(StreamGroup&, const uint8_t* input, uint8_t* output,
                                                              size_t count, int32_t dtype, int32_t reduce_op,
                                                              Finish finish);

  ListAllreduce(StreamGroup& group, const BufferList& buffers, BeginAllreduce begin, int32_t dtype, int32_t reduce_op,
                Finish finish)
      : group_(group), buffers_(buffers), begin_(begin), dtype_(dtype), reduce_op_(reduce_op), finish_(finish) {}

  Status Run() {
    // The operations use the scratch memory of their group, and this one needs that of `group_`.
    std::vector<int> everyone(static_cast<size_t>(group_.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    SubGroup ranks(&group_, std::move(everyone));
    const size_t least = std::max(kBlockBytes, static_cast<size_t>(group_.size()) * kShareBytes);
    const size_t blocks = std::max(buffers_.total_bytes() / least, size_t{1});
    const size_t most = (buffers_.total_bytes() / blocks / kPageBytes + 1) * kPageBytes;  // they are nearly even
    uint8_t* memory = nullptr;
    SE_RETURN_IF_ERROR(group_.Scratch(std::min(blocks, size_t{2}) * most, &memory));
    Block current{0, std::min(most, buffers_.total_bytes()), memory};
    Join(current);
    auto operation = Begin(ranks, current);
    for (size_t index = 1; current.bytes > 0; ++index) {
      SE_RETURN_IF_ERROR(operation->Advance());
      const size_t start = current.start + current.bytes;
      const Block next{start, std::min(most, buffers_.total_bytes() - start), memory + index % 2 * most};
      Join(next);
      SE_RETURN_IF_ERROR(operation->Complete());
      if (next.bytes > 0) {
        operation = Begin(ranks, next);
        SE_RETURN_IF_ERROR(operation->Advance());
      }
      Spread(current);
      current = next;
    }
    return Status::Ok();
  }

 private:
  // Bytes [start, start + bytes) of the list, joined in `memory`.
  struct Block {
    size_t start;
    size_t bytes;
    uint8_t* memory;
  };

  std::unique_ptr<StreamOperation> Begin(StreamGroup& ranks, const Block& block) const {
    return begin_(ranks, block.memory, block.memory, block.bytes / DtypeBytes(dtype_), dtype_, reduce_op_, finish_);
  }

  void Join(const Block& block) const {
    buffers_.ForEach(block.start, block.bytes, [&](const uint8_t* input, uint8_t*, size_t offset, size_t bytes) {
      std::memcpy(block.memory + offset, input, bytes);
    });
  }
  void Spread(const Block& block) const {
    buffers_.ForEach(block.start, block.bytes, [&](const uint8_t*, uint8_t* output, size_t offset, size_t bytes) {
      std::memcpy(output, block.memory + offset, bytes);
    });
  }

  StreamGroup& group_;
  const BufferList& buffers_;
  const BeginAllreduce begin_;
  const int32_t dtype_;
  const int32_t reduce_op_;
  const Finish finish_;
};

}  // namespace

Status StreamListAllreduce(StreamGroup& group, AllreduceAlgorithm algorithm, const BufferList& buffers, int32_t dtype,
                           int32_t reduce_op, Finish finish) {
  if (buffers.total_bytes() == 0) return Status::Ok();
  switch (algorithm) {
    case AllreduceAlgorithm::kDirect:
      return ListAllreduce(group, buffers, BeginDirectAllreduce, dtype, reduce_op, finish).Run();
    case AllreduceAlgorithm::kRing:
      return ListAllreduce(group, buffers, IsHalf(dtype) ? BeginHalvesRingAllreduce : BeginRingAllreduce, dtype,
                           reduce_op, finish)
          .Run();
    default:
      return Status(SE_INTERNAL, std::string("a list is not reduced in blocks by '") + Name(algorithm) + "'");
  }
}

}  // namespace spark_estimator
