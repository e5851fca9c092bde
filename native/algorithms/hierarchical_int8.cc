// Sums inside hosts, in float32, that are reduced across them in int8.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "algorithms/hierarchical.h"
#include "algorithms/hierarchical_blocks.h"
#include "algorithms/int8/stream.h"

namespace spark_estimator {
namespace {

class Int8Allreducer final : public HierarchicalBlocks {
 public:
  Int8Allreducer(SharedGroup& local, StreamGroup& all, const Hosts& hosts, std::span<const Int8Part> parts,
                 float prescale, Finish finish, const Tuning& tuning)
      : HierarchicalBlocks(local, all, hosts, VectorOf(parts), tuning),
        parts_(parts),
        prescale_(prescale),
        finish_(finish) {}

 private:
  static Vector VectorOf(std::span<const Int8Part> parts) {
    size_t count = 0;
    for (const Int8Part& part : parts) count += part.count;
    return {.count = count,
            .computed_as = SE_FLOAT32,
            .result_bytes = sizeof(float),
            .reduce_op = SE_SUM,
            .values_in_one = 4};
  }

  // Calls visit(range of a part, offset) for what the parts have in [start, start + count).
  template <typename Visit>
  void ForEachPart(size_t start, size_t count, Visit visit) const {
    size_t part_start = 0;
    for (const Int8Part& part : parts_) {
      const size_t from = std::max(part_start, start);
      const size_t to = std::min(part_start + part.count, start + count);
      if (from < to) visit(part.Range(from - part_start, to - from), from - start);
      part_start += part.count;
    }
  }

  const uint8_t* Join(const VectorRange& block) override {
    auto* values = reinterpret_cast<float*>(block.values);
    ForEachPart(block.start, block.count, [&](const Int8Part& part, size_t offset) {
      GetKernels().finish(SE_FLOAT32, values + offset, part.input, part.count, Finish{prescale_, 1});
    });
    return block.values;
  }

  void Spread(const VectorRange& block) override {
    const auto* results = reinterpret_cast<const float*>(block.results);
    ForEachPart(block.start, block.count, [&](const Int8Part& part, size_t offset) {
      std::memcpy(part.output, results + offset, part.count * sizeof(float));
    });
  }

  Status ReduceAcross(SubGroup& hosts, const VectorRange& range) override {
    return BeginInt8Allreduce(hosts, PartsOf(range), 1.0f, finish_)->Complete();
  }

  std::unique_ptr<StreamOperation> BeginAcross(SubGroup& hosts, const VectorRange& share, bool) override {
    return BeginInt8Allreduce(hosts, PartsOf(share), 1.0f, finish_);
  }

  // The sums, in place, with the residues of these elements.
  std::vector<Int8Part> PartsOf(const VectorRange& range) const {
    auto* values = reinterpret_cast<float*>(range.values);
    std::vector<Int8Part> parts;
    ForEachPart(range.start, range.count, [&](const Int8Part& part, size_t offset) {
      parts.push_back({values + offset, values + offset, part.residue, part.count, part.exact});
    });
    return parts;
  }

  const std::span<const Int8Part> parts_;
  const float prescale_;
  const Finish finish_;
};

}  // namespace

Status HierarchicalInt8Allreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts,
                                 std::span<const Int8Part> parts, float prescale, Finish finish, const Tuning& tuning) {
  return Int8Allreducer(local, all, hosts, parts, prescale, finish, tuning).Run();
}

}  // namespace spark_estimator
