// Vectors are worked through in blocks, so that the memory for joining and widening them stays small.
#include "algorithms/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "algorithms/shared.h"
#include "algorithms/stream.h"
#include "algorithms/stream_direct.h"
#include "algorithms/stream_ring.h"
#include "base/dtype.h"
#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

// Of values as they are reduced: long against what a ring needs to fill, short against a host's memory.
constexpr size_t kBlockBytes = size_t{16} << 20;

class Allreduce {
 public:
  Allreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts, int32_t dtype, int32_t reduce_op, Finish finish,
            const Tuning& tuning)
      : local_(local),
        all_(all),
        hosts_(hosts),
        even_(hosts.ranks_per_host() > 0),
        half_(IsHalf(dtype)),
        dtype_(dtype),
        reduced_as_(half_ ? SE_FLOAT32 : dtype),
        element_(DtypeBytes(dtype)),
        reduced_element_(DtypeBytes(reduced_as_)),
        reduce_op_(reduce_op),
        finish_(finish),
        tuning_(tuning) {}

  Status Run(const BufferList& buffers) {
    const size_t bytes = buffers.total_bytes();
    const bool whole = buffers.parts().size() == 1 && !half_;
    const size_t block = whole ? bytes : kBlockBytes / reduced_element_ * element_;
    for (size_t start = 0; start < bytes; start += block) {
      const size_t count = std::min(block, bytes - start) / element_;
      SE_RETURN_IF_ERROR(whole ? ReduceInOutput(buffers, count) : ReduceJoined(buffers, start, count));
    }
    return Status::Ok();
  }

 private:
  Status ReduceInOutput(const BufferList& buffers, size_t count) {
    const BufferPart& part = buffers.parts()[0];
    return Reduce(part.input, part.output, part.output, count);
  }

  // [start, start + count * element) of the list, as one vector of the type that is computed with.
  Status ReduceJoined(const BufferList& buffers, size_t start, size_t count) {
    uint8_t* values = nullptr;
    SE_RETURN_IF_ERROR(all_.Scratch(count * (reduced_element_ + (half_ ? element_ : 0)), &values));
    uint8_t* results = half_ ? values + count * reduced_element_ : values;
    buffers.ForEach(start, count * element_, [&](const uint8_t* input, uint8_t*, size_t offset, size_t bytes) {
      if (half_) {
        HalvesToFloat32(dtype_, reinterpret_cast<float*>(values) + offset / element_, input, bytes / element_);
      } else {
        std::memcpy(values + offset, input, bytes);
      }
    });
    SE_RETURN_IF_ERROR(Reduce(values, values, results, count));
    buffers.ForEach(start, count * element_, [&](const uint8_t*, uint8_t* output, size_t offset, size_t bytes) {
      std::memcpy(output, results + offset, bytes);
    });
    return Status::Ok();
  }

  // From `input` to `results`, by `values`: they are the same, but for `input` when it must be kept, and for `results`
  // when they are of another type.
  Status Reduce(const uint8_t* input, uint8_t* values, uint8_t* results, size_t count) {
    return even_ && count * reduced_element_ > tuning_.exchange_bytes ? ReduceShares(input, values, results, count)
                                                                      : ReduceByLeaders(input, values, results, count);
  }

  Status ReduceByLeaders(const uint8_t* input, uint8_t* values, uint8_t* results, size_t count) {
    BufferList list;
    list.Add(input, values, count * reduced_element_);
    SE_RETURN_IF_ERROR(SharedAllreduce(local_, list, reduced_as_, reduce_op_, Finish{}));
    if (local_.rank == 0) {
      SubGroup leaders = Across(all_, hosts_, 0);
      SE_RETURN_IF_ERROR(StreamAllreduce(leaders, values, values, count, reduced_as_, reduce_op_, finish_, tuning_));
      if (half_) HalvesFromFloat32(dtype_, results, reinterpret_cast<const float*>(values), count);
    }
    return SharedBroadcast(local_, 0, results, results, count * element_);
  }

  Status ReduceShares(const uint8_t* input, uint8_t* values, uint8_t* results, size_t count) {
    const Shares shares(SharesOf(count, 1, local_.size));  // in elements
    std::vector<size_t> bytes_of;
    for (int rank = 0; rank < local_.size; ++rank) bytes_of.push_back(shares.length(rank) * reduced_element_);
    uint8_t* share = values + shares.start(local_.rank) * reduced_element_;
    SE_RETURN_IF_ERROR(SharedReducescatter(local_, input, bytes_of, share, reduced_as_, reduce_op_, Finish{}));
    SubGroup peers = Across(all_, hosts_, local_.rank);
    const size_t mine = shares.length(local_.rank);
    uint8_t* result = results + shares.start(local_.rank) * element_;
    if (half_) {
      SE_RETURN_IF_ERROR(ReduceHalves(peers, share, result, mine));
    } else {
      SE_RETURN_IF_ERROR(StreamAllreduce(peers, share, share, mine, dtype_, reduce_op_, finish_, tuning_));
    }
    for (int rank = 0; rank < local_.size; ++rank) bytes_of[static_cast<size_t>(rank)] = shares.length(rank) * element_;
    return SharedAllgather(local_, result, bytes_of, results);
  }

  // Sums of hosts are sent as float32 to the rank that finishes and rounds them, the results as what they are: 6 bytes
  // an element instead of 8.
  Status ReduceHalves(StreamGroup& peers, uint8_t* share, uint8_t* results, size_t count) {
    const Shares elements(count, 1, peers.size());
    const Shares floats(count * sizeof(float), sizeof(float), peers.size());
    const Shares halves(count * element_, element_, peers.size());
    const size_t own_length = elements.length(peers.rank());
    std::vector<float> reduced(own_length);
    SE_RETURN_IF_ERROR(DirectReducescatter(peers, share, floats, reinterpret_cast<uint8_t*>(reduced.data()), SE_FLOAT32,
                                           reduce_op_, finish_));
    HalvesFromFloat32(dtype_, results + halves.start(peers.rank()), reduced.data(), own_length);
    return RingAllgather(peers, results, halves);
  }

  SharedGroup& local_;
  StreamGroup& all_;
  const Hosts& hosts_;
  const bool even_;
  const bool half_;
  const int32_t dtype_;
  const int32_t reduced_as_;
  const size_t element_;
  const size_t reduced_element_;
  const int32_t reduce_op_;
  const Finish finish_;
  const Tuning tuning_;
};

}  // namespace

