// The control connections of a large group: which ranks are connected, and the path of a frame between two that are
// not.
//
// Each rank is connected with those at distances of powers of two in both directions, about 2 log2(size), on a circle
// of all ranks. A frame goes clockwise, by the greatest power of two that does not pass its destination, so it needs as
// many steps as the distance has bits that are set: the routing of Chord (Stoica et al., 2001) without its tables. The
// paths from one rank to all others form a binomial tree.
//
// Pure functions of ranks and sizes.
#ifndef SPARK_ESTIMATOR_ENGINE_OVERLAY_H_
#define SPARK_ESTIMATOR_ENGINE_OVERLAY_H_

#include <bit>
#include <cstdint>
#include <vector>

namespace spark_estimator::overlay {

// How far `to` is from `from`, clockwise: 0..size - 1.
constexpr int Distance(int from, int to, int size) { return to >= from ? to - from : to - from + size; }

// The ranks that `rank` is connected with, ascending: all in a group of up to five.
std::vector<int> Neighbours(int rank, int size);

// The neighbour of `from` to which a frame for `to`, another rank, goes next.
constexpr int NextHop(int from, int to, int size) {
  const auto step = static_cast<int>(std::bit_floor(static_cast<uint32_t>(Distance(from, to, size))));
  return static_cast<int>((static_cast<int64_t>(from) + step) % size);
}

// Calls visit(rank) for each neighbour to which `rank` passes on what `source` sends to all: so that each rank gets it
// once, by the path of a frame to it alone.
template <typename Visit>
void ForEachChild(int source, int rank, int size, Visit visit) {
  const int offset = Distance(source, rank, size);
  for (int64_t step = 1; offset + step < size && (offset == 0 || step < (offset & -offset)); step *= 2) {
    visit(static_cast<int>((rank + step) % size));
  }
}

}  // namespace spark_estimator::overlay

#endif  // SPARK_ESTIMATOR_ENGINE_OVERLAY_H_
