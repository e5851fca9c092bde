// Chooses an algorithm by the limits of `Tuning` (choose.h).
#include "algorithms/choose.h"

#include <bit>

#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

// Up to this number of ranks one step with all ranks costs no more system calls than log2 n steps save waits.
constexpr int kExchangeRanks = 8;
// Up to this number of ranks two messages to each rank cost less than the waits of 2 log2 n steps. Between powers of
// two the latter send half as much again, so the limit is higher. (Both from native/benchmarks/simulated_costs.cc.)
constexpr int kDirectRanks = 16;
constexpr int kDirectRanksFolded = 128;
// A step of a ring should last longer than the latency of a message.
constexpr size_t kRingBytesPerRank = 64 << 10;
// From this number of bytes on, a share for each rank is worth a separate message.
constexpr size_t kShareBytes = 4 << 10;
constexpr size_t kTreeBytes = 64 << 10;
// ... and so is one that is a quarter as long on the wire.
constexpr size_t kInt8BytesPerRank = 4 * kShareBytes;
// A chain is as fast as one link once what is sent is long against the pieces that fill its ranks.
constexpr size_t kChainBytesPerRank = 128 << 10;
// Rows of this number of bytes take longer on the wire than the ring's additional steps.
constexpr size_t kRingRowsBytes = 16 << 10;

bool Hierarchical(const Situation& situation) {
  const bool possible = situation.hosts > 1 && situation.hosts < situation.ranks;
  return possible && situation.tuning.hierarchical != 0;
}

// Where latency decides, fewer bytes save nothing, and every rank needs a share to reduce. Data that may be sent with a
// proposal (n b up to 64 KiB) is never worth it: whether it does depends on what else is pending.
bool WorthInt8(const Situation& situation) {
  return situation.int8 && situation.bytes > situation.tuning.exchange_bytes &&
         situation.bytes > static_cast<size_t>(situation.ranks) * kInt8BytesPerRank;
}

AllreduceAlgorithm ChooseAcross(const Situation& situation) {
  const auto others = static_cast<size_t>(situation.ranks - 1);
  if (situation.bytes <= situation.tuning.exchange_bytes) {
    const bool few = situation.ranks <= kExchangeRanks && situation.bytes * others <= situation.tuning.exchange_bytes;
    return few || situation.ranks == 2 ? AllreduceAlgorithm::kExchange : AllreduceAlgorithm::kDoubling;
  }
  const auto ranks = static_cast<size_t>(situation.ranks);
  const bool long_steps =
      situation.bytes >= situation.tuning.ring_bytes && situation.bytes >= ranks * kRingBytesPerRank;
  // In a ring the 16-bit types' partial sums would be rounded at each step, or are sent as float32, in twice the bytes;
  // so they are if a slow link, which a ring passes least often, makes up for that.
  const bool in_ring = !IsHalf(situation.dtype) || situation.tuning.halves_in_ring;
  if (long_steps) return in_ring ? AllreduceAlgorithm::kRing : AllreduceAlgorithm::kDirect;
  const int direct = std::has_single_bit(ranks) ? kDirectRanks : kDirectRanksFolded;
  return situation.ranks <= direct ? AllreduceAlgorithm::kDirect : AllreduceAlgorithm::kHalving;
}

}  // namespace

AllreduceAlgorithm ChooseAllreduce(const Situation& situation) {
  if (situation.ranks == 1) return AllreduceAlgorithm::kAlone;
  if (situation.shared) {
    if (situation.bytes <= situation.tuning.one_shot_bytes) return AllreduceAlgorithm::kSharedOneShot;
    return situation.in_arena ? AllreduceAlgorithm::kSharedInArena : AllreduceAlgorithm::kSharedPipeline;
  }
  if (WorthInt8(situation)) {
    return Hierarchical(situation) ? AllreduceAlgorithm::kHierarchicalInt8 : AllreduceAlgorithm::kInt8;
  }
  return Hierarchical(situation) ? AllreduceAlgorithm::kHierarchical : ChooseAcross(situation);
}