SubGroup Across(StreamGroup& all, const Hosts& hosts, int local_index) {
  std::vector<int> members;
  for (const std::vector<int>& host : hosts.members) members.push_back(host[static_cast<size_t>(local_index)]);
  return SubGroup(&all, std::move(members));
}

Status HierarchicalAllreduce(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const BufferList& buffers,
                             int32_t dtype, int32_t reduce_op, Finish finish, const Tuning& tuning) {
  return Allreduce(local, all, hosts, dtype, reduce_op, finish, tuning).Run(buffers);
}

Status HierarchicalBroadcast(SharedGroup& local, StreamGroup& all, const Hosts& hosts, int root, const void* input,
                             void* output, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  const auto root_index = static_cast<size_t>(root);
  const auto me = static_cast<size_t>(all.rank());
  // The root speaks for its host, the first rank for each other.
  std::vector<int> speakers;
  for (const std::vector<int>& host : hosts.members) speakers.push_back(host[0]);
  speakers[static_cast<size_t>(hosts.host_of[root_index])] = root;
  const int speaker = speakers[static_cast<size_t>(hosts.host_of[me])];
  if (all.rank() == root && input != output) std::memcpy(output, input, bytes);
  if (all.rank() == speaker) {
    SubGroup across(&all, speakers);
    SE_RETURN_IF_ERROR(StreamBroadcast(across, hosts.host_of[root_index], output, bytes));
  }
  return SharedBroadcast(local, hosts.local_of[static_cast<size_t>(speaker)], output, output, bytes);
}

Status HierarchicalBarrier(SharedGroup& local, StreamGroup& all, const Hosts& hosts) {
  SE_RETURN_IF_ERROR(SharedBarrier(local));
  if (local.rank == 0) {
    SubGroup leaders = Across(all, hosts, 0);
    SE_RETURN_IF_ERROR(StreamBarrier(leaders));
  }
  return SharedBarrier(local);
}

}  // namespace spark_estimator
