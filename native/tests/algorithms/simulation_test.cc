// The real algorithms on up to a thousand ranks of a modelled network: right results, and as many messages, bytes and
// steps as native/algorithms/README.md promises.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "algorithms/adasum.h"
#include "algorithms/streams/stream.h"
#include "simulated_frames.h"
#include "simulated_network.h"
#include "stream_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

NetworkModel Apart(int ranks) { return NetworkModel{.hosts = ranks}; }

// Time is counted in steps: a message takes one, its bytes and the calls take nothing.
NetworkModel Steps(int ranks) {
  return NetworkModel{.hosts = ranks, .latency = 1, .bytes_per_second = 1e18, .seconds_a_call = 0};
}
int64_t StepsOf(const Cost& cost) { return std::lround(cost.seconds); }

int64_t CeilLog2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

// Runs one allreduce of `count` floats, checks every rank's result and gives the largest cost of a rank.
Cost Allreduce(SimulatedNetwork& network, AllreduceAlgorithm algorithm, size_t count) {
  network.ResetCosts();
  const int size = network.size();
  network.Run([&](StreamGroup& group) {
    std::vector<float> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 64 + static_cast<size_t>(group.rank()));
    CHECK_OK(StreamAllreduce(group, algorithm, data.data(), data.data(), count, SE_FLOAT32, SE_SUM, Finish{}));
    for (size_t i = 0; i < count; ++i) {
      CHECK_EQ(data[i], static_cast<float>(i % 64) * static_cast<float>(size) +
                            static_cast<float>(size) * static_cast<float>(size - 1) / 2);
    }
  });
  return network.largest();
}

void TheModel() {
  // One megabyte at one gigabyte a second and a millisecond of latency; segments are sent one after the other.
  NetworkModel model{.hosts = 2, .latency = 1e-3, .bytes_per_second = 1e9, .seconds_a_call = 0};
  model.window_bytes = 4 << 20;
  SimulatedNetwork network(model);
  std::vector<uint8_t> data(1000000);
  network.Run([&](StreamGroup& group) {
    std::vector<uint8_t> mine(data.size());
    CHECK_OK(StreamBroadcast(group, BroadcastAlgorithm::kTree, 0, group.rank() == 0 ? data.data() : mine.data(),
                             data.size()));
  });
  CHECK(std::abs(network.cost(1).seconds - 2e-3) < 1e-9);
  CHECK_EQ(network.cost(0).bytes_across, 1000000);
  CHECK_EQ(network.cost(1).bytes_sent, 0);
  // The ranks of one host share its link: two of them take twice as long.
  model.ranks_per_host = 2;
  SimulatedNetwork pairs(model);
  pairs.Run([&](StreamGroup& group) {
    std::vector<uint8_t> mine(data.size());
    SubGroup couple(&group, {group.rank() % 2, group.rank() % 2 + 2});
    CHECK_OK(StreamBroadcast(couple, BroadcastAlgorithm::kTree, 0, mine.data(), mine.size()));
  });
  CHECK(pairs.largest().seconds > 2.9e-3 && pairs.largest().seconds < 3.1e-3);
}

void DoublingCosts() {
  for (const int ranks : {2, 3, 5, 8, 64, 100, 256, 1024}) {
    SimulatedNetwork network(Steps(ranks));
    const Cost cost = Allreduce(network, AllreduceAlgorithm::kDoubling, 256);
    const bool folded = !std::has_single_bit(static_cast<unsigned>(ranks));
    // Folded ranks add a step before and one after, which are not all on one chain.
    CHECK(StepsOf(cost) >= CeilLog2(ranks) && StepsOf(cost) <= CeilLog2(ranks) + (folded ? 1 : 0));
    CHECK(cost.messages <= CeilLog2(ranks) + 1);
    CHECK(cost.bytes_sent <= (CeilLog2(ranks) + 1) * 1024);
  }
}

void HalvingCosts() {
  for (const int ranks : {2, 4, 6, 16, 128, 512}) {
    SimulatedNetwork network(Steps(ranks));
    const Cost cost = Allreduce(network, AllreduceAlgorithm::kHalving, 8192);
    const bool folded = !std::has_single_bit(static_cast<unsigned>(ranks));
    const int64_t whole = 2 * (CeilLog2(ranks) - (folded ? 1 : 0));
    CHECK(StepsOf(cost) >= whole && StepsOf(cost) <= whole + (folded ? 2 : 0));
    CHECK(cost.bytes_sent <= (folded ? 3 : 2) * 8192 * 4);
  }
}

void RingCosts() {
  for (const int ranks : {2, 3, 16, 100, 256}) {
    SimulatedNetwork network(Steps(ranks));
    const size_t count = static_cast<size_t>(ranks) * 256;
    const Cost cost = Allreduce(network, AllreduceAlgorithm::kRing, count);
    CHECK_EQ(cost.messages, 2 * (ranks - 1));
    CHECK_EQ(cost.bytes_sent, 2 * (ranks - 1) * 1024);
    CHECK_EQ(StepsOf(cost), 2 * (ranks - 1));
  }
}