BroadcastAlgorithm ChooseBroadcast(const Situation& situation) {
  if (situation.ranks == 1) return BroadcastAlgorithm::kAlone;
  if (situation.shared) return BroadcastAlgorithm::kShared;
  if (Hierarchical(situation)) return BroadcastAlgorithm::kHierarchical;
  const auto ranks = static_cast<size_t>(situation.ranks);
  if (situation.ranks == 2 || situation.bytes <= kTreeBytes) return BroadcastAlgorithm::kTree;
  if (situation.bytes >= ranks * kChainBytesPerRank) return BroadcastAlgorithm::kChain;
  return situation.bytes >= ranks * kShareBytes ? BroadcastAlgorithm::kScatterAllgather : BroadcastAlgorithm::kTree;
}

AllgatherAlgorithm ChooseAllgather(const Situation& situation) {
  if (situation.ranks == 1) return AllgatherAlgorithm::kAlone;
  if (situation.shared) return AllgatherAlgorithm::kShared;
  if (Hierarchical(situation) && situation.hosts_in_rank_order) return AllgatherAlgorithm::kHierarchical;
  if (situation.ranks <= kExchangeRanks) return AllgatherAlgorithm::kExchange;
  const size_t each = situation.bytes / static_cast<size_t>(situation.ranks);
  return each < kRingRowsBytes ? AllgatherAlgorithm::kBruck : AllgatherAlgorithm::kRing;
}

bool ReducescatterByHosts(const Situation& situation) {
  return Hierarchical(situation) && situation.hosts_in_rank_order && !IsHalf(situation.dtype);
}

const char* Name(AllreduceAlgorithm algorithm) {
  switch (algorithm) {
    case AllreduceAlgorithm::kAlone:
      return "alone";
    case AllreduceAlgorithm::kSharedOneShot:
      return "shared one-shot";
    case AllreduceAlgorithm::kSharedPipeline:
      return "shared pipeline";
    case AllreduceAlgorithm::kSharedInArena:
      return "shared in place";
    case AllreduceAlgorithm::kExchange:
      return "exchange";
    case AllreduceAlgorithm::kDoubling:
      return "recursive doubling";
    case AllreduceAlgorithm::kHalving:
      return "halving-doubling";
    case AllreduceAlgorithm::kDirect:
      return "direct";
    case AllreduceAlgorithm::kRing:
      return "ring";
    case AllreduceAlgorithm::kHierarchical:
      return "hierarchical";
    case AllreduceAlgorithm::kInt8:
      return "int8";
    case AllreduceAlgorithm::kHierarchicalInt8:
      return "hierarchical int8";
  }
  return "unknown";
}

const char* Name(BroadcastAlgorithm algorithm) {
  switch (algorithm) {
    case BroadcastAlgorithm::kAlone:
      return "alone";
    case BroadcastAlgorithm::kShared:
      return "shared";
    case BroadcastAlgorithm::kTree:
      return "tree";
    case BroadcastAlgorithm::kScatterAllgather:
      return "scatter-allgather";
    case BroadcastAlgorithm::kChain:
      return "chain";
    case BroadcastAlgorithm::kHierarchical:
      return "hierarchical";
  }
  return "unknown";
}

const char* Name(AllgatherAlgorithm algorithm) {
  switch (algorithm) {
    case AllgatherAlgorithm::kAlone:
      return "alone";
    case AllgatherAlgorithm::kShared:
      return "shared";
    case AllgatherAlgorithm::kExchange:
      return "exchange";
    case AllgatherAlgorithm::kBruck:
      return "Bruck";
    case AllgatherAlgorithm::kRing:
      return "ring";
    case AllgatherAlgorithm::kHierarchical:
      return "hierarchical";
  }
  return "unknown";
}

}  // namespace spark_estimator
