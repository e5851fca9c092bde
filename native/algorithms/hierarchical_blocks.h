// The order in which a hierarchical allreduce works through a vector: in blocks, two at a time. While the network
// carries one, the ranks of each host reduce the next one and copy the last one out. What depends on how values are
// given and sent is left to derived classes.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_HIERARCHICAL_BLOCKS_H_
#define SPARK_ESTIMATOR_ALGORITHMS_HIERARCHICAL_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "algorithms/choose.h"
#include "algorithms/hosts.h"
#include "algorithms/streams/operation.h"
#include "base/status.h"
#include "transport/shared_group.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// Elements [start, start + count) of the vector. `values` is what is reduced, and `results` the outcome: the same
// memory if both are of the same type.
struct VectorRange {
  size_t start = 0;
  size_t count = 0;
  uint8_t* values = nullptr;
  uint8_t* results = nullptr;
};

class HierarchicalBlocks {
 public:
  struct Vector {
    size_t count = 0;             // elements
    int32_t computed_as = 0;      // the type of the values
    size_t result_bytes = 0;      // of an element of the results
    int32_t reduce_op = 0;        // inside hosts
    int values_in_one = 1;        // that are sent in the bytes of one
    uint8_t* in_place = nullptr;  // where all values and results are; null: in memory of the group, block by block
  };

  HierarchicalBlocks(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const Vector& vector,
                     const Tuning& tuning);
  HierarchicalBlocks(const HierarchicalBlocks&) = delete;
  HierarchicalBlocks& operator=(const HierarchicalBlocks&) = delete;
  virtual ~HierarchicalBlocks() = default;

  // Up to tuning.exchange_bytes, and where hosts hold different numbers of ranks, one rank per host communicates with
  // the others. Else each rank reduces a share inside its host, and the ranks of one local index reduce that share
  // across hosts.
  Status Run();

 protected:
  // Where the values of this rank are, of a block: `values`, after they were copied there, or elsewhere.
  virtual const uint8_t* Join(const VectorRange& block) = 0;
  // Copies a block's results to the outputs.
  virtual void Spread(const VectorRange& block) = 0;
  // Reduces `range` over `hosts`, the ranks of one local index; `range` is a share of a block, or a block.
  virtual Status ReduceAcross(SubGroup& hosts, const VectorRange& range) = 0;
  // The same, of a share, to be advanced between other work; null if ReduceAcross is to be called instead. `overlaps`:
  // there is other work.
  virtual std::unique_ptr<StreamOperation> BeginAcross(SubGroup& hosts, const VectorRange& share, bool overlaps) = 0;

 private:
  Status RunByLeaders();
  Status RunByShares();
  size_t BlockBytes() const;
  // Memory for the block, the `area`-th of `areas`. The first block is none smaller than the others.
  Status Place(size_t start, size_t count, size_t area, size_t areas, VectorRange* block);
  Status ReduceInside(const VectorRange& block, StreamOperation* meanwhile);
  Status GatherInside(const VectorRange& block, StreamOperation* meanwhile);
  VectorRange ShareOf(const VectorRange& block) const;

  SharedGroup& local_;
  StreamGroup& all_;
  const Hosts& hosts_;
  const Vector vector_;
  const size_t value_bytes_;  // of an element
  const Tuning tuning_;
  uint8_t* memory_ = nullptr;
  size_t area_bytes_ = 0;
};

// Of values as they are sent: a share that is worth the steps of a ring of this number of hosts.
size_t LeastRingBytes(int hosts);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_HIERARCHICAL_BLOCKS_H_
