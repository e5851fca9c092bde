// The allreduce inside one host: in one shot when small, else as a pipeline through cache-resident slots.
#include "algorithms/shared.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "algorithms/shared_steps.h"
#include "base/dtype.h"

namespace spark_estimator {
namespace {

Status SmallAllreduce(SharedGroup& group, const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish) {
  uint8_t* slot = group.mine().small_slot(group.next_small);
  buffers.ForEach(0, buffers.total_bytes(), [&](const uint8_t* input, uint8_t*, size_t offset, size_t bytes) {
    std::memcpy(slot + offset, input, bytes);
  });
  uint32_t op = 0;
  SE_RETURN_IF_ERROR(PublishSmall(group, &op));
  std::vector<const void*> sources(static_cast<size_t>(group.size));
  buffers.ForEach(0, buffers.total_bytes(), [&](const uint8_t*, uint8_t* output, size_t offset, size_t bytes) {
    for (int rank = 0; rank < group.size; ++rank) {
      sources[static_cast<size_t>(rank)] = group.of(rank).small_slot(op) + offset;
    }
    GetKernels().combine(dtype, reduce_op, output, sources.data(), group.size, bytes / DtypeBytes(dtype), finish);
  });
  return Status::Ok();
}

// The pipeline of the large allreduce. The vector is cut into blocks of size * chunk bytes; in each block rank r owns
// the r-th chunk. At step s a rank offers block s to the owners, reduces its own chunk of block s - 1, and copies the
// others' reduced chunks of block s - 2 out, so that at every moment the ranks work on different slots.
class BlockPipeline {
 public:
  BlockPipeline(SharedGroup& group, const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish)
      : group_(group),
        buffers_(buffers),
        dtype_(dtype),
        reduce_op_(reduce_op),
        finish_(finish),
        chunk_(ChunkBytes(group, ShareBytes(group, buffers), group.mine().chunk_bytes())),
        sources_(static_cast<size_t>(group.size)) {}

  Status Run() {
    const size_t block_bytes = chunk_ * static_cast<size_t>(group_.size);
    const size_t blocks = (buffers_.total_bytes() + block_bytes - 1) / block_bytes;
    for (size_t step = 0; step < blocks + 2; ++step) {
      if (step < blocks) SE_RETURN_IF_ERROR(Offer(step));
      if (step >= 1 && step - 1 < blocks) SE_RETURN_IF_ERROR(Reduce(step - 1));
      if (step >= 2) SE_RETURN_IF_ERROR(Collect(step - 2));
    }
    group_.next_block += static_cast<uint32_t>(blocks);
    return Status::Ok();
  }

 private:
  struct Range {
    size_t start;
    size_t bytes;
  };

  Range ChunkOf(size_t block, int owner) const {
    const size_t start = (block * static_cast<size_t>(group_.size) + static_cast<size_t>(owner)) * chunk_;
    if (start >= buffers_.total_bytes()) return {0, 0};
    return {start, std::min(chunk_, buffers_.total_bytes() - start)};
  }
  uint32_t Number(size_t block) const { return group_.next_block + static_cast<uint32_t>(block); }
  uint8_t* Offered(int by, int to, uint32_t number) {
    return group_.InputSlot(by, number) + static_cast<size_t>(to) * chunk_;
  }

  Status Offer(size_t block) {
    const uint32_t number = Number(block);
    group_.PlaceBlock(number, chunk_ * static_cast<size_t>(group_.size), chunk_, chunk_);
    // The slot's last readers were the owners, when they reduced the block that was there before.
    SE_RETURN_IF_ERROR(group_.AwaitOthers(OutputPosted, number - kSharedSlots + 1));
    for (int owner = 0; owner < group_.size; ++owner) {
      if (owner == group_.rank) continue;
      uint8_t* slot = Offered(group_.rank, owner, number);
      const Range range = ChunkOf(block, owner);
      buffers_.ForEach(range.start, range.bytes, [&](const uint8_t* input, uint8_t*, size_t offset, size_t bytes) {
        group_.stores.Copy(slot + offset, input, bytes);
      });
    }
    Post(group_.mine().input_posted(), number + 1);
    return Status::Ok();
  }

  Status Reduce(size_t block) {
    const uint32_t number = Number(block);
    SE_RETURN_IF_ERROR(group_.AwaitOthers(InputPosted, number + 1));
    // The output slot is free: a rank that has offered this block has copied out the block before last but one, and
    // there are more slots than that (kSlots >= 3).
    uint8_t* slot = group_.OutputSlot(group_.rank, number);
    const Range range = ChunkOf(block, group_.rank);
    buffers_.ForEach(range.start, range.bytes, [&](const uint8_t* input, uint8_t* output, size_t offset, size_t bytes) {
      if (!group_.stores.past_caches()) {
        ReducePiece(number, input, offset, bytes, {slot + offset, output});
        return;
      }
      // Pieces that are still in the first cache when they are copied on from there.
      constexpr size_t kPiece = size_t{8} << 10;
      for (size_t done = 0; done < bytes; done += kPiece) {
        const size_t piece = std::min(kPiece, bytes - done);
        ReducePiece(number, input + done, offset + done, piece, {output + done});
        kernels_.copy_past_caches(slot + offset + done, output + done, piece);
      }
    });
    Post(group_.mine().output_posted(), number + 1);
    return Status::Ok();
  }

  // Reduces `bytes` at `offset` of this rank's chunk; `input` is its own part.
  void ReducePiece(uint32_t number, const uint8_t* input, size_t offset, size_t bytes,
                   std::initializer_list<void*> destinations) {
    for (int rank = 0; rank < group_.size; ++rank) {
      sources_[static_cast<size_t>(rank)] = rank == group_.rank ? input : Offered(rank, group_.rank, number) + offset;
    }
    kernels_.combine_into(dtype_, reduce_op_, destinations.begin(), static_cast<int>(destinations.size()),
                          sources_.data(), group_.size, bytes / DtypeBytes(dtype_), finish_);
  }

  Status Collect(size_t block) {
    const uint32_t number = Number(block);
    for (int step = 1; step < group_.size; ++step) {
      const int owner = (group_.rank + step) % group_.size;  // not all from the same rank at once
      SE_RETURN_IF_ERROR(group_.AwaitFlag(group_.of(owner).output_posted(), number + 1));
      const uint8_t* slot = group_.OutputSlot(owner, number);
      const Range range = ChunkOf(block, owner);
      buffers_.ForEach(range.start, range.bytes, [&](const uint8_t*, uint8_t* output, size_t offset, size_t bytes) {
        std::memcpy(output, slot + offset, bytes);
      });
    }
    return Status::Ok();
  }

  static size_t ShareBytes(const SharedGroup& group, const BufferList& buffers) {
    const auto ranks = static_cast<size_t>(group.size);
    return (buffers.total_bytes() + ranks - 1) / ranks;
  }

  const Kernels& kernels_ = GetKernels();
  SharedGroup& group_;
  const BufferList& buffers_;
  const int32_t dtype_;
  const int32_t reduce_op_;
  const Finish finish_;
  const size_t chunk_;
  std::vector<const void*> sources_;
};

}  // namespace

Status SharedAllreduce(SharedGroup& group, const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish) {
  if (buffers.total_bytes() == 0) return Status::Ok();
  if (buffers.total_bytes() <= SegmentLayout::kSmallBytes) {
    return SmallAllreduce(group, buffers, dtype, reduce_op, finish);
  }
  return BlockPipeline(group, buffers, dtype, reduce_op, finish).Run();
}

}  // namespace spark_estimator
