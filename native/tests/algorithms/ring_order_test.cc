// Rings and chains in another order than that of the ranks: right results, the same bits everywhere, and only with
// neighbours in that order.
#include "transport/ring_order.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "algorithms/streams/halves.h"
#include "algorithms/streams/ring.h"
#include "algorithms/streams/stream.h"
#include "base/kernels/halves.h"
#include "stream_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

std::vector<int> Shuffled(int size, unsigned seed) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::mt19937 random(seed);
  std::ranges::shuffle(ranks, random);
  return ranks;
}

// Forwards to another group, in its order, and notes whom this rank sends to and receives from.
class NotingGroup final : public StreamGroup {
 public:
  NotingGroup(StreamGroup& group, std::vector<int> ranks) : StreamGroup(group.rank(), group.size()), group_(group) {
    OrderRing(RingOrder(std::move(ranks)));
  }
  Status TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved) override {
    sent_to.insert(peer);
    return group_.TrySend(peer, data, bytes, moved);
  }
  Status TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved) override {
    received_from.insert(peer);
    return group_.TryReceive(peer, data, bytes, moved);
  }
  Status AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from) override {
    return group_.AwaitReady(senders_to, receivers_from);
  }

  std::set<int> sent_to;
  std::set<int> received_from;

 private:
  StreamGroup& group_;
};

void Positions() {
  const RingOrder ranks(4);
  CHECK(ranks.is_that_of_ranks());
  for (int rank = 0; rank < 4; ++rank) {
    CHECK_EQ(ranks.RankAt(rank), rank);
    CHECK_EQ(ranks.PositionOf(rank), rank);
  }
  CHECK_EQ(ranks.RankAt(-1), 3);
  CHECK_EQ(ranks.RankAt(7), 3);
  const RingOrder order({2, 0, 3, 1});
  CHECK(!order.is_that_of_ranks());
  CHECK_EQ(order.RankAt(0), 2);
  CHECK_EQ(order.RankAt(-1), 1);
  CHECK_EQ(order.RankAt(4), 2);
  CHECK_EQ(order.PositionOf(3), 2);
  // A part has the order of the whole, in its own numbers, in whichever order its members are listed.
  const RingOrder part = order.Of(std::vector<int>{1, 3, 0});
  CHECK_EQ(part.RankAt(0), 2);
  CHECK_EQ(part.RankAt(1), 1);
  CHECK_EQ(part.RankAt(2), 0);
  CHECK(ranks.Of(std::vector<int>{3, 1}).is_that_of_ranks());
  CHECK(RingOrder({0, 1, 2}).is_that_of_ranks());
}

void OnlyNeighboursTalk() {
  for (const int size : {2, 3, 5, 8}) {
    const std::vector<int> ranks = Shuffled(size, static_cast<unsigned>(size));
    const RingOrder order{std::vector<int>(ranks)};
    RunStreamRanks(size, [&](StreamGroup& sockets) {
      NotingGroup group(sockets, ranks);
      const int position = order.PositionOf(group.rank());
      const std::set<int> next = {order.RankAt(position + 1)};
      const std::set<int> previous = {order.RankAt(position - 1)};
      std::vector<float> data(50000, static_cast<float>(group.rank()));
      CHECK_OK(StreamAllreduce(group, AllreduceAlgorithm::kRing, data.data(), data.data(), data.size(), SE_FLOAT32,
                               SE_SUM, Finish{}));
      for (const float value : data) CHECK_EQ(value, static_cast<float>(size * (size - 1) / 2));
      CHECK(group.sent_to == next);
      CHECK(group.received_from == previous);
      for (int root = 0; root < size; ++root) {
        group.sent_to.clear();
        group.received_from.clear();
        std::vector<int> values(40000, group.rank());
        CHECK_OK(StreamBroadcast(group, BroadcastAlgorithm::kChain, root, values.data(), values.size() * sizeof(int)));
        CHECK(std::ranges::all_of(values, [&](int value) { return value == root; }));
        CHECK(group.sent_to == (next == std::set<int>{root} ? std::set<int>{} : next));
        CHECK(group.received_from == (group.rank() == root ? std::set<int>{} : previous));
      }
    });
  }
}

