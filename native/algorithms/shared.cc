#include "algorithms/shared.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/dtype.h"

namespace spark_estimator {
namespace {

constexpr uint32_t kSlots = static_cast<uint32_t>(SegmentLayout::kSlots);
// A block smaller than this per rank costs more in hand-offs than pipelining saves.
constexpr size_t kLeastChunkBytes = 16 << 10;
// Several blocks, so that copying in, reducing and copying out overlap between the ranks.
constexpr size_t kWantedBlocks = 4;

Flag& InputPosted(Segment& segment) { return segment.input_posted(); }
Flag& OutputPosted(Segment& segment) { return segment.output_posted(); }
Flag& SmallPosted(Segment& segment) { return segment.small_posted(); }

// One-shot: every rank publishes up to kSmallBytes and reads everybody's. No acknowledgement is needed: the slots
// alternate, and a rank gets to the op after next only when all have posted the next, that is, have read this one.
Status PublishSmall(SharedGroup& group, uint32_t* op) {
  *op = group.next_small++;
  Post(group.mine().small_posted(), *op + 1);
  return group.AwaitOthers(SmallPosted, *op + 1);
}

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

size_t ChunkBytes(const SharedGroup& group, size_t total_bytes, size_t largest) {
  const auto ranks = static_cast<size_t>(group.size);
  const size_t share = (total_bytes + ranks - 1) / ranks;
  const size_t wanted = std::max(share / kWantedBlocks, std::min(share, kLeastChunkBytes));
  return std::min((wanted + 63) / 64 * 64, largest);  // whole lines, so whole elements too
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
        chunk_(ChunkBytes(group, buffers.total_bytes(), group.mine().chunk_bytes())),
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
    return group_.of(by).input_slot(number) + static_cast<size_t>(to) * chunk_;
  }

