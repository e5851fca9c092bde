// Allgather and reducescatter of several hosts: the ranks of one local index make a column, which reaches across hosts.
// A host's link then carries each row once, where without regard to hosts it would once for every rank of the host.
#include <numeric>
#include <vector>

#include "algorithms/hierarchical.h"
#include "algorithms/shared.h"
#include "algorithms/streams/stream.h"

namespace spark_estimator {
namespace {

// The offsets of rows: of all ranks one after another, and of one column.
struct Rows {
  Rows(const Hosts& hosts, int column, std::span<const size_t> of) : bytes_of(of) {
    start_of.assign(bytes_of.size() + 1, 0);
    std::partial_sum(bytes_of.begin(), bytes_of.end(), start_of.begin() + 1);
    for (const std::vector<int>& host : hosts.members) {
      column_bytes.push_back(bytes_of[static_cast<size_t>(host[static_cast<size_t>(column)])]);
      column_starts.push_back(column_total);
      column_total += column_bytes.back();
    }
  }
  std::span<const size_t> OfHost(const std::vector<int>& host) const {
    return bytes_of.subspan(static_cast<size_t>(host[0]), host.size());
  }
  size_t StartOf(const std::vector<int>& host) const { return start_of[static_cast<size_t>(host[0])]; }

  std::span<const size_t> bytes_of;   // [rank]
  std::vector<size_t> start_of;       // [rank]
  std::vector<size_t> column_bytes;   // [host]
  std::vector<size_t> column_starts;  // [host]
  size_t column_total = 0;
};

}  // namespace

Status HierarchicalAllgather(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const void* input,
                             std::span<const size_t> bytes_of, void* output) {
  const Rows rows(hosts, local.rank, bytes_of);
  uint8_t* column = nullptr;
  SE_RETURN_IF_ERROR(all.Scratch(rows.column_total, &column));
  SubGroup peers = Across(all, hosts, local.rank);
  Situation across;
  across.bytes = rows.start_of.back() / static_cast<size_t>(local.size);  // the same for all columns
  across.ranks = across.hosts = peers.size();
  SE_RETURN_IF_ERROR(StreamAllgather(peers, ChooseAllgather(across), input, rows.column_bytes, column));
  for (size_t h = 0; h < hosts.members.size(); ++h) {
    const std::vector<int>& host = hosts.members[h];
    SE_RETURN_IF_ERROR(SharedAllgather(local, column + rows.column_starts[h], rows.OfHost(host),
                                       static_cast<uint8_t*>(output) + rows.StartOf(host)));
  }
  return Status::Ok();
}

Status HierarchicalReducescatter(SharedGroup& local, StreamGroup& all, const Hosts& hosts, const void* input,
                                 std::span<const size_t> bytes_of, void* output, int32_t dtype, int32_t reduce_op,
                                 Finish finish) {
  const Rows rows(hosts, local.rank, bytes_of);
  uint8_t* column = nullptr;
  SE_RETURN_IF_ERROR(all.Scratch(rows.column_total, &column));
  for (size_t h = 0; h < hosts.members.size(); ++h) {
    const std::vector<int>& host = hosts.members[h];
    SE_RETURN_IF_ERROR(SharedReducescatter(local, static_cast<const uint8_t*>(input) + rows.StartOf(host),
                                           rows.OfHost(host), column + rows.column_starts[h], dtype, reduce_op,
                                           Finish{}));
  }
  SubGroup peers = Across(all, hosts, local.rank);
  return StreamReducescatter(peers, column, rows.column_bytes, output, dtype, reduce_op, finish);
}

}  // namespace spark_estimator
