// Vectors are worked through in blocks: summed inside hosts, reduced across them in int8, gathered inside hosts.
#include "algorithms/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "algorithms/int8/stream.h"
#include "algorithms/shared.h"
#include "algorithms/stream_shares.h"

namespace spark_estimator {
namespace {

// As long as the blocks of the other hierarchical algorithms.
constexpr size_t kBlockValues = size_t{4} << 20;

class Int8Allreducer {
 public:
  Int8Allreducer(SharedGroup& local, StreamGroup& all, const Hosts& hosts, std::span<const Int8Part> parts,
                 Finish finish, const Tuning& tuning)
      : local_(local), parts_(parts), finish_(finish), tuning_(tuning), even_(hosts.ranks_per_host() > 0) {
    if (even_ || local.rank == 0) across_.reset(new SubGroup(Across(all, hosts, local.rank)));
  }

  Status Run(StreamGroup& all, float prescale) {
    size_t total = 0;
    for (const Int8Part& part : parts_) total += part.count;
    for (size_t start = 0; start < total; start += kBlockValues) {
      const size_t count = std::min(kBlockValues, total - start);
      uint8_t* scratch = nullptr;
      SE_RETURN_IF_ERROR(all.Scratch(count * sizeof(float), &scratch));
      auto* values = reinterpret_cast<float*>(scratch);
      ForEachPart(start, count, [&](const Int8Part& part, size_t offset) {
        GetKernels().finish(SE_FLOAT32, values + offset, part.input, part.count, Finish{prescale, 1});
      });
      SE_RETURN_IF_ERROR(ReduceBlock(values, start, count));
      ForEachPart(start, count, [&](const Int8Part& part, size_t offset) {
        std::memcpy(part.output, values + offset, part.count * sizeof(float));
      });
    }
    return Status::Ok();
  }

 private:
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

  // As for float32: each rank reduces a share across hosts, or one rank a host all of it.
  Status ReduceBlock(float* values, size_t start, size_t count) {
    if (even_ && count * sizeof(float) > tuning_.exchange_bytes) {
      const Shares shares(count * sizeof(float), sizeof(float), local_.size);
      std::vector<size_t> bytes_of;
      for (int rank = 0; rank < local_.size; ++rank) bytes_of.push_back(shares.length(rank));
      const size_t first = shares.start(local_.rank) / sizeof(float);
      float* share = values + first;
      SE_RETURN_IF_ERROR(SharedReducescatter(local_, values, bytes_of, share, SE_FLOAT32, SE_SUM, Finish{}));
      SE_RETURN_IF_ERROR(ReduceAcross(share, start + first, shares.length(local_.rank) / sizeof(float)));
      return SharedAllgather(local_, share, bytes_of, values);
    }
    BufferList list;
    list.Add(values, values, count * sizeof(float));
    SE_RETURN_IF_ERROR(SharedAllreduce(local_, list, SE_FLOAT32, SE_SUM, Finish{}));
    if (local_.rank == 0) SE_RETURN_IF_ERROR(ReduceAcross(values, start, count));
    return SharedBroadcast(local_, 0, values, values, count * sizeof(float));
  }

  // `values`, in place: the elements [start, start + count) of the parts, with the residues of these elements.
  Status ReduceAcross(float* values, size_t start, size_t count) {
    std::vector<Int8Part> parts;
    ForEachPart(start, count, [&](const Int8Part& part, size_t offset) {
      parts.push_back({values + offset, values + offset, part.residue, part.count, part.exact});
    });
    return Int8Allreduce(*across_, parts, 1.0f, finish_);
  }

  SharedGroup& local_;
  const std::span<const Int8Part> parts_;
  const Finish finish_;
  const Tuning tuning_;
  const bool even_;
  std::unique_ptr<SubGroup> across_;  // the ranks of this local index, if they are to speak with each other
};

}  // namespace

Status HierarchicalInt8Allreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts,
                                 std::span<const Int8Part> parts, float prescale, Finish finish, const Tuning& tuning) {
  return Int8Allreducer(local, all, hosts, parts, finish, tuning).Run(all, prescale);
}

}  // namespace spark_estimator