void DirectCosts() {
  for (const int ranks : {2, 3, 16, 100, 256}) {
    SimulatedNetwork network(Steps(ranks));
    const size_t count = static_cast<size_t>(ranks) * 256;
    const Cost cost = Allreduce(network, AllreduceAlgorithm::kDirect, count);
    CHECK_EQ(cost.messages, 2 * (ranks - 1));
    CHECK_EQ(cost.bytes_sent, 2 * (ranks - 1) * 1024);
    CHECK_EQ(StepsOf(cost), 2);
  }
}

void AThousandRanks() {
  SimulatedNetwork network(Steps(1024));
  CHECK_EQ(StepsOf(Allreduce(network, AllreduceAlgorithm::kDoubling, 1)), 10);
  CHECK_EQ(StepsOf(Allreduce(network, AllreduceAlgorithm::kHalving, 1024)), 20);
  network.ResetCosts();
  network.Run([](StreamGroup& group) { CHECK_OK(StreamBarrier(group)); });
  CHECK_EQ(network.largest().messages, 10);
  network.ResetCosts();
  network.Run([](StreamGroup& group) {
    std::vector<uint8_t> data(100, static_cast<uint8_t>(group.rank() == 77 ? 1 : 0));
    CHECK_OK(StreamBroadcast(group, BroadcastAlgorithm::kTree, 77, data.data(), data.size()));
    for (const uint8_t byte : data) CHECK_EQ(+byte, 1);
  });
  CHECK_EQ(StepsOf(network.largest()), 10);
  network.ResetCosts();
  network.Run([](StreamGroup& group) {
    const int own = group.rank();
    const std::vector<size_t> bytes_of(1024, sizeof(own));
    std::vector<int> all(1024);
    CHECK_OK(StreamAllgather(group, AllgatherAlgorithm::kBruck, &own, bytes_of, all.data()));
    for (int r = 0; r < 1024; ++r) CHECK_EQ(all[static_cast<size_t>(r)], r);
  });
  CHECK_EQ(network.largest().messages, 10);
}

void BroadcastsAndAllgathers() {
  for (const int ranks : {2, 7, 33}) {
    SimulatedNetwork network(Apart(ranks));
    for (const BroadcastAlgorithm algorithm :
         {BroadcastAlgorithm::kTree, BroadcastAlgorithm::kChain, BroadcastAlgorithm::kScatterAllgather}) {
      network.Run([&](StreamGroup& group) {
        std::vector<uint8_t> data(300000, static_cast<uint8_t>(group.rank()));
        CHECK_OK(StreamBroadcast(group, algorithm, 1, data.data(), data.size()));
        for (const uint8_t byte : data) CHECK_EQ(+byte, 1);
      });
    }
    for (const AllgatherAlgorithm algorithm :
         {AllgatherAlgorithm::kExchange, AllgatherAlgorithm::kBruck, AllgatherAlgorithm::kRing}) {
      network.Run([&](StreamGroup& group) {
        const std::vector<uint8_t> mine(static_cast<size_t>(group.rank()) * 1000, static_cast<uint8_t>(group.rank()));
        std::vector<size_t> bytes_of;
        for (int r = 0; r < ranks; ++r) bytes_of.push_back(static_cast<size_t>(r) * 1000);
        std::vector<uint8_t> all(static_cast<size_t>(ranks * (ranks - 1) / 2) * 1000);
        CHECK_OK(StreamAllgather(group, algorithm, mine.data(), bytes_of, all.data()));
        size_t at = 0;
        for (int r = 0; r < ranks; ++r) {
          for (size_t i = 0; i < bytes_of[static_cast<size_t>(r)]; ++i) CHECK_EQ(+all[at++], r);
        }
      });
    }
  }
}

// The chain is as fast as one link, the tree sends everything log2 n times, for any root.
void ALongBroadcast() {
  SimulatedNetwork network(Apart(16));
  const auto seconds = [&](BroadcastAlgorithm algorithm) {
    network.ResetCosts();
    network.Run([&](StreamGroup& group) {
      std::vector<uint8_t> data(8 << 20);
      CHECK_OK(StreamBroadcast(group, algorithm, 0, data.data(), data.size()));
    });
    return network.largest().seconds;
  };
  const double bound = static_cast<double>(8 << 20) / NetworkModel{}.bytes_per_second;
  CHECK(seconds(BroadcastAlgorithm::kChain) < 1.3 * bound);
  CHECK(seconds(BroadcastAlgorithm::kScatterAllgather) > 1.8 * bound);
  CHECK(seconds(BroadcastAlgorithm::kTree) > 3.9 * bound);
}

