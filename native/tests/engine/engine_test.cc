// The engine as a whole: order, names, fusion, mismatches, handles, and leaving in good order.
#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "ranks.h"

namespace {

using namespace spark_estimator::testing;

const std::vector<Channel> kChannels = {Channel::kShared, Channel::kStream};

// A thousand allreduces of random sizes and dtypes, submitted in another order on every rank, many in flight.
void RandomOrder() {
  for (const Channel channel : kChannels) {
    for (const int size : {2, 3}) {
      RunRanks(size, {.channel = channel, .fusion_threshold_bytes = 1 << 16}, [&](Rank& me) {
        std::mt19937 same(5), own(static_cast<unsigned>(100 + me.rank));
        struct Op {
          std::string name;
          int32_t dtype;
          std::vector<uint8_t> data;
          int64_t count;
        };
        for (int batch = 0; batch < 20; ++batch) {
          std::vector<Op> ops;
          for (int i = 0; i < 50; ++i) {
            const int32_t dtype = same() % 2 ? SE_INT32 : SE_INT64;
            const int64_t count = static_cast<int64_t>(same() % 3000);
            ops.push_back(
                {"op." + std::to_string(i), dtype, std::vector<uint8_t>(static_cast<size_t>(count) * 8), count});
            for (int64_t k = 0; k < count; ++k) {
              const int64_t value = k + me.rank + i;
              if (dtype == SE_INT32)
                reinterpret_cast<int32_t*>(ops.back().data.data())[k] = static_cast<int32_t>(value);
              else
                reinterpret_cast<int64_t*>(ops.back().data.data())[k] = value;
            }
          }
          std::vector<size_t> order(ops.size());
          for (size_t i = 0; i < order.size(); ++i) order[i] = i;
          std::shuffle(order.begin(), order.end(), own);
          std::vector<Submitted> handles;
          for (const size_t i : order) {
            Op& op = ops[i];
            handles.push_back(me.Allreduce(op.name, op.data.data(), op.data.data(), {op.count}, op.dtype));
          }
          for (const Submitted& handle : handles) me.WaitOk(handle);
          for (size_t i = 0; i < ops.size(); ++i) {
            for (int64_t k = 0; k < ops[i].count; ++k) {
              const int64_t expected = size * (k + static_cast<int64_t>(i)) + size * (size - 1) / 2;
              if (ops[i].dtype == SE_INT32)
                CHECK_EQ(reinterpret_cast<int32_t*>(ops[i].data.data())[k], expected);
              else
                CHECK_EQ(reinterpret_cast<int64_t*>(ops[i].data.data())[k], expected);
            }
          }
        }
        CHECK(se_counter(me.engine, "requests") == 1000);
        CHECK(se_counter(me.engine, "operations") <= 1000);
        CHECK_EQ(se_counter(me.engine, "no such counter"), -1);
      });
    }
  }
}

void SmallOnesAreFused() {
  RunRanks(2, {.fusion_threshold_bytes = 1 << 20}, [&](Rank& me) {
    std::vector<std::vector<float>> data(200, std::vector<float>(10, 1));
    std::vector<Submitted> handles;
    for (size_t i = 0; i < data.size(); ++i) {
      handles.push_back(me.Allreduce("t" + std::to_string(i), data[i].data(), data[i].data(), {10}));
    }
    for (const Submitted& handle : handles) me.WaitOk(handle);
    for (const auto& tensor : data) CHECK_EQ(tensor[9], 2.0f);
  });
}

// Differences are reported on every rank, and the ring still works.
void MismatchesFailEverywhere() {
  for (const Channel channel : kChannels) {
    RunRanks(3, {.channel = channel}, [&](Rank& me) {
      std::vector<float> x(12, 1);
      const auto good = [&] {
        std::vector<float> y(5, 1);
        me.WaitOk(me.Allreduce("good", y.data(), y.data(), {5}));
        CHECK_EQ(y[4], 3.0f);
      };
      const auto fails = [&](Submitted submitted, const std::string& part) {
        CHECK_EQ(me.Wait(submitted), SE_MISMATCH);
        CHECK_CONTAINS(se_last_error(), part);
        CHECK_CONTAINS(se_last_error(), "'bad'");
        good();
      };
      const bool odd = me.rank == 1;
      fails(me.Allreduce("bad", x.data(), x.data(), odd ? std::vector<int64_t>{3, 4} : std::vector<int64_t>{4, 3}),
            "ranks 0, 2 have [4, 3]; rank 1 has [3, 4]");
      fails(me.Allreduce("bad", x.data(), x.data(), {4}, odd ? SE_INT32 : SE_FLOAT32), "rank 1 has int32");
      fails(me.Allreduce("bad", x.data(), x.data(), {4}, SE_FLOAT32, odd ? SE_MIN : SE_SUM), "rank 1 has Min");
      fails(me.Broadcast("bad", odd ? 1 : 0, x.data(), x.data(), {4}), "rank 1 has 1");
      fails(odd ? me.Allgather("bad", x.data(), {4}) : me.Allreduce("bad", x.data(), x.data(), {4}),
            "rank 1 has allgather");
      // A request that no group could run is refused before it is sent.
      CHECK_EQ(me.Wait(me.Broadcast("bad", 7, x.data(), x.data(), {4})), SE_INVALID_ARGUMENT);
      CHECK_CONTAINS(se_last_error(), "operation 'bad': root rank 7 is outside 0..2");
      fails(me.Allreduce("bad", x.data(), x.data(), {4}, SE_FLOAT32, SE_SUM, odd ? 2.0 : 1.0), "prescale");
    });
  }
}

void LocalMistakesAreRefusedAtOnce() {
  RunRanks(2, {}, [&](Rank& me) {
    std::vector<float> x(4, 1);
    CHECK_EQ(me.Allreduce("", x.data(), x.data(), {4}).status, SE_INVALID_ARGUMENT);
    CHECK_EQ(me.Allreduce("a", x.data(), x.data(), {4}, 77).status, SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(se_last_error(), "dtype code 77");
    CHECK_EQ(me.Allreduce("a", x.data(), x.data(), {4}, SE_FLOAT32, 9).status, SE_INVALID_ARGUMENT);
    CHECK_EQ(me.Allreduce("a", nullptr, x.data(), {4}).status, SE_INVALID_ARGUMENT);
    CHECK_EQ(me.Allreduce("a", x.data(), x.data(), {-4}).status, SE_INVALID_ARGUMENT);
    CHECK_EQ(se_poll(me.engine, 12345), SE_INVALID_ARGUMENT);
    // A name in flight: rank 0 is alone with it for a while, whichever rank is first.
    const Submitted first = me.Allreduce("twice", x.data(), x.data(), {4});
    if (me.rank == 0) {
      std::vector<float> y(4);
      const Submitted second = me.Allreduce("later", y.data(), y.data(), {4});
      CHECK_EQ(me.Allreduce("later", y.data(), y.data(), {4}).status, SE_DUPLICATE_NAME);
      CHECK_CONTAINS(se_last_error(), "'later'");
      me.WaitOk(me.Barrier("go"));
      me.WaitOk(second);
    } else {
      me.WaitOk(me.Barrier("go"));
      std::vector<float> y(4);
      me.WaitOk(me.Allreduce("later", y.data(), y.data(), {4}));
    }
    me.WaitOk(first);
  });
}

void WaitHasADeadline() {
  RunRanks(2, {}, [&](Rank& me) {
    std::vector<float> x(4, 1);
    if (me.rank == 0) {
      const Submitted handle = me.Allreduce("late", x.data(), x.data(), {4});
      CHECK_EQ(se_poll(me.engine, handle.handle), SE_IN_PROGRESS);
      CHECK_EQ(se_wait(me.engine, handle.handle, 0.01), SE_IN_PROGRESS);
      me.WaitOk(me.Barrier("go"));
      me.WaitOk(handle);
      CHECK_EQ(se_poll(me.engine, handle.handle), SE_INVALID_ARGUMENT);  // released
    } else {
      me.WaitOk(me.Barrier("go"));
      me.WaitOk(me.Allreduce("late", x.data(), x.data(), {4}));
    }
  });
}

// One rank without shared memory: all agree on the streams.
void OneRankCannotShare() {
  RunRanks(3, {.last_rank_cannot_share = true}, [&](Rank& me) {
    CHECK_EQ(se_counter(me.engine, "shared_memory"), 0);
    std::vector<float> x(30000, 1);
    me.WaitOk(me.Allreduce("x", x.data(), x.data(), {30000}));
    CHECK_EQ(x[29999], 3.0f);
    if (me.rank != 1) CHECK(se_counter(me.engine, "stream_bytes") > 0);  // rank 0 speaks for the two that share
  });
}

void ManyRounds() {
  for (int round = 0; round < 60; ++round) {
    RunRanks(2, {.channel = round % 2 ? Channel::kStream : Channel::kShared}, [&](Rank& me) {
      std::vector<int32_t> x = {me.rank, round};
      me.WaitOk(me.Allreduce("x", x.data(), x.data(), {2}, SE_INT32));
      CHECK(x[0] == 1 && x[1] == 2 * round);
    });
  }
}

// Submitting from several threads of a rank at once.
void ManyThreads() {
  RunRanks(2, {}, [&](Rank& me) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          std::vector<int64_t> x(100, me.rank + t);
          me.WaitOk(me.Allreduce("thread." + std::to_string(t), x.data(), x.data(), {100}, SE_INT64));
          CHECK_EQ(x[99], 1 + 2 * t);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

void StallsFailWhenAsked() {
  std::atomic<bool> failed{false};
  RunRanks(2, {.stall_warning_seconds = 0.5, .stall_shutdown_seconds = 1.5}, [&](Rank& me) {
    if (me.rank == 0) {
      std::vector<float> x(4, 1);
      CHECK_EQ(me.Wait(me.Allreduce("alone", x.data(), x.data(), {4})), SE_MISMATCH);
      CHECK_CONTAINS(se_last_error(), "'alone'");
      CHECK_CONTAINS(se_last_error(), "rank 1");
      failed = true;
    }
    while (!failed) std::this_thread::yield();
    me.WaitOk(me.Barrier("still works"));
  });
}

}  // namespace

int main() {
  return RunTests({{"random order", RandomOrder},
                   {"small ones are fused", SmallOnesAreFused},
                   {"mismatches fail everywhere", MismatchesFailEverywhere},
                   {"local mistakes are refused at once", LocalMistakesAreRefusedAtOnce},
                   {"wait has a deadline", WaitHasADeadline},
                   {"one rank cannot share", OneRankCannotShare},
                   {"many rounds", ManyRounds},
                   {"many threads", ManyThreads},
                   {"stalls fail when asked", StallsFailWhenAsked}});
}
