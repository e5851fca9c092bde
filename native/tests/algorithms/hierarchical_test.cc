// Hosts from visibility, and the collectives of several hosts with several ranks each: even, uneven, interleaved.
#include "algorithms/hierarchical.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "base/kernels/halves.h"
#include "stream_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

using Members = std::vector<std::vector<int>>;

// What every rank sees when each host's ranks see each other.
std::vector<std::vector<int>> VisibleIn(const Members& members) {
  size_t ranks = 0;
  for (const auto& host : members) ranks += host.size();
  std::vector<std::vector<int>> visible(ranks);
  for (const auto& host : members) {
    for (const int rank : host) visible[static_cast<size_t>(rank)] = host;
  }
  return visible;
}

void HostsFromVisibility() {
  const Hosts two = HostsOf(VisibleIn({{0, 1}, {2, 3}}));
  CHECK_EQ(two.count(), 2);
  CHECK_EQ(two.ranks_per_host(), 2);
  CHECK(two.host_of == std::vector<int>({0, 0, 1, 1}));
  CHECK(two.local_of == std::vector<int>({0, 1, 0, 1}));

  const Hosts mixed = HostsOf(VisibleIn({{0, 3, 4}, {1, 2}}));
  CHECK(mixed.members == Members({{0, 3, 4}, {1, 2}}));
  CHECK_EQ(mixed.ranks_per_host(), 0);
  CHECK(mixed.local_of == std::vector<int>({0, 0, 1, 1, 2}));

  // Rank 1 sees rank 2, but not the other way: they do not share.
  CHECK(HostsOf({{}, {2}, {}}).members == Members({{0}, {1}, {2}}));
  // 0 and 1, and 1 and 2 see each other, 0 and 2 do not: none of the three shares; 3 and 4 do.
  CHECK(HostsOf({{1}, {0, 2}, {1}, {4}, {3}}).members == Members({{0}, {1}, {2}, {3, 4}}));
  CHECK_EQ(HostsOf({{}}).ranks_per_host(), 1);
  CHECK_EQ(HostsOf({}).count(), 0);
}

struct HostRank {
  SharedGroup& local;
  StreamGroup& all;
  const Hosts& hosts;
};

// The ranks of `members` as threads: segments inside each host, socket pairs between all.
template <typename Body>
void RunHosts(const Members& members, Body body) {
  const Hosts hosts = HostsOf(VisibleIn(members));
  const auto ranks = static_cast<int>(hosts.host_of.size());
  std::vector<UniqueFd> segments(static_cast<size_t>(ranks));
  for (const auto& host : members) {
    for (const int rank : host) {
      CHECK_OK(Segment::Create(static_cast<int>(host.size()), &segments[static_cast<size_t>(rank)]));
    }
  }
  RunStreamRanks(ranks, [&](StreamGroup& all) {
    AlwaysAlive alive;
    SharedGroup local;
    const auto me = static_cast<size_t>(all.rank());
    const auto& host = hosts.members[static_cast<size_t>(hosts.host_of[me])];
    local.rank = hosts.local_of[me];
    local.size = static_cast<int>(host.size());
    local.liveness = &alive;
    local.segments.resize(host.size());
    for (size_t i = 0; i < host.size(); ++i) {
      CHECK_OK(local.segments[i].Map(segments[static_cast<size_t>(host[i])].get(), local.size));
    }
    HostRank rank{local, all, hosts};
    body(rank);
  });
}

const std::vector<Members> kShapes = {
    {{0, 1}, {2, 3}},          // two hosts of two
    {{0, 2, 4}, {1, 3, 5}},    // ranks dealt out by turns
    {{0, 1}, {2, 3}, {4, 5}},  // three hosts
    {{0, 1, 2}, {3}},          // uneven
    {{0}, {1, 2}, {3, 4, 5}},  // uneven, the first alone
    {{0, 1, 2}},               // one host
    {{0}, {1}, {2}},           // as many hosts as ranks
};

float Value(int rank, size_t i) { return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 11) - 5; }

void Allreduces() {
  for (const Members& shape : kShapes) {
    RunHosts(shape, [](HostRank& me) {
      for (const size_t n : {0, 1, 3, 2048, 4096, 4097, 70001, 600011}) {
        std::vector<float> in(n), out(n, -1), expected(n, 0);
        for (size_t i = 0; i < n; ++i) {
          in[i] = Value(me.all.rank(), i);
          for (int r = 0; r < me.all.size(); ++r) expected[i] += Value(r, i);
        }
        BufferList apart;
        apart.Add(in.data(), out.data(), n * sizeof(float));
        CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, apart, SE_FLOAT32, SE_SUM, Finish{}));
        CHECK(out == expected);
        CHECK(n == 0 || in[0] == Value(me.all.rank(), 0));
        BufferList in_place;
        in_place.Add(in.data(), in.data(), n * sizeof(float));
        CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, in_place, SE_FLOAT32, SE_MAX, Finish{2.0, 1}));
        for (size_t i = 0; i < n; ++i) {
          float largest = Value(0, i);
          for (int r = 1; r < me.all.size(); ++r) largest = std::max(largest, Value(r, i));
          CHECK_EQ(in[i], 2 * largest);
        }
      }
    });
  }
}

