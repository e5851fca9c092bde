// Which algorithm carries out a collective, as a pure function of what all ranks know. The table is in
// native/algorithms/README.md.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_CHOOSE_H_
#define SPARK_ESTIMATOR_ALGORITHMS_CHOOSE_H_

#include <cstddef>
#include <cstdint>

#include "spark_estimator/engine.h"

namespace spark_estimator {

// The limits between the algorithms, in bytes a rank.
struct Tuning {
  size_t one_shot_bytes =
      8 << 10;  // in one host: everybody reads everybody's up to here (the small slots hold no more)
  size_t exchange_bytes = 16 << 10;  // across hosts: everything in few steps up to here, where latency decides
  size_t ring_bytes = 512 << 10;     // across hosts: the ring from here on, where only the links' speed decides
  int32_t hierarchical = -1;         // inside hosts first, then across: 1 always where it can be, 0 never, -1 by size
  bool halves_in_ring = false;       // across hosts: 16-bit types like others, with partial sums in float32
  bool operator==(const Tuning&) const = default;
};

// What a choice depends on. It has to be the same on all ranks of the group, since they must choose the same.
struct Situation {
  size_t bytes = 0;  // of one rank; allgather: of all ranks together
  int ranks = 1;
  int hosts = 1;                     // sets of ranks that see each other's memory, see HostsOf
  int ranks_per_host = 1;            // 0 when the hosts hold different numbers of ranks
  bool hosts_in_rank_order = false;  // see Hosts
  bool shared = false;               // all ranks see each other's memory
  bool in_arena = false;             // all ranks' tensors are already in shared memory
  int cores = 1;                     // of one host, the smallest number of all ranks' views
  int32_t dtype = SE_FLOAT32;        // allreduce
  bool int8 = false;                 // allreduce: float32 that may be sent as int8
  Tuning tuning = {};
};

enum class AllreduceAlgorithm {
  kAlone,           // one rank
  kSharedOneShot,   // one host, one hand-off: publish, read everybody's
  kSharedPipeline,  // one host: chunks are offered, reduced by their owners, collected
  kSharedInArena,   // one host: reduced where the tensors are
  kExchange,        // streams, 1 step: everything to everybody
  kDoubling,        // streams, log2 n steps: the whole vector with a partner twice as far each time
  kHalving,         // streams, 2 log2 n steps: half as much with a partner half as far each time, and back
  kDirect,          // streams, 2 steps: each rank reduces its share of everybody's vector and hands it back
  kRing,            // streams, 2 (n - 1) steps
  kHierarchical,    // inside hosts through shared memory, across hosts by streams
  kInt8,            // streams, 1 step of two ranks, else 2: as kDirect, in int8
  kHierarchicalInt8,
};
enum class BroadcastAlgorithm {
  kAlone,
  kShared,
  kTree,              // streams, log2 n steps: binomial
  kScatterAllgather,  // streams: shares to everybody, then everybody's share to everybody
  kChain,             // streams: from one to the next, pipelined
  kHierarchical,      // one rank a host by streams, the others through shared memory
};
enum class AllgatherAlgorithm {
  kAlone,
  kShared,
  kExchange,      // streams, 1 step: own rows to everybody
  kBruck,         // streams, log2 n steps: twice as much from twice as far each time
  kRing,          // streams, n - 1 steps: the neighbour's rows on to the next
  kHierarchical,  // across hosts by the ranks of one local index, then through shared memory
};

// As the timeline and the flight recorder call them; static storage.
const char* Name(AllreduceAlgorithm algorithm);
const char* Name(BroadcastAlgorithm algorithm);
const char* Name(AllgatherAlgorithm algorithm);

AllreduceAlgorithm ChooseAllreduce(const Situation& situation);
BroadcastAlgorithm ChooseBroadcast(const Situation& situation);
AllgatherAlgorithm ChooseAllgather(const Situation& situation);
// Whether a reducescatter runs inside hosts first, then across; else every owner receives from all ranks.
bool ReducescatterByHosts(const Situation& situation);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_CHOOSE_H_