  Status Offer(size_t block) {
    const uint32_t number = Number(block);
    // The slot's last readers were the owners, when they reduced the block that was there before.
    SE_RETURN_IF_ERROR(group_.AwaitOthers(OutputPosted, number - kSlots + 1));
    for (int owner = 0; owner < group_.size; ++owner) {
      if (owner == group_.rank) continue;
      uint8_t* slot = Offered(group_.rank, owner, number);
      const Range range = ChunkOf(block, owner);
      buffers_.ForEach(range.start, range.bytes, [&](const uint8_t* input, uint8_t*, size_t offset, size_t bytes) {
        std::memcpy(slot + offset, input, bytes);
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
    uint8_t* slot = group_.mine().output_slot(number);
    const Range range = ChunkOf(block, group_.rank);
    buffers_.ForEach(range.start, range.bytes, [&](const uint8_t* input, uint8_t* output, size_t offset, size_t bytes) {
      for (int rank = 0; rank < group_.size; ++rank) {
        sources_[static_cast<size_t>(rank)] = rank == group_.rank ? input : Offered(rank, group_.rank, number) + offset;
      }
      GetKernels().combine(dtype_, reduce_op_, slot + offset, sources_.data(), group_.size, bytes / DtypeBytes(dtype_),
                           finish_);
      std::memcpy(output, slot + offset, bytes);
    });
    Post(group_.mine().output_posted(), number + 1);
    return Status::Ok();
  }

  Status Collect(size_t block) {
    const uint32_t number = Number(block);
    for (int step = 1; step < group_.size; ++step) {
      const int owner = (group_.rank + step) % group_.size;  // not all from the same rank at once
      SE_RETURN_IF_ERROR(group_.AwaitFlag(group_.of(owner).output_posted(), number + 1));
      const uint8_t* slot = group_.of(owner).output_slot(number);
      const Range range = ChunkOf(block, owner);
      buffers_.ForEach(range.start, range.bytes, [&](const uint8_t*, uint8_t* output, size_t offset, size_t bytes) {
        std::memcpy(output, slot + offset, bytes);
      });
    }
    return Status::Ok();
  }

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

Status SharedBroadcast(SharedGroup& group, int root, const void* input, void* output, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  const bool is_root = group.rank == root;
  if (bytes <= SegmentLayout::kSmallBytes) {
    if (is_root) std::memcpy(group.mine().small_slot(group.next_small), input, bytes);
    uint32_t op = 0;
    SE_RETURN_IF_ERROR(PublishSmall(group, &op));
    if (!is_root) std::memcpy(output, group.of(root).small_slot(op), bytes);
  } else {
    const size_t slot_bytes = group.mine().input_slot_bytes();
    const size_t blocks = (bytes + slot_bytes - 1) / slot_bytes;
    for (size_t block = 0; block < blocks; ++block) {
      const uint32_t number = group.next_block + static_cast<uint32_t>(block);
      const size_t start = block * slot_bytes;
      const size_t piece = std::min(slot_bytes, bytes - start);
      if (is_root) {
        SE_RETURN_IF_ERROR(group.AwaitOthers(OutputPosted, number - kSlots + 1));
        std::memcpy(group.mine().input_slot(number), static_cast<const uint8_t*>(input) + start, piece);
        Post(group.mine().input_posted(), number + 1);
      } else {
        SE_RETURN_IF_ERROR(group.AwaitFlag(group.of(root).input_posted(), number + 1));
        std::memcpy(static_cast<uint8_t*>(output) + start, group.of(root).input_slot(number), piece);
        Post(group.mine().output_posted(), number + 1);
      }
    }
    group.next_block += static_cast<uint32_t>(blocks);
    // What this rank had no part in: it offered nothing (or read nothing), which later ops must not wait for.
    Post(is_root ? group.mine().output_posted() : group.mine().input_posted(), group.next_block);
  }
  if (is_root && output != input) std::memcpy(output, input, bytes);
  return Status::Ok();
}

Status SharedAllgather(SharedGroup& group, const void* input, std::span<const size_t> bytes_of, void* output) {
  std::vector<size_t> start_of(bytes_of.size() + 1, 0);
  for (size_t rank = 0; rank < bytes_of.size(); ++rank) start_of[rank + 1] = start_of[rank] + bytes_of[rank];
  const size_t largest = *std::max_element(bytes_of.begin(), bytes_of.end());
  if (largest == 0) return Status::Ok();
  const auto me = static_cast<size_t>(group.rank);
  auto* out = static_cast<uint8_t*>(output);
  const auto* in = static_cast<const uint8_t*>(input);
  if (bytes_of[me] > 0) std::memcpy(out + start_of[me], in, bytes_of[me]);

  if (largest <= SegmentLayout::kSmallBytes) {
    if (bytes_of[me] > 0) std::memcpy(group.mine().small_slot(group.next_small), in, bytes_of[me]);
    uint32_t op = 0;
    SE_RETURN_IF_ERROR(PublishSmall(group, &op));
    for (size_t rank = 0; rank < bytes_of.size(); ++rank) {
      if (rank == me || bytes_of[rank] == 0) continue;
      std::memcpy(out + start_of[rank], group.of(static_cast<int>(rank)).small_slot(op), bytes_of[rank]);
    }
    return Status::Ok();
  }

  const size_t slot_bytes = group.mine().input_slot_bytes();
  const size_t blocks = (largest + slot_bytes - 1) / slot_bytes;
  const auto piece_of = [&](size_t rank, size_t block) -> size_t {
    const size_t start = block * slot_bytes;
    return start < bytes_of[rank] ? std::min(slot_bytes, bytes_of[rank] - start) : 0;
  };
  // Publish block s while reading block s - 1: nobody waits for a rank that is still copying in.
  for (size_t step = 0; step < blocks + 1; ++step) {
    if (step < blocks) {
      const uint32_t number = group.next_block + static_cast<uint32_t>(step);
      SE_RETURN_IF_ERROR(group.AwaitOthers(OutputPosted, number - kSlots + 1));
      if (const size_t piece = piece_of(me, step); piece > 0) {
        std::memcpy(group.mine().input_slot(number), in + step * slot_bytes, piece);
      }
      Post(group.mine().input_posted(), number + 1);
    }
    if (step >= 1) {
      const size_t block = step - 1;
      const uint32_t number = group.next_block + static_cast<uint32_t>(block);
      for (int turn = 1; turn < group.size; ++turn) {
        const int peer = (group.rank + turn) % group.size;
        SE_RETURN_IF_ERROR(group.AwaitFlag(group.of(peer).input_posted(), number + 1));
        const auto rank = static_cast<size_t>(peer);
        if (const size_t piece = piece_of(rank, block); piece > 0) {
          std::memcpy(out + start_of[rank] + block * slot_bytes, group.of(peer).input_slot(number), piece);
        }
      }
      Post(group.mine().output_posted(), number + 1);
    }
  }
  group.next_block += static_cast<uint32_t>(blocks);
  return Status::Ok();
}

Status SharedBarrier(SharedGroup& group) {
  uint32_t op = 0;
  return PublishSmall(group, &op);
}

}  // namespace spark_estimator
