// Requests without a name: they are matched by their order in all cases.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "places.h"
#include "ranks.h"

namespace {

using namespace spark_estimator::testing;

Asked UnnamedSum(float* data, int64_t count, int32_t reduce_op = SE_SUM) {
  Asked asked("allreduce.noname", SE_ALLREDUCE, reduce_op);
  asked.With(data, data, {count}).Unnamed();
  return asked;
}

// Every op without a name, of several forms: once they are known, without the coordinator.
void UnnamedSteadyState() {
  for (const Place& place : kPlaces) {
    if (place.size == 1) continue;
    RunRanks(place.size, place.options, [&](Rank& me) {
      const int n = me.size;
      const auto step = [&](int i) {
        for (const int64_t count : {1, 2, 3000, 40000}) {
          std::vector<float> x(static_cast<size_t>(count), static_cast<float>(i + me.rank));
          me.RunOk(UnnamedSum(x.data(), count));
          CHECK_EQ(x.back(), static_cast<float>(n * i + n * (n - 1) / 2));
        }
        std::vector<float> most = {static_cast<float>(me.rank)};
        me.RunOk(UnnamedSum(most.data(), 1, SE_MAX));
        CHECK_EQ(most[0], static_cast<float>(n - 1));
        for (const int root : {0, 1}) {
          int32_t word = me.rank == root ? i : -1;
          me.RunOk(Asked("broadcast.noname", SE_BROADCAST, SE_SUM, root).With(&word, &word, {}, SE_INT32).Unnamed());
          CHECK_EQ(word, i);
        }
        me.RunOk(Asked("barrier.noname", SE_BARRIER).Unnamed());
        std::vector<int32_t> mine(static_cast<size_t>(me.rank + 40), me.rank);
        for (const int64_t rows : {me.rank + 1, me.rank + 40}) {
          int64_t handle = 0;
          me.RunOk(Asked("allgather.noname", SE_ALLGATHER).With(mine.data(), nullptr, {rows}, SE_INT32).Unnamed(),
                   &handle);
          const std::vector<int32_t> all = me.Gathered<int32_t>({SE_OK, handle});
          CHECK_EQ(all.back(), n - 1);
          CHECK_EQ(static_cast<int64_t>(all.size()), n * (rows - me.rank) + n * (n - 1) / 2);
          se_release(me.engine, handle);
        }
        for (const int64_t more : {1, 3}) {
          std::vector<int64_t> splits(static_cast<size_t>(n), more);
          splits[static_cast<size_t>(me.rank)] = 0;
          std::vector<int32_t> sent(static_cast<size_t>(more * (n - 1)), me.rank);
          int64_t handle = 0;
          me.RunOk(Asked("alltoall.noname", SE_ALLTOALL)
                       .With(sent.data(), nullptr, {more * (n - 1)}, SE_INT32)
                       .Split(splits)
                       .Unnamed(),
                   &handle);
          CHECK_EQ(me.Gathered<int32_t>({SE_OK, handle}).size(), sent.size());
          se_release(me.engine, handle);
        }
        std::vector<float> whole(static_cast<size_t>(n) * 2, 1);
        std::vector<float> share(2);
        me.RunOk(Asked("reducescatter.noname", SE_REDUCESCATTER).With(whole.data(), share.data(), {2 * n}).Unnamed());
        CHECK_EQ(share[1], static_cast<float>(n));
        std::vector<float> a(5, 1);
        std::vector<double> b(7, 1);
        me.RunOk(Asked("grouped_allreduce.noname", SE_ALLREDUCE)
                     .With(a.data(), a.data(), {5})
                     .With(b.data(), b.data(), {7}, SE_FLOAT64)
                     .Unnamed());
        CHECK_EQ(b[6], static_cast<double>(n));
      };
      if (place.options.cache_capacity == 0) {
        for (int i = 0; i < 30; ++i) step(i);
      } else {  // in the first step all is new; of the second, the first may arrive before all are back in the rounds
        CheckSteady(me, 2, 28, step);
      }
    });
  }
}

// Many in flight, alike and not, waited for in any order: each matches the one that the others submitted with the same
// number.
void UnnamedKeepTheirOrder() {
  for (const Place& place : kPlaces) {
    RunRanks(place.size, place.options, [&](Rank& me) {
      const auto step = [&](int turn) {
        constexpr size_t kMany = 300;  // more than one proposal holds
        std::vector<std::vector<float>> x;
        std::vector<Submitted> handles;
        for (size_t i = 0; i < kMany; ++i) {
          x.emplace_back(i % 7 == 3 ? 9 : 4, static_cast<float>(i));
          handles.push_back(me.Submit(UnnamedSum(x[i].data(), static_cast<int64_t>(x[i].size()))));
          float word = me.rank == 0 ? static_cast<float>(i) : -1;
          if (i % 50 == 0) {
            me.RunOk(Asked("broadcast.noname", SE_BROADCAST).With(&word, &word, {}).Unnamed());
            CHECK_EQ(word, static_cast<float>(i));
          }
        }
        for (size_t k = 0; k < kMany; ++k) {
          const size_t i = (me.rank + turn) % 2 == 0 ? k : kMany - 1 - k;
          me.WaitOk(handles[i]);
          CHECK_EQ(x[i].back(), static_cast<float>(i) * static_cast<float>(me.size));
        }
        me.RunOk(Asked("between", SE_BARRIER));
      };
      if (place.options.cache_capacity == 0) {
        for (int turn = 0; turn < 20; ++turn) step(turn);
      } else {
        CheckSteady(me, 2, 18, step);
      }
    });
  }
}

// A difference is reported to all, with its number; the group still works, and cached forms stay cached.
void UnnamedContradictions() {
  for (const Place& place : kPlaces) {
    if (place.size == 1) continue;
    RunRanks(place.size, place.options, [](Rank& me) {
      for (int turn = 0; turn < 4; ++turn) {
        std::vector<float> x(8, 1);
        me.RunOk(UnnamedSum(x.data(), 4));
        me.RunOk(UnnamedSum(x.data(), 5));
        // Both forms are known by now; only here the ranks submit different ones, and then again with the forms
        // exchanged.
        for (const int odd : {0, me.size - 1}) {
          const Submitted first = me.Submit(UnnamedSum(x.data(), me.rank == odd ? 4 : 5));
          std::vector<float> behind(5, 1);
          const Submitted second = me.Submit(UnnamedSum(behind.data(), 5));
          CHECK_EQ(me.Wait(first), SE_MISMATCH);
          const std::string error = se_last_error();
          CHECK_CONTAINS(error, "Mismatched ALLREDUCE tensor shapes");
          CHECK_CONTAINS(error, "[4]");
          CHECK_CONTAINS(error, "[5]");
          CHECK_CONTAINS(error, "'allreduce.noname." + std::to_string(6 * turn + (odd == 0 ? 2 : 4)) + "'");
          me.WaitOk(second);
          CHECK_EQ(behind[4], static_cast<float>(me.size));
        }
      }
    });
  }
}

// More forms than the cache has ids for.
void UnnamedBeyondTheCapacity() {
  for (const Channel channel : {Channel::kShared, Channel::kStream}) {
    RunRanks(2, {.channel = channel, .cache_capacity = 3}, [](Rank& me) {
      for (int turn = 0; turn < 10; ++turn) {
        for (int64_t count = 1; count < 8; ++count) {
          std::vector<float> x(static_cast<size_t>(count), 1);
          me.RunOk(UnnamedSum(x.data(), count));
          CHECK_EQ(x.back(), 2.0f);
        }
        std::vector<std::vector<float>> x;
        std::vector<Submitted> handles;
        for (int64_t count = 1; count < 8; ++count) {
          x.emplace_back(static_cast<size_t>(count), 1.0f);
          handles.push_back(me.Submit(UnnamedSum(x.back().data(), count)));
        }
        for (const Submitted& handle : handles) me.WaitOk(handle);
        for (const auto& each : x) CHECK_EQ(each.back(), 2.0f);
      }
      CheckSteady(me, 2, 10, [&](int) {
        std::vector<float> x(3, 1);
        me.RunOk(UnnamedSum(x.data(), 3));
      });
    });
  }
}

// The others give up waiting for a rank. When that rank reaches the request that they gave up, it has failed there,
// too, and all later ones match.
void UnnamedLatecomersFailAlike() {
  for (const auto& [channel, late] : {std::pair(Channel::kShared, 0), std::pair(Channel::kStream, 1)}) {
    std::atomic<int> gave_up{0};
    // Long enough for the ranks' earlier steps on a busy machine.
    RunRanks(3, {.channel = channel, .stall_shutdown_seconds = 3}, [&, late = late](Rank& me) {
      float x = 1;
      for (int i = 0; i < 3; ++i) me.RunOk(UnnamedSum(&x, 1));
      if (me.rank != late) {
        float y[2] = {1, 1};
        const Submitted one = me.Submit(UnnamedSum(&y[0], 1));
        const Submitted other = me.Submit(UnnamedSum(&y[1], 1));
        CHECK_EQ(me.Wait(one), SE_MISMATCH);
        CHECK_CONTAINS(se_last_error(), "'allreduce.noname.3' has waited");
        CHECK_CONTAINS(se_last_error(), "rank " + std::to_string(late));
        CHECK_EQ(me.Wait(other), SE_MISMATCH);
        ++gave_up;
      } else {
        while (gave_up < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        float y = 1;
        CHECK_EQ(me.Run(UnnamedSum(&y, 1)), SE_MISMATCH);
        // With the others' message if their giving up arrives when it has submitted it, else with its own.
        CHECK_CONTAINS(se_last_error(), "'allreduce.noname.3'");
        CHECK_EQ(me.Wait(me.Submit(UnnamedSum(&y, 1))), SE_MISMATCH);
        CHECK_CONTAINS(se_last_error(), "'allreduce.noname.4'");
      }
      for (int i = 0; i < 5; ++i) {
        x = static_cast<float>(i);
        me.RunOk(UnnamedSum(&x, 1));
        CHECK_EQ(x, static_cast<float>(3 * i));
      }
      if (me.rank == late) return;
      int64_t bytes = 0;
      std::string text(1 << 16, '\0');
      CHECK_EQ(se_describe(me.engine, "flight_recorder", text.data(), 1 << 16, &bytes), SE_OK);
      CHECK_CONTAINS(text, "allreduce.noname.9");
    });
  }
}

// Under a new name, and under a known one for longer than a rank waits in the rounds.
void WaitingForALateRankIsCounted() {
  for (const Channel channel : {Channel::kShared, Channel::kStream}) {
    std::atomic<int> waiting{0};
    RunRanks(2, {.channel = channel}, [&](Rank& me) {
      for (const int milliseconds : {30, 1300}) {
        const int64_t before = se_counter(me.engine, "wait_nanoseconds");
        const int64_t blocked_before = se_counter(me.engine, "blocked_nanoseconds");
        float x = 1;
        if (me.rank == 0) {
          const Submitted early = me.Submit(UnnamedSum(&x, 1));
          ++waiting;
          me.WaitOk(early);
          CHECK(se_counter(me.engine, "wait_nanoseconds") - before >= int64_t{milliseconds} * 1000000);
          CHECK(se_counter(me.engine, "blocked_nanoseconds") - blocked_before >= int64_t{milliseconds} * 1000000);
        } else {
          while (waiting < (milliseconds == 30 ? 1 : 2)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
          me.RunOk(UnnamedSum(&x, 1));
        }
      }
    });
  }
}

// Ranks that have made different numbers of requests when they join count from 0 again when all have joined.
void UnnamedAndJoins() {
  Everywhere([](Rank& me) {
    for (int turn = 0; turn < kTurns; ++turn) {
      for (int batch = 0; batch <= me.rank; ++batch) {
        std::vector<float> x(1000, 1);
        me.RunOk(UnnamedSum(x.data(), 1000));
        CHECK_EQ(x[999], static_cast<float>(me.size - batch));
      }
      const Submitted join = me.Submit(Asked("join.noname", SE_JOIN).Unnamed());
      CHECK_EQ(me.Wait(join), SE_OK);
      se_release(me.engine, join.handle);
      for (int i = 0; i < 3; ++i) {
        std::vector<float> x(1000, static_cast<float>(i));
        me.RunOk(UnnamedSum(x.data(), 1000));
        CHECK_EQ(x[0], static_cast<float>(me.size * i));
      }
      // The ranks' numbers do not match any more, and an error reports it.
      if (me.size == 1) continue;
      float x[2] = {1, 1};
      CHECK_EQ(me.Run(UnnamedSum(x, me.rank == 0 ? 1 : 2)), SE_MISMATCH);
      CHECK_CONTAINS(se_last_error(), "'allreduce.noname.3'");
      me.WaitOk(me.Join("again"));
    }
  });
}

// Threads of a rank, each with a separate kind.
void UnnamedOfSeveralThreads() {
  for (const Place& place : kPlaces) {
    RunRanks(place.size, place.options, [](Rank& me) {
      std::vector<std::thread> threads;
      for (int thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&me, thread] {
          for (int i = 0; i < 200; ++i) {
            std::vector<float> x(static_cast<size_t>(i % 3 + 1), static_cast<float>(i * (thread + 1)));
            Asked asked("kind " + std::to_string(thread) + ".noname", SE_ALLREDUCE);
            asked.With(x.data(), x.data(), {i % 3 + 1}).Unnamed();
            if (i % 2 == 0) {
              me.RunOk(asked);
            } else {
              me.WaitOk(me.Submit(asked));
            }
            CHECK_EQ(x.back(), static_cast<float>(i * (thread + 1) * me.size));
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

// Plans, deferred and not, beside requests of the same kind that have none.
void UnnamedPlans() {
  Everywhere([](Rank& me) {
    OwnedPlan scalar(me, Asked("allreduce.noname", SE_ALLREDUCE).With(nullptr, nullptr, {}).Unnamed());
    OwnedPlan bucket(me, Asked("allreduce.noname", SE_ALLREDUCE).With(nullptr, nullptr, {3000}).Unnamed());
    for (int i = 0; i < 60; ++i) {
      std::vector<float> a(3000, 1), b(3000, 2);
      void* outputs[] = {a.data()};
      int64_t pending = 0;
      CHECK_EQ(se_plan_submit(bucket.plan, outputs, outputs, nullptr, SE_DEFER, &pending), SE_OK);
      const Submitted behind = me.Submit(UnnamedSum(b.data(), 3000));
      float x = static_cast<float>(i);
      void* one[] = {&x};
      int64_t handle = 0;
      CHECK_EQ(se_plan_run(scalar.plan, one, one, nullptr, 60, &handle), SE_OK);
      CHECK_EQ(x, static_cast<float>(i * me.size));
      // Waiting for the youngest completes the older ones as well.
      CHECK_EQ(se_poll(me.engine, pending), SE_OK);
      CHECK_EQ(se_poll(me.engine, behind.handle), SE_OK);
      me.WaitOk({SE_OK, pending});
      me.WaitOk(behind);
      CHECK_EQ(a[2999], static_cast<float>(me.size));
      CHECK_EQ(b[2999], static_cast<float>(2 * me.size));
      // The kind's name is not a name in flight.
      me.RunOk(Asked("allreduce.noname", SE_BARRIER));
    }
    Asked wrong = UnnamedSum(nullptr, 1);
    wrong.request.unnamed = 2;
    CHECK_EQ(me.Run(wrong), SE_INVALID_ARGUMENT);
  });
}

// A deferred one before one that is not does not delay it.
void UnnamedBehindADeferredOneIsDone() {
  for (const Channel channel : {Channel::kShared, Channel::kStream}) {
    RunRanks(2, {.channel = channel}, [](Rank& me) {
      OwnedPlan plan(me, Asked("allreduce.noname", SE_ALLREDUCE).With(nullptr, nullptr, {100}).Unnamed());
      std::vector<float> x(100, 1), y(100, 1);
      void* memory[] = {x.data()};
      int64_t handle = 0;
      for (int i = 0; i < 2; ++i) CHECK_EQ(se_plan_run(plan.plan, memory, memory, nullptr, 60, &handle), SE_OK);
      CHECK_EQ(se_plan_submit(plan.plan, memory, memory, nullptr, SE_DEFER, &handle), SE_OK);
      const Submitted behind = me.Submit(UnnamedSum(y.data(), 100));
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (se_poll(me.engine, behind.handle) == SE_IN_PROGRESS) {
        CHECK(std::chrono::steady_clock::now() < deadline);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      CHECK_EQ(y[99], 2.0f);
      me.WaitOk({SE_OK, handle});
      me.WaitOk(behind);
      CHECK_EQ(x[99], 8.0f);
    });
  }
}

}  // namespace

int main() {
  return RunTests({{"steady state", UnnamedSteadyState},
                   {"keep their order", UnnamedKeepTheirOrder},
                   {"contradictions", UnnamedContradictions},
                   {"beyond the capacity", UnnamedBeyondTheCapacity},
                   {"latecomers fail alike", UnnamedLatecomersFailAlike},
                   {"waiting for a late rank is counted", WaitingForALateRankIsCounted},
                   {"joins", UnnamedAndJoins},
                   {"several threads", UnnamedOfSeveralThreads},
                   {"plans", UnnamedPlans},
                   {"behind a deferred one", UnnamedBehindADeferredOneIsDone}});
}
