// What the shared algorithms have in common: flags by name, the one-shot hand-off, and how vectors are cut.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_SHARED_STEPS_H_
#define SPARK_ESTIMATOR_ALGORITHMS_SHARED_STEPS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "transport/shared_group.h"

namespace spark_estimator {

constexpr uint32_t kSharedSlots = static_cast<uint32_t>(SegmentLayout::kSlots);

inline Flag& InputPosted(Segment& segment) { return segment.input_posted(); }
inline Flag& OutputPosted(Segment& segment) { return segment.output_posted(); }
inline Flag& SmallPosted(Segment& segment) { return segment.small_posted(); }
inline Flag& ArenaPosted(Segment& segment) { return segment.arena_posted(); }

// One-shot: every rank publishes up to kSmallBytes in its small slot and reads everybody's. No acknowledgement is
// needed: the slots alternate, and a rank gets to the op after next only when all have posted the next, that is, have
// read this one.
inline Status PublishSmall(SharedGroup& group, uint32_t* op) {
  *op = group.next_small++;
  Post(group.mine().small_posted(), *op + 1);
  return group.AwaitOthers(SmallPosted, *op + 1);
}

// The bytes of a vector of `total` bytes that are in its `index`-th piece of `piece` bytes.
inline size_t PieceBytes(size_t total, size_t piece, size_t index) {
  const size_t start = index * piece;
  return start < total ? std::min(piece, total - start) : 0;
}

// The bytes of each rank's share of `share` bytes that fit into one block, at most `largest`: whole lines, so whole
// elements too.
inline size_t ChunkBytes(const SharedGroup& group, size_t share, size_t largest) {
  // A block smaller than this per rank costs more in hand-offs than pipelining saves.
  constexpr size_t kLeast = size_t{16} << 10;
  // Several blocks, so that copying in, reducing and copying out overlap between the ranks; but when the ranks take
  // turns on the cores nothing overlaps, and each hand-off costs a switch.
  const size_t blocks = group.waiting.crowded() ? 1 : 2;
  // Ranks that share a core share its cache, too: chunks of half the size leave room for the others' (measured).
  if (group.waiting.crowded()) largest = largest / 2 / 64 * 64;
  const size_t wanted = std::max(share / blocks, std::min(share, kLeast));
  return std::min((wanted + 63) / 64 * 64, largest);
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_SHARED_STEPS_H_