const std::vector<Members> kShapesInOrder = {{{0, 1}, {2, 3}}, {{0, 1}, {2, 3}, {4, 5}}, {{0, 1, 2}}, {{0}, {1}, {2}}};

void RowsGatherAndScatter() {
  for (const Members& shape : kShapesInOrder) {
    RunHosts(shape, [](HostRank& me) {
      CHECK(me.hosts.in_rank_order());
      const int ranks = me.all.size();
      for (const size_t n : {0, 1, 500, 70001}) {
        std::vector<size_t> bytes_of, starts;
        size_t total = 0;
        for (int r = 0; r < ranks; ++r) {
          const size_t rows = r == 1 ? 0 : n + static_cast<size_t>(r);  // ragged, one of them empty
          starts.push_back(total);
          bytes_of.push_back(rows * sizeof(float));
          total += rows;
        }
        const auto mine = static_cast<size_t>(me.all.rank());
        const size_t own = bytes_of[mine] / sizeof(float);
        std::vector<float> in(total), row(own), gathered(total, -1), scattered(own, -1);
        for (size_t i = 0; i < own; ++i) row[i] = Value(me.all.rank(), i);
        CHECK_OK(HierarchicalAllgather(me.local, me.all, me.hosts, row.data(), bytes_of, gathered.data()));
        for (int r = 0; r < ranks; ++r) {
          const auto rank = static_cast<size_t>(r);
          for (size_t i = 0; i < bytes_of[rank] / sizeof(float); ++i) CHECK_EQ(gathered[starts[rank] + i], Value(r, i));
        }
        for (size_t i = 0; i < total; ++i) in[i] = Value(me.all.rank(), i);
        CHECK_OK(HierarchicalReducescatter(me.local, me.all, me.hosts, in.data(), bytes_of, scattered.data(),
                                           SE_FLOAT32, SE_SUM, Finish{1.0, 2}));
        for (size_t i = 0; i < own; ++i) {
          float sum = 0;
          for (int r = 0; r < ranks; ++r) sum += Value(r, starts[mine] + i);
          CHECK_EQ(scattered[i], sum / 2);
        }
      }
    });
  }
  for (const Members& shape : {Members{{0, 2}, {1, 3}}, Members{{0, 1, 2}, {3}}, Members{{0}, {1, 2}}}) {
    CHECK(!HostsOf(VisibleIn(shape)).in_rank_order());
  }
}

// Longer than a block, and cut into parts that no share respects.
void ListsOfBuffers() {
  RunHosts({{0, 1}, {2, 3}}, [](HostRank& me) {
    std::vector<std::vector<double>> tensors;
    BufferList list;
    for (const size_t n : {5000, 1, 3000000, 13, 77777}) {
      tensors.emplace_back(n);
      for (size_t i = 0; i < n; ++i) tensors.back()[i] = static_cast<double>(Value(me.all.rank(), i + n));
    }
    for (auto& tensor : tensors) list.Add(tensor.data(), tensor.data(), tensor.size() * sizeof(double));
    CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, list, SE_FLOAT64, SE_SUM, Finish{1.0, 4}));
    for (const auto& tensor : tensors) {
      for (size_t i = 0; i < tensor.size(); ++i) {
        double sum = 0;
        for (int r = 0; r < 4; ++r) sum += static_cast<double>(Value(r, i + tensor.size()));
        CHECK_EQ(tensor[i], sum / 4);
      }
    }
  });
}

