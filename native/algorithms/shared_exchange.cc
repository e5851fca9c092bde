// Collectives inside one host that move bytes without computing: broadcast, allgather, alltoall, barrier.
#include <algorithm>
#include <cstring>
#include <vector>

#include "algorithms/shared.h"
#include "algorithms/shared_steps.h"
#include "base/kernels/kernels.h"

namespace spark_estimator {
namespace {

// Results of this number of bytes are stored past the caches: otherwise the last written lines would evict those that
// are read next, and each line would be fetched from memory before it is overwritten. 16 MiB broadcast: 1.2 ms, through
// the caches 1.3 to 2.0.
constexpr size_t kPastCachesBytes = size_t{8} << 20;

// Where an op puts its result, of `bytes` bytes in all.
class Result {
 public:
  Result(void* place, size_t bytes) : place_(static_cast<uint8_t*>(place)), past_caches_(bytes >= kPastCachesBytes) {}

  void Put(size_t offset, const void* from, size_t bytes) const {
    if (bytes == 0 || place_ + offset == from) return;
    uint8_t* to = place_ + offset;
    if (past_caches_) {
      GetKernels().copy_past_caches(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }

 private:
  uint8_t* place_;
  bool past_caches_;
};

// Every rank fills its input slots block by block, and reads the others' a block behind, so that no rank waits for one
// that is still copying in. `publish(block, slot)`, `keep(block)` for what a rank sends itself, and `read(block, peer,
// slot of peer)` do the copying.
template <typename Publish, typename Keep, typename Read>
Status ExchangeBlocks(SharedGroup& group, size_t blocks, size_t slot_bytes, size_t piece_bytes, Publish publish,
                      Keep keep, Read read) {
  for (size_t step = 0; step < blocks + 1; ++step) {
    if (step < blocks) {
      const uint32_t number = group.next_block + static_cast<uint32_t>(step);
      group.PlaceBlock(number, slot_bytes, 0, piece_bytes);
      SE_RETURN_IF_ERROR(group.AwaitOthers(OutputPosted, number - kSharedSlots + 1));
      publish(step, group.InputSlot(group.rank, number));
      Post(group.mine().input_posted(), number + 1);
      keep(step);
    }
    if (step >= 1) {
      const uint32_t number = group.next_block + static_cast<uint32_t>(step - 1);
      for (int turn = 1; turn < group.size; ++turn) {
        const int peer = (group.rank + turn) % group.size;  // not all from the same rank at once
        SE_RETURN_IF_ERROR(group.AwaitFlag(group.of(peer).input_posted(), number + 1));
        read(step - 1, peer, group.InputSlot(peer, number));
      }
      Post(group.mine().output_posted(), number + 1);
    }
  }
  group.next_block += static_cast<uint32_t>(blocks);
  return Status::Ok();
}

std::vector<size_t> StartsOf(std::span<const size_t> bytes_of) {
  std::vector<size_t> start_of(bytes_of.size(), 0);
  for (size_t rank = 1; rank < bytes_of.size(); ++rank) start_of[rank] = start_of[rank - 1] + bytes_of[rank - 1];
  return start_of;
}

}  // namespace

Status SharedBroadcast(SharedGroup& group, int root, const void* input, void* output, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  const bool is_root = group.rank == root;
  const auto* in = static_cast<const uint8_t*>(input);
  const Result result(output, bytes);
  if (bytes <= SegmentLayout::kSmallBytes) {
    if (is_root) std::memcpy(group.mine().small_slot(group.next_small), in, bytes);
    uint32_t op = 0;
    SE_RETURN_IF_ERROR(PublishSmall(group, &op));
    result.Put(0, is_root ? in : group.of(root).small_slot(op), bytes);
    return Status::Ok();
  }
  const size_t slot_bytes = ChunkBytes(group, bytes, group.mine().input_slot_bytes());
  const size_t blocks = (bytes + slot_bytes - 1) / slot_bytes;
  for (size_t block = 0; block < blocks; ++block) {
    const uint32_t number = group.next_block + static_cast<uint32_t>(block);
    const size_t start = block * slot_bytes;
    const size_t piece = PieceBytes(bytes, slot_bytes, block);
    group.PlaceBlock(number, slot_bytes, 0, slot_bytes);
    if (is_root) {
      SE_RETURN_IF_ERROR(group.AwaitOthers(OutputPosted, number - kSharedSlots + 1));
      group.stores.Copy(group.InputSlot(root, number), in + start, piece);
      Post(group.mine().input_posted(), number + 1);
      result.Put(start, in + start, piece);
    } else {
      SE_RETURN_IF_ERROR(group.AwaitFlag(group.of(root).input_posted(), number + 1));
      result.Put(start, group.InputSlot(root, number), piece);
      Post(group.mine().output_posted(), number + 1);
    }
  }
  group.next_block += static_cast<uint32_t>(blocks);
  // What this rank had no part in: it offered nothing (or read nothing), which later ops must not wait for.
  Post(is_root ? group.mine().output_posted() : group.mine().input_posted(), group.next_block);
  return Status::Ok();
}

Status SharedAllgather(SharedGroup& group, const void* input, std::span<const size_t> bytes_of, void* output) {
  const std::vector<size_t> start_of = StartsOf(bytes_of);
  const size_t largest = *std::max_element(bytes_of.begin(), bytes_of.end());
  if (largest == 0) return Status::Ok();
  const auto me = static_cast<size_t>(group.rank);
  const auto* in = static_cast<const uint8_t*>(input);
  const Result result(output, start_of.back() + bytes_of.back());
  if (largest <= SegmentLayout::kSmallBytes) {
    if (bytes_of[me] > 0) std::memcpy(group.mine().small_slot(group.next_small), in, bytes_of[me]);
    uint32_t op = 0;
    SE_RETURN_IF_ERROR(PublishSmall(group, &op));
    for (size_t rank = 0; rank < bytes_of.size(); ++rank) {
      result.Put(start_of[rank], rank == me ? in : group.of(static_cast<int>(rank)).small_slot(op), bytes_of[rank]);
    }
    return Status::Ok();
  }
  const size_t slot_bytes = ChunkBytes(group, largest, group.mine().input_slot_bytes());
  return ExchangeBlocks(
      group, (largest + slot_bytes - 1) / slot_bytes, slot_bytes, slot_bytes,
      [&](size_t block, uint8_t* slot) {
        const size_t piece = PieceBytes(bytes_of[me], slot_bytes, block);
        if (piece > 0) group.stores.Copy(slot, in + block * slot_bytes, piece);
      },
      [&](size_t block) {
        const size_t piece = PieceBytes(bytes_of[me], slot_bytes, block);
        if (piece > 0) result.Put(start_of[me] + block * slot_bytes, in + block * slot_bytes, piece);
      },
      [&](size_t block, int peer, const uint8_t* slot) {
        const auto rank = static_cast<size_t>(peer);
        result.Put(start_of[rank] + block * slot_bytes, slot, PieceBytes(bytes_of[rank], slot_bytes, block));
      });
}

Status SharedAlltoall(SharedGroup& group, const void* input, std::span<const size_t> send_bytes,
                      std::span<const size_t> receive_bytes, size_t largest, void* output) {
  if (largest == 0) return Status::Ok();
  const std::vector<size_t> send_start = StartsOf(send_bytes);
  const std::vector<size_t> receive_start = StartsOf(receive_bytes);
  const auto me = static_cast<size_t>(group.rank);
  const auto ranks = static_cast<size_t>(group.size);
  const auto* in = static_cast<const uint8_t*>(input);
  const Result result(output, receive_start.back() + receive_bytes.back());
  if (largest <= SegmentLayout::kSmallBytes / ranks) {
    uint8_t* slot = group.mine().small_slot(group.next_small);
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (send_bytes[rank] > 0) std::memcpy(slot + rank * largest, in + send_start[rank], send_bytes[rank]);
    }
    uint32_t op = 0;
    SE_RETURN_IF_ERROR(PublishSmall(group, &op));
    for (size_t rank = 0; rank < ranks; ++rank) {
      result.Put(receive_start[rank], group.of(static_cast<int>(rank)).small_slot(op) + me * largest,
                 receive_bytes[rank]);
    }
    return Status::Ok();
  }
  const size_t chunk = ChunkBytes(group, largest, group.mine().chunk_bytes());
  return ExchangeBlocks(
      group, (largest + chunk - 1) / chunk, chunk * ranks, chunk,
      [&](size_t block, uint8_t* slot) {
        for (size_t rank = 0; rank < ranks; ++rank) {
          const size_t piece = PieceBytes(send_bytes[rank], chunk, block);
          if (rank == me || piece == 0) continue;
          group.stores.Copy(slot + rank * chunk, in + send_start[rank] + block * chunk, piece);
        }
      },
      [&](size_t block) {
        const size_t piece = PieceBytes(send_bytes[me], chunk, block);
        const size_t start = block * chunk;
        if (piece > 0) result.Put(receive_start[me] + start, in + send_start[me] + start, piece);
      },
      [&](size_t block, int peer, const uint8_t* slot) {
        const auto rank = static_cast<size_t>(peer);
        result.Put(receive_start[rank] + block * chunk, slot + me * chunk,
                   PieceBytes(receive_bytes[rank], chunk, block));
      });
}

Status SharedBarrier(SharedGroup& group) {
  uint32_t op = 0;
  return PublishSmall(group, &op);
}

}  // namespace spark_estimator
