// Engines whose ranks are not all connected: what they compute, and that ends and failures of any rank reach all
// others.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/kernels/halves.h"
#include "libcrypto.h"
#include "ranks.h"
#include "victim.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

JobOptions Overlay(Channel channel = Channel::kStream) {
  JobOptions options;
  options.channel = channel;
  options.overlay = true;
  options.late_data = true;
  return options;
}

void CheckAllreduce(Rank& me, const std::string& name, int64_t count) {
  std::vector<float> x(static_cast<size_t>(count), static_cast<float>(me.rank));
  me.WaitOk(me.Allreduce(name, x.data(), x.data(), {count}));
  const auto sum = static_cast<float>(me.size * (me.size - 1) / 2);
  for (const float v : x) CHECK_EQ(v, sum);
}

void EveryPairIsConnectedWhenItIsUsed() {
  constexpr int kSize = 17;
  RunRanks(kSize, Overlay(), [](Rank& me) {
    for (const int64_t count : {1, 1000, 300'000}) CheckAllreduce(me, "x" + std::to_string(count), count);
    std::vector<int64_t> mine(kSize);
    for (int turn = 0; turn < 2; ++turn) {
      for (int to = 0; to < kSize; ++to) mine[static_cast<size_t>(to)] = 100 * me.rank + to;
      const auto got = me.Gathered<int64_t>(me.Alltoall("all", mine.data(), {kSize}, {}, SE_INT64));
      for (int from = 0; from < kSize; ++from) CHECK_EQ(got[static_cast<size_t>(from)], 100 * from + me.rank);
    }
    for (int root = 0; root < kSize; ++root) {
      std::vector<float> x(100'000, static_cast<float>(me.rank));
      me.WaitOk(me.Broadcast("from", root, x.data(), x.data(), {100'000}));
      for (const float v : x) CHECK_EQ(v, static_cast<float>(root));
    }
  });
}

void ConnectionsCanBeSeveralAndEncrypted() {
  JobOptions options = Overlay();
  options.data_connections = 3;
  options.cipher = SE_AES_128_GCM;
  options.crypto_library = LibcryptoPath().c_str();
  RunRanks(9, options, [](Rank& me) { CheckAllreduce(me, "x", 500'000); });
}

// Those of a ring and of recursive doubling, for any number of ranks.
void AllreducesConnectFewPairs() {
  constexpr int kSize = 32;
  const int pairs = RunRanks(kSize, Overlay(), [](Rank& me) {
    // In the proposals; by doubling, by halving, in a ring.
    for (const int64_t count : {1, 3000, 100'000, 1'500'000}) CheckAllreduce(me, "x" + std::to_string(count), count);
  });
  CHECK(pairs >= kSize);
  CHECK(pairs <= kSize * 5 / 2 + kSize);
}

// No two neighbours have consecutive numbers.
std::vector<int32_t> StridedOrder(int size) {
  std::vector<int32_t> order;
  for (int rank = 0; rank < size; ++rank) order.push_back(rank * 5 % size);
  return order;
}

// Each ring connects the pairs of its neighbours and no others; those of the two have none in common.
void RingsFollowTheOrder() {
  constexpr int kSize = 17;
  const int pairs = RunRanks(kSize, Overlay(), [](Rank& me) {
    std::vector<int32_t> order = StridedOrder(kSize);
    CHECK_EQ(se_order_ring(me.engine, order.data(), 0), SE_OK);
    CheckAllreduce(me, "ordered", 1'000'000);
    std::ranges::sort(order);
    CHECK_EQ(se_order_ring(me.engine, order.data(), 0), SE_OK);
    CheckAllreduce(me, "by rank", 1'000'000);
  });
  CHECK_EQ(pairs, 2 * kSize);
}

void CheckHalves(Rank& me, int64_t count) {
  std::vector<uint16_t> halves(static_cast<size_t>(count));
  const auto own = static_cast<float>(me.rank);
  for (uint16_t& half : halves) HalvesFromFloat32(SE_BFLOAT16, &half, &own, 1);
  me.WaitOk(me.Allreduce("halves", halves.data(), halves.data(), {count}, SE_BFLOAT16));
  for (const uint16_t half : halves) {
    float sum = 0;
    HalvesToFloat32(SE_BFLOAT16, &sum, &half, 1);
    CHECK_EQ(sum, static_cast<float>(me.size * (me.size - 1) / 2));
  }
}

// As many pairs as a ring has: without it the ranks exchange their halves with all others.
void HalvesGoRoundTheRing() {
  constexpr int kSize = 17;
  const int pairs = RunRanks(kSize, Overlay(), [](Rank& me) {
    const std::vector<int32_t> order = StridedOrder(kSize);
    CHECK_EQ(se_order_ring(me.engine, order.data(), 1), SE_OK);
    CheckHalves(me, 2'000'000);
  });
  CHECK_EQ(pairs, kSize);
}

void HostsFollowTheOrder() {
  JobOptions options;
  options.ranks_per_host = 2;
  RunRanks(8, options, [](Rank& me) {
    const std::vector<int32_t> order = {4, 5, 0, 1, 6, 7, 2, 3};
    CHECK_EQ(se_order_ring(me.engine, order.data(), 1), SE_OK);
    for (const int64_t count : {1, 3000, 100'000, 1'500'000}) CheckAllreduce(me, "x" + std::to_string(count), count);
    CheckHalves(me, 1'500'000);
    for (int root = 0; root < me.size; ++root) {
      std::vector<float> x(300'000, static_cast<float>(me.rank));
      me.WaitOk(me.Broadcast("from", root, x.data(), x.data(), {300'000}));
      for (const float v : x) CHECK_EQ(v, static_cast<float>(root));
    }
  });
}

void WrongOrdersAreRefused() {
  std::atomic<bool> refused{false};
  RunRanks(3, {.channel = Channel::kStream}, [&](Rank& me) {
    for (const std::vector<int32_t>& order : std::vector<std::vector<int32_t>>{{0, 1, 1}, {0, 1, 3}, {-1, 0, 1}}) {
      CHECK_EQ(se_order_ring(me.engine, order.data(), 0), SE_INVALID_ARGUMENT);
      CHECK_CONTAINS(se_last_error(), "has each of them once");
    }
    const std::vector<int32_t> order = {2, 0, 1};
    std::vector<float> x(100'000, 1);
    while (me.rank != 0 && !refused) std::this_thread::yield();
    const Submitted request = me.Allreduce("x", x.data(), x.data(), {100'000});
    if (me.rank == 0) {  // the others have not submitted it
      CHECK_EQ(se_order_ring(me.engine, order.data(), 0), SE_INVALID_ARGUMENT);
      CHECK_CONTAINS(se_last_error(), "requests in progress");
      refused = true;
    }
    me.WaitOk(request);
    CHECK_EQ(se_order_ring(me.engine, order.data(), 0), SE_OK);
    CheckAllreduce(me, "ordered", 100'000);
  });
}

// Heartbeats alone, for longer than the silence that is allowed.
void IdleRanksStay() {
  JobOptions options = Overlay();
  options.heartbeat_seconds = 0.05;
  options.silence_seconds = 1;
  RunRanks(20, options, [](Rank& me) {
    CheckAllreduce(me, "x", 10);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    CheckAllreduce(me, "x", 10);
  });
}

void ADeathIsReportedOnAllRanks() {
  constexpr int kSize = 9;
  JobOptions options = Overlay();
  options.late_data = false;  // the victim is another process
  for (int victim = 0; victim < kSize; victim += 2) {
    const int killer = victim == 0 ? 1 : 0;
    std::atomic<int> past_the_first{0};
    WithVictim(
        kSize, victim, options, [](Rank& me) { CheckAllreduce(me, "first", 10); },
        [&](Rank& me, pid_t child) {
          std::vector<float> x(10, 1);
          CheckAllreduce(me, "first", 10);
          ++past_the_first;
          const Submitted pending = me.Allreduce("second", x.data(), x.data(), {10});
          while (past_the_first < kSize - 1) std::this_thread::yield();
          if (me.rank == killer) kill(child, SIGKILL);
          CHECK_EQ(me.Wait(pending), SE_PEER_LOST);
          CHECK_CONTAINS(se_last_error(), "rank " + std::to_string(victim) + " on testhost is lost: its connection");
        });
  }
}

// Silent but connected: its neighbours notice, and tell the others.
void AFrozenRankIsReportedOnAllRanks() {
  constexpr int kSize = 9;
  JobOptions options = Overlay();
  options.late_data = false;
  options.heartbeat_seconds = 0.1;
  options.silence_seconds = 2;
  std::atomic<int> past_the_first{0};
  std::atomic<int> reported{0};
  WithVictim(
      kSize, 4, options, [](Rank& me) { CheckAllreduce(me, "first", 10); },
      [&](Rank& me, pid_t child) {
        std::vector<float> x(10, 1);
        CheckAllreduce(me, "first", 10);
        ++past_the_first;
        while (past_the_first < kSize - 1) std::this_thread::yield();
        if (me.rank == 0) kill(child, SIGSTOP);
        CHECK_EQ(me.Wait(me.Allreduce("second", x.data(), x.data(), {10})), SE_PEER_LOST);
        CHECK_CONTAINS(se_last_error(), "rank 4 on testhost is lost");
        ++reported;
        while (reported < kSize - 1) std::this_thread::yield();
        if (me.rank == 0) kill(child, SIGKILL);
      });
}

void ADeathAtTheStartIsReportedOnAllRanks() {
  constexpr int kSize = 9;
  JobOptions options = Overlay();
  options.late_data = false;
  std::atomic<int> failed{0};
  WithVictimToStart(
      kSize, 3, options, [](Wiring&) { return 0; },
      [&](Wiring& wiring, int rank, pid_t) {
        se_engine* engine = nullptr;
        const auto index = static_cast<size_t>(rank);
        CHECK_EQ(se_engine_create(&wiring.configs[index], wiring.peers[index].data(), &engine), SE_PEER_LOST);
        CHECK_CONTAINS(se_last_error(), "rank 3 on testhost was lost while the job was starting");
        ++failed;
      });
  CHECK_EQ(failed.load(), kSize - 1);
}

void LeavingFailsWhatIsPending() {
  for (const int leaver : {0, 3, 8}) {
    RunRanks(9, Overlay(), [&](Rank& me) {
      std::vector<float> x(50'000, 1);
      me.WaitOk(me.Allreduce("first", x.data(), x.data(), {50'000}));
      if (me.rank == leaver) {
        CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
        return;
      }
      CHECK_EQ(me.Wait(me.Allreduce("second", x.data(), x.data(), {10})), SE_SHUT_DOWN);
      CHECK_CONTAINS(se_last_error(), "rank " + std::to_string(leaver) + " on testhost has left the job");
    });
  }
}

void LeavingLosesNothing() {
  for (int round = 0; round < 20; ++round) {
    RunRanks(9, Overlay(), [](Rank& me) {
      std::vector<float> x(200'000, me.rank == 2 ? 7.0f : 0.0f);
      me.WaitOk(me.Broadcast("last", 2, x.data(), x.data(), {200'000}));
      for (const float v : x) CHECK_EQ(v, 7.0f);
    });
  }
}

void LeavingAtOnceAfterTheStart() {
  for (int round = 0; round < 20; ++round) RunRanks(9, Overlay(), [](Rank&) {});
}

// Requests that only some ranks have made are negotiated through the coordinator.
void ManyRequestsInAnyOrder() {
  RunRanks(9, Overlay(), [](Rank& me) {
    constexpr int kCount = 40;
    std::vector<std::vector<float>> x(kCount, std::vector<float>(100, 1));
    std::vector<Submitted> submitted(kCount);
    for (int turn = 0; turn < 3; ++turn) {
      for (auto& values : x) values.assign(100, 1);
      for (int i = 0; i < kCount; ++i) {
        const int at = (i * 7 + me.rank * 3) % kCount;
        auto& values = x[static_cast<size_t>(at)];
        submitted[static_cast<size_t>(at)] =
            me.Allreduce("t" + std::to_string(at), values.data(), values.data(), {100});
      }
      for (const Submitted& request : submitted) me.WaitOk(request);
      for (const auto& values : x) {
        for (const float v : values) CHECK_EQ(v, static_cast<float>(me.size));
      }
    }
    me.WaitOk(me.Join("end"));
  });
}

void ARefusedConnectionFailsTheGroup() {
  constexpr int kSize = 6;
  JobOptions options = Overlay();
  Wiring wiring = Wire(kSize, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] {
      Rank me(rank, kSize, Join(wiring, rank));
      std::thread process([&] {
        int32_t wanted = -1;
        int32_t status = SE_OK;
        while ((status = se_await_wanted_peer(me.engine, 60, &wanted)) == SE_OK) {
          CHECK_EQ(se_refuse_peer(me.engine, wanted, "no route to host"), SE_OK);
        }
        CHECK_EQ(status, SE_SHUT_DOWN);
      });
      std::vector<float> x(100'000, 1);
      CHECK_EQ(me.Wait(me.Allreduce("x", x.data(), x.data(), {100'000})), SE_PEER_LOST);
      CHECK_CONTAINS(se_last_error(), "no data connection with rank ");
      CHECK_CONTAINS(se_last_error(), "no route to host");
      CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
      process.join();
      se_engine_destroy(me.engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void WrongPeersAreRefused() {
  RunRanks(6, Overlay(), [](Rank& me) {
    CHECK_EQ(se_refuse_peer(me.engine, 6, "x"), SE_INVALID_ARGUMENT);
    CHECK_EQ(se_refuse_peer(me.engine, me.rank, "x"), SE_INVALID_ARGUMENT);
    se_peer peer{};
    peer.rank = (me.rank + 1) % 6;
    CHECK_EQ(se_connect_peer(me.engine, &peer), SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(se_last_error(), "lacks a connection");
    int32_t wanted = -1;
    CHECK_EQ(se_await_wanted_peer(me.engine, 0, &wanted), SE_IN_PROGRESS);
  });
  RunRanks(2, {.channel = Channel::kStream},
           [](Rank& me) { CHECK_EQ(se_refuse_peer(me.engine, 1 - me.rank, "x"), SE_INVALID_ARGUMENT); });
}

}  // namespace

int main() {
  return RunTests({{"every pair is connected when it is used", EveryPairIsConnectedWhenItIsUsed},
                   {"connections can be several and encrypted", ConnectionsCanBeSeveralAndEncrypted},
                   {"allreduces connect few pairs", AllreducesConnectFewPairs},
                   {"idle ranks stay", IdleRanksStay},
                   {"a death is reported on all ranks", ADeathIsReportedOnAllRanks},
                   {"a frozen rank is reported on all ranks", AFrozenRankIsReportedOnAllRanks},
                   {"a death at the start is reported on all ranks", ADeathAtTheStartIsReportedOnAllRanks},
                   {"leaving fails what is pending", LeavingFailsWhatIsPending},
                   {"leaving loses nothing", LeavingLosesNothing},
                   {"leaving at once after the start", LeavingAtOnceAfterTheStart},
                   {"many requests in any order", ManyRequestsInAnyOrder},
                   {"a refused connection fails the group", ARefusedConnectionFailsTheGroup},
                   {"rings follow the order", RingsFollowTheOrder},
                   {"halves go round the ring", HalvesGoRoundTheRing},
                   {"hosts follow the order", HostsFollowTheOrder},
                   {"wrong orders are refused", WrongOrdersAreRefused},
                   {"wrong peers are refused", WrongPeersAreRefused}});
}