// Four hosts of four: the ring of all ranks carries a share 1.6 times over each link, one ring a local index less.
void RingsAcrossHosts() {
  NetworkModel model{.hosts = 4, .ranks_per_host = 4};
  SimulatedNetwork network(model);
  const size_t count = 1 << 18;
  const Cost flat = Allreduce(network, AllreduceAlgorithm::kRing, count);
  network.ResetCosts();
  network.Run([&](StreamGroup& group) {
    std::vector<int> members;
    for (int host = 0; host < 4; ++host) members.push_back(host * 4 + group.rank() % 4);
    SubGroup across(&group, members);
    std::vector<float> share(count / 4, static_cast<float>(group.rank()));
    CHECK_OK(StreamAllreduce(across, AllreduceAlgorithm::kRing, share.data(), share.data(), share.size(), SE_FLOAT32,
                             SE_SUM, Finish{}));
    for (const float value : share) CHECK_EQ(value, static_cast<float>(24 + 4 * (group.rank() % 4)));
  });
  int64_t across = 0;
  for (int rank = 0; rank < 4; ++rank) across += network.cost(rank).bytes_across;
  CHECK_EQ(across, static_cast<int64_t>(count * 4 * 6 / 4));               // 2 b (hosts - 1) / hosts a host
  CHECK_EQ(flat.bytes_across, static_cast<int64_t>(count * 4 / 16 * 30));  // 2 b (ranks - 1) / ranks
  CHECK(network.largest().seconds < flat.seconds);
}

void AdasumAcrossHosts() {
  SimulatedNetwork network(Apart(64));
  network.Run([](StreamGroup& group) {
    std::vector<float> data(64, 0);
    data[static_cast<size_t>(group.rank())] = 2;
    const std::vector<AdasumPart> parts = {{data.data(), data.data(), data.size()}};
    CHECK_OK(AdasumAllreduce(group, parts, SE_FLOAT32, 1, 1));
    for (const float value : data) CHECK_EQ(value, 2.0f);  // orthogonal vectors are added
  });
  CHECK_EQ(network.largest().messages, 6);
}

// The engine's negotiation when all is cached: a scalar whose data is sent with the proposal, an intersection, a rank
// that cannot continue.
void RoundsOfProposals() {
  for (const int ranks : {2, 3, 7, 64, 1000}) {
    SimulatedNetwork network(Steps(ranks));
    network.Run([&](StreamGroup& group) {
      SimulatedFrames frames(group, 128);
      FrameRounds& rounds = frames.rounds();
      const auto settle = [&](uint32_t position, const Proposal& proposal) {
        rounds.Post(
            RoundId{1, position}, proposal, proposal.carries_data ? sizeof(int32_t) : 0,
            [&](uint8_t* place) {
              const int32_t own = group.rank() + 1;
              std::memcpy(place, &own, sizeof(own));
            },
            -1);
        bool done = false;
        CHECK_OK(rounds.Await(Time::max(), &done));
        CHECK(done);
        return rounds.outcome();
      };
      rounds.Enter(RoundId{1, 0});
      const Outcome scalar = settle(0, Proposal{.single = 7, .carries_data = true});
      CHECK(!scalar.leaves_rounds && scalar.carries_data);
      CHECK_EQ(scalar.single, 7);
      int64_t sum = 0;
      for (int r = 0; r < ranks; ++r) {
        int32_t value = 0;
        std::memcpy(&value, rounds.data_of(r), sizeof(value));
        sum += value;
      }
      CHECK_EQ(sum, int64_t{ranks} * (ranks + 1) / 2);

      IdSet ids(128);
      for (int32_t id = 0; id < 100; ++id) {
        if (id % ranks != group.rank() || id == 42) ids.Add(id);
      }
      const Outcome some = settle(1, Proposal{.ids = &ids});  // each of the others is lacked by one rank
      CHECK(!some.leaves_rounds);
      for (int32_t id = 0; id < 100; ++id) CHECK_EQ(some.agreed.Has(id), id == 42);
      CHECK(settle(2, Proposal{.leaves_rounds = group.rank() == ranks - 1, .ids = &ids}).leaves_rounds);
    });
    CHECK_EQ(network.largest().messages, 3 * CeilLog2(ranks));
  }
}

void EveryRunIsTheSame() {
  const auto run = [] {
    SimulatedNetwork network(NetworkModel{.hosts = 5, .ranks_per_host = 3});
    return Allreduce(network, AllreduceAlgorithm::kDirect, 10007);
  };
  const Cost first = run();
  const Cost second = run();
  CHECK_EQ(first.seconds, second.seconds);
  CHECK_EQ(first.messages, second.messages);
}

}  // namespace

int main() {
  return RunTests({{"the model", TheModel},
                   {"doubling costs", DoublingCosts},
                   {"halving costs", HalvingCosts},
                   {"ring costs", RingCosts},
                   {"direct costs", DirectCosts},
                   {"a thousand ranks", AThousandRanks},
                   {"broadcasts and allgathers", BroadcastsAndAllgathers},
                   {"a long broadcast", ALongBroadcast},
                   {"rings across hosts", RingsAcrossHosts},
                   {"Adasum across hosts", AdasumAcrossHosts},
                   {"rounds of proposals", RoundsOfProposals},
                   {"every run is the same", EveryRunIsTheSame}});
}