// Several blocks, of which the network carries one while the next is reduced: even and uneven, in place and not, and
// enough that their memory is used again.
void SeveralBlocks() {
  for (const Members& shape : {Members{{0, 1}, {2, 3}}, Members{{0, 3}, {1, 4}, {2, 5}}, Members{{0, 1, 2}, {3, 4, 5}},
                               Members{{0}, {1}, {2}}, Members{{0, 1, 2}, {3}}}) {
    RunHosts(shape, [](HostRank& me) {
      const size_t n = 2100007;
      const auto ranks = static_cast<size_t>(me.all.size());
      std::vector<float> in(n), out(n, -1);
      for (size_t i = 0; i < n; ++i) in[i] = static_cast<float>((i + static_cast<size_t>(me.all.rank())) % 1009);
      const std::vector<float> kept = in;
      const auto check = [&](const std::vector<float>& sums) {
        for (size_t i = 0; i < n; ++i) {
          size_t sum = 0;
          for (size_t rank = 0; rank < ranks; ++rank) sum += (i + rank) % 1009;
          if (sums[i] != static_cast<float>(sum)) CHECK_EQ(sums[i], static_cast<float>(sum));
        }
      };
      BufferList apart;
      apart.Add(in.data(), out.data(), n * sizeof(float));
      CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, apart, SE_FLOAT32, SE_SUM, Finish{}));
      check(out);
      CHECK(in == kept);
      BufferList list;  // joined; one part is longer than several blocks
      for (const auto& [start, end] : {std::pair{0, 5}, std::pair{5, 2000003}, std::pair{2000003, 2100007}}) {
        list.Add(in.data() + start, out.data() + start, static_cast<size_t>(end - start) * sizeof(float));
      }
      std::fill(out.begin(), out.end(), -1.0f);
      CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, list, SE_FLOAT32, SE_SUM, Finish{}));
      check(out);
      CHECK(in == kept);
      BufferList in_place;
      in_place.Add(in.data(), in.data(), n * sizeof(float));
      CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, in_place, SE_FLOAT32, SE_SUM, Finish{}));
      check(in);
    });
  }
}

// Received values plus residues equal the sent values, for every shape of the job.
void CheckInt8(const Members& shape, size_t n, int steps) {
  std::vector<double> owed(n), received, given(n);
  std::mutex mutex;
  RunHosts(shape, [&](HostRank& me) {
    std::vector<float> in(n), out(n), residue(n), exact(13);
    std::vector<double> sum(n), own(n);
    std::mt19937 random(static_cast<unsigned>(me.all.rank()));
    std::uniform_real_distribution<float> uniform(-1, 1);
    const std::vector<Int8Part> parts = {{in.data(), out.data(), residue.data(), 5, false},
                                         {exact.data(), exact.data(), nullptr, exact.size(), true},
                                         {in.data() + 5, out.data() + 5, residue.data() + 5, n - 5, false}};
    for (int step = 0; step < steps; ++step) {
      for (size_t i = 0; i < n; ++i) own[i] += (in[i] = uniform(random));
      std::fill(exact.begin(), exact.end(), 0.1f);
      CHECK_OK(HierarchicalInt8Allreduce(me.local, me.all, me.hosts, parts, 1.0f, Finish{}));
      for (size_t i = 0; i < n; ++i) sum[i] += out[i];
      for (const float value : exact) CHECK(std::abs(value - 0.1f * static_cast<float>(me.all.size())) < 1e-6f);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < n; ++i) given[i] += own[i];
    for (size_t i = 0; i < n; ++i) owed[i] += residue[i];
    if (received.empty()) received = sum;
    CHECK(received == sum);
  });
  double most_owed = 0;
  for (size_t i = 0; i < n; ++i) {
    CHECK(std::abs(received[i] + owed[i] - given[i]) < 1e-4);
    most_owed = std::max(most_owed, std::abs(owed[i]));
  }
  CHECK(most_owed > 0 && most_owed < 0.1);
}

void Int8LosesNothing() {
  for (const Members& shape : kShapes) {
    if (shape.size() > 1) CheckInt8(shape, 70001, 4);
  }
  CheckInt8({{0, 1}, {2, 3}}, 4500001, 2);  // longer than a block
  CheckInt8({{0, 1}, {2, 3}}, 100, 2);      // by one rank a host
}

void HalvesAreRoundedOnce() {
  for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16}) {
    for (const Members& shape : {Members{{0, 1}, {2, 3}}, Members{{0, 1, 2}, {3}}}) {
      for (const size_t n : {size_t{9}, size_t{50001}, size_t{1500001}}) {  // the last one has several blocks
        std::vector<std::vector<uint16_t>> inputs(4, std::vector<uint16_t>(n));
        std::vector<float> sums(n, 0);
        std::mt19937 random(5);
        for (auto& input : inputs) {
          for (size_t i = 0; i < n; ++i) {
            float value = static_cast<float>(random() % 256) * (dtype == SE_FLOAT16 ? 255 : 1);
            HalvesFromFloat32(dtype, &input[i], &value, 1);
            HalvesToFloat32(dtype, &value, &input[i], 1);
            sums[i] += value;  // up to 260,000, more than float16 holds, and exact
          }
        }
        std::vector<uint16_t> expected(n);
        for (size_t i = 0; i < n; ++i) {
          const float average = sums[i] * 0.25f;
          HalvesFromFloat32(dtype, &expected[i], &average, 1);
        }
        RunHosts(shape, [&](HostRank& me) {
          for (const bool in_ring : {false, true}) {
            std::vector<uint16_t> out(n);
            BufferList list;
            list.Add(inputs[static_cast<size_t>(me.all.rank())].data(), out.data(), n * 2);
            const Tuning tuning{.halves_in_ring = in_ring};
            CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, list, dtype, SE_SUM, Finish{1.0, 4}, tuning));
            CHECK(out == expected);
          }
        });
      }
    }
  }
}

