// Reductions inside one host whose result is not copied to everybody: reducescatter, and allreduce in place in arenas.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "algorithms/shared.h"
#include "algorithms/shared_steps.h"
#include "base/dtype.h"

namespace spark_estimator {

std::vector<size_t> SharesOf(size_t total_bytes, size_t element_bytes, int size) {
  const auto ranks = static_cast<size_t>(size);
  const size_t count = total_bytes / element_bytes;
  std::vector<size_t> shares(ranks, count / ranks * element_bytes);
  for (size_t rank = 0; rank < count % ranks; ++rank) shares[rank] += element_bytes;
  return shares;
}

Status SharedReducescatter(SharedGroup& group, const void* input, std::span<const size_t> bytes_of, void* output,
                           int32_t dtype, int32_t reduce_op, Finish finish) {
  const Kernels& kernels = GetKernels();
  const size_t element = DtypeBytes(dtype);
  const auto me = static_cast<size_t>(group.rank);
  const auto ranks = static_cast<size_t>(group.size);
  const auto* in = static_cast<const uint8_t*>(input);
  auto* out = static_cast<uint8_t*>(output);
  std::vector<size_t> start_of(ranks + 1, 0);
  std::partial_sum(bytes_of.begin(), bytes_of.end(), start_of.begin() + 1);
  const size_t total = start_of[ranks];
  if (total == 0) return Status::Ok();
  std::vector<const void*> sources(ranks);

  if (total <= SegmentLayout::kSmallBytes) {
    std::memcpy(group.mine().small_slot(group.next_small), in, total);
    uint32_t op = 0;
    SE_RETURN_IF_ERROR(PublishSmall(group, &op));
    for (size_t rank = 0; rank < ranks; ++rank) {
      sources[rank] = group.of(static_cast<int>(rank)).small_slot(op) + start_of[me];
    }
    kernels.combine(dtype, reduce_op, out, sources.data(), group.size, bytes_of[me] / element, finish);
    return Status::Ok();
  }

  // Block b carries the b-th chunk of every slab. A rank offers block s to the slabs' owners and reduces its own chunk
  // of block s - 1, straight into its output.
  const size_t largest = *std::max_element(bytes_of.begin(), bytes_of.end());
  const size_t chunk = ChunkBytes(group, largest, group.mine().chunk_bytes());
  const size_t blocks = (largest + chunk - 1) / chunk;
  for (size_t step = 0; step < blocks + 1; ++step) {
    if (step < blocks) {
      const uint32_t number = group.next_block + static_cast<uint32_t>(step);
      group.PlaceBlock(number, chunk * ranks, 0, chunk);
      SE_RETURN_IF_ERROR(group.AwaitOthers(OutputPosted, number - kSharedSlots + 1));
      uint8_t* slot = group.InputSlot(group.rank, number);
      for (size_t owner = 0; owner < ranks; ++owner) {
        const size_t piece = PieceBytes(bytes_of[owner], chunk, step);
        if (owner != me && piece > 0) {
          group.stores.Copy(slot + owner * chunk, in + start_of[owner] + step * chunk, piece);
        }
      }
      Post(group.mine().input_posted(), number + 1);
    }
    if (step >= 1) {
      const size_t block = step - 1;
      const uint32_t number = group.next_block + static_cast<uint32_t>(block);
      SE_RETURN_IF_ERROR(group.AwaitOthers(InputPosted, number + 1));
      if (const size_t piece = PieceBytes(bytes_of[me], chunk, block); piece > 0) {
        for (size_t rank = 0; rank < ranks; ++rank) {
          sources[rank] = rank == me ? in + start_of[me] + block * chunk
                                     : group.InputSlot(static_cast<int>(rank), number) + me * chunk;
        }
        kernels.combine(dtype, reduce_op, out + block * chunk, sources.data(), group.size, piece / element, finish);
      }
      Post(group.mine().output_posted(), number + 1);
    }
  }
  group.next_block += static_cast<uint32_t>(blocks);
  return Status::Ok();
}

// Each rank reduces its share of every tensor and writes the result into all ranks' memory: two hand-offs, and no byte
// is read or written that the allreduce does not need.
Status SymmetricAllreduce(SharedGroup& group, std::span<uint8_t* const> data_of, std::span<const size_t> bytes_of,
                          int32_t dtype, int32_t reduce_op, Finish finish) {
  const Kernels& kernels = GetKernels();
  const size_t element = DtypeBytes(dtype);
  const auto me = static_cast<size_t>(group.rank);
  const auto ranks = static_cast<size_t>(group.size);
  const size_t total = std::accumulate(bytes_of.begin(), bytes_of.end(), size_t{0});
  if (total == 0) return Status::Ok();
  // One long vector is cut into shares of whole lines, which are whole elements too.
  const size_t share = ((total + ranks - 1) / ranks + 63) / 64 * 64;
  const size_t first = std::min(me * share, total);
  const size_t last = std::min(first + share, total);
  std::vector<const void*> sources(ranks);
  std::vector<void*> destinations(ranks);

  const uint32_t begun = ++group.next_arena;
  Post(group.mine().arena_posted(), begun);
  SE_RETURN_IF_ERROR(group.AwaitOthers(ArenaPosted, begun));
  size_t start = 0;
  for (size_t tensor = 0; tensor < bytes_of.size() && start < last; ++tensor) {
    const size_t end = start + bytes_of[tensor];
    const size_t from = std::max(start, first);
    const size_t upto = std::min(end, last);
    if (from < upto) {
      // Tensors' ends need not be multiples of lines, but they are of elements; and so are the cuts.
      for (size_t rank = 0; rank < ranks; ++rank) {
        uint8_t* data = data_of[tensor * ranks + rank] + (from - start);
        sources[rank] = data;
        destinations[rank] = data;
      }
      kernels.combine_into(dtype, reduce_op, destinations.data(), group.size, sources.data(), group.size,
                           (upto - from) / element, finish);
    }
    start = end;
  }
  const uint32_t done = ++group.next_arena;
  Post(group.mine().arena_posted(), done);
  return group.AwaitOthers(ArenaPosted, done);
}

}  // namespace spark_estimator