// Every algorithm, whether it follows the order or not; lengths that leave ranks without a share, and parts of a group.
void EveryAlgorithmIsRight() {
  for (const int size : {2, 3, 6, 9}) {
    const std::vector<int> ranks = Shuffled(size, 7u + static_cast<unsigned>(size));
    RunStreamRanks(
        size,
        [&](StreamGroup& whole) {
          whole.OrderRing(RingOrder(std::vector<int>(ranks)));
          std::vector<int> members;  // of the part, listed backwards
          for (int rank = size - 1; rank >= 0; --rank) {
            if (rank % 2 == whole.rank() % 2) members.push_back(rank);
          }
          SubGroup part(&whole, members);
          for (StreamGroup* group : {&whole, static_cast<StreamGroup*>(&part)}) {
            const int n = group->size();
            if (n == 1) continue;
            const auto me = static_cast<size_t>(group->rank());
            for (const AllreduceAlgorithm algorithm :
                 {AllreduceAlgorithm::kExchange, AllreduceAlgorithm::kDoubling, AllreduceAlgorithm::kHalving,
                  AllreduceAlgorithm::kDirect, AllreduceAlgorithm::kRing}) {
              for (const size_t count : {1, 5, 20011}) {
                std::vector<double> data(count);
                for (size_t i = 0; i < count; ++i) data[i] = static_cast<double>(i % 97 + me);
                CHECK_OK(
                    StreamAllreduce(*group, algorithm, data.data(), data.data(), count, SE_FLOAT64, SE_SUM, Finish{}));
                for (size_t i = 0; i < count; ++i) {
                  CHECK_EQ(data[i], static_cast<double>(static_cast<size_t>(n) * (i % 97)) + n * (n - 1) / 2);
                }
              }
            }
            for (const AllgatherAlgorithm algorithm :
                 {AllgatherAlgorithm::kExchange, AllgatherAlgorithm::kBruck, AllgatherAlgorithm::kRing}) {
              std::vector<size_t> bytes_of;
              std::vector<uint8_t> expected;
              for (int rank = 0; rank < n; ++rank) {
                bytes_of.push_back(rank == 1 ? 0 : 3000 + 11 * static_cast<size_t>(rank));
                expected.insert(expected.end(), bytes_of.back(), static_cast<uint8_t>(rank + 1));
              }
              const std::vector<uint8_t> in(bytes_of[me], static_cast<uint8_t>(me + 1));
              std::vector<uint8_t> out(expected.size());
              CHECK_OK(StreamAllgather(*group, algorithm, in.data(), bytes_of, out.data()));
              CHECK(out == expected);
            }
            for (const BroadcastAlgorithm algorithm :
                 {BroadcastAlgorithm::kTree, BroadcastAlgorithm::kChain, BroadcastAlgorithm::kScatterAllgather}) {
              for (int root = 0; root < n; ++root) {
                std::vector<uint8_t> data(5003, static_cast<uint8_t>(me + 1));
                CHECK_OK(StreamBroadcast(*group, algorithm, root, data.data(), data.size()));
                CHECK(data == std::vector<uint8_t>(data.size(), static_cast<uint8_t>(root + 1)));
              }
            }
            for (const bool in_ring : {false, true}) {
              std::vector<float> sums(10001, static_cast<float>(me + 1));
              std::vector<uint16_t> halves(sums.size());
              CHECK_OK(BeginHalvesAllreduce(*group, sums.data(), reinterpret_cast<uint8_t*>(halves.data()), sums.size(),
                                            SE_BFLOAT16, SE_SUM, Finish{}, in_ring)
                           ->Complete());
              HalvesToFloat32(SE_BFLOAT16, sums.data(), halves.data(), sums.size());
              for (const float sum : sums) CHECK_EQ(sum, static_cast<float>(n * (n + 1) / 2));
            }
            CHECK_OK(StreamBarrier(*group));
          }
        },
        4096);
  }
}

void SameBitsOnAllRanks() {
  constexpr int kSize = 5;
  std::vector<std::vector<float>> results(kSize, std::vector<float>(4001));
  RunStreamRanks(kSize, [&](StreamGroup& group) {
    group.OrderRing(RingOrder(std::vector<int>{3, 0, 4, 2, 1}));
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    std::vector<float>& data = results[static_cast<size_t>(group.rank())];
    for (float& value : data) value = static_cast<float>(random() % 100000) / 777.0f;
    CHECK_OK(RingAllreduce(group, reinterpret_cast<uint8_t*>(data.data()), reinterpret_cast<uint8_t*>(data.data()),
                           data.size(), SE_FLOAT32, SE_SUM, Finish{0.3, kSize}));
  });
  for (const auto& result : results) CHECK(result == results[0]);
}

}  // namespace

int main() {
  return RunTests({{"positions", Positions},
                   {"only neighbours talk", OnlyNeighboursTalk},
                   {"every algorithm is right", EveryAlgorithmIsRight},
                   {"same bits on all ranks", SameBitsOnAllRanks}});
}