void SameBitsEverywhere() {
  for (const Members& shape : kShapes) {
    const size_t ranks = VisibleIn(shape).size();
    const size_t n = 30001;
    std::vector<std::vector<float>> results(ranks, std::vector<float>(n));
    RunHosts(shape, [&](HostRank& me) {
      std::mt19937 random(static_cast<unsigned>(me.all.rank()));
      std::vector<float>& data = results[static_cast<size_t>(me.all.rank())];
      for (float& value : data) value = static_cast<float>(random() % 100000) / 777.0f;
      BufferList list;
      list.Add(data.data(), data.data(), n * sizeof(float));
      CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, list, SE_FLOAT32, SE_SUM, Finish{}));
    });
    for (const auto& result : results) CHECK(result == results[0]);
  }
}

// Two hosts of two: a byte crosses each link once in each direction for its reduction and once for its result.
void BytesAcross() {
  RunHosts({{0, 1}, {2, 3}}, [](HostRank& me) {
    const size_t n = 1 << 18;
    std::vector<float> data(n, 1);
    BufferList list;
    list.Add(data.data(), data.data(), n * sizeof(float));
    CHECK_OK(HierarchicalAllreduce(me.local, me.all, me.hosts, list, SE_FLOAT32, SE_SUM, Finish{}));
    // Sent and received: half the vector is this rank's share; half of that is reduced by each of the two hosts.
    CHECK_EQ(me.all.bytes_moved(), static_cast<int64_t>(n * sizeof(float)));
    // A rank sends its own rows to one rank, and gets those of one.
    const std::vector<size_t> bytes_of(4, n);
    std::vector<uint8_t> all_rows(4 * n);
    CHECK_OK(HierarchicalAllgather(me.local, me.all, me.hosts, data.data(), bytes_of, all_rows.data()));
    CHECK_EQ(me.all.bytes_moved(), static_cast<int64_t>(n * sizeof(float) + 2 * n));
    CHECK_OK(HierarchicalReducescatter(me.local, me.all, me.hosts, data.data(), bytes_of, all_rows.data(), SE_FLOAT32,
                                       SE_SUM, Finish{}));
    CHECK_EQ(me.all.bytes_moved(), static_cast<int64_t>(n * sizeof(float) + 4 * n));
  });
}

void Broadcasts() {
  for (const Members& shape : kShapes) {
    RunHosts(shape, [](HostRank& me) {
      for (const size_t n : {0, 1, 5000, 300007}) {
        for (int root = 0; root < me.all.size(); ++root) {
          std::vector<uint8_t> in(n), out(n, 0xee);
          for (size_t i = 0; i < n; ++i) in[i] = static_cast<uint8_t>(i * 31 + static_cast<size_t>(me.all.rank()));
          CHECK_OK(HierarchicalBroadcast(me.local, me.all, me.hosts, root, in.data(), out.data(), n));
          for (size_t i = 0; i < n; ++i) {
            CHECK_EQ(+out[i], +static_cast<uint8_t>(i * 31 + static_cast<size_t>(root)));
          }
        }
      }
    });
  }
}

void Barriers() {
  for (const Members& shape : kShapes) {
    std::atomic<int> arrived{0};
    RunHosts(shape, [&](HostRank& me) {
      for (int round = 1; round <= 20; ++round) {
        ++arrived;
        CHECK_OK(HierarchicalBarrier(me.local, me.all, me.hosts));
        CHECK(arrived.load() >= round * me.all.size());
        CHECK_OK(HierarchicalBarrier(me.local, me.all, me.hosts));
      }
    });
  }
}

}  // namespace

int main() {
  return RunTests({{"hosts from visibility", HostsFromVisibility},
                   {"allreduces", Allreduces},
                   {"rows gather and scatter", RowsGatherAndScatter},
                   {"lists of buffers", ListsOfBuffers},
                   {"several blocks", SeveralBlocks},
                   {"halves are rounded once", HalvesAreRoundedOnce},
                   {"int8 loses nothing", Int8LosesNothing},
                   {"same bits everywhere", SameBitsEverywhere},
                   {"bytes across", BytesAcross},
                   {"broadcasts", Broadcasts},
                   {"barriers", Barriers}});
}
