// Every operation through the C ABI, on one host, across sockets and on hosts of several ranks; and the guarantees of
// the rounds: no coordinator once names are known, a return after every negotiation.
#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "places.h"
#include "ranks.h"

namespace {

using namespace spark_estimator::testing;

void Alltoalls() {
  Everywhere([](Rank& me) {
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const int64_t scale : {1, 1000}) {
        std::vector<int64_t> splits;
        std::vector<float> data;
        for (int to = 0; to < me.size; ++to) {
          splits.push_back((me.rank + to) % 3 * scale);
          for (int64_t i = 0; i < splits.back() * 2; ++i) data.push_back(static_cast<float>(me.rank * 100 + to));
        }
        const auto rows = static_cast<int64_t>(data.size() / 2);
        std::vector<int64_t> received;
        const Submitted submitted = me.Alltoall("uneven." + std::to_string(scale), data.data(), {rows, 2}, splits);
        const std::vector<float> out = me.Gathered<float>(submitted, &received);
        size_t at = 0;
        for (int from = 0; from < me.size; ++from) {
          CHECK_EQ(received[static_cast<size_t>(from)], (me.rank + from) % 3 * scale);
          for (int64_t i = 0; i < received[static_cast<size_t>(from)] * 2; ++i) {
            CHECK_EQ(out[at++], static_cast<float>(from * 100 + me.rank));
          }
        }
        CHECK_EQ(at, out.size());
        se_release(me.engine, submitted.handle);
      }
      std::vector<int32_t> even(static_cast<size_t>(me.size) * 3);
      for (size_t i = 0; i < even.size(); ++i) even[i] = me.rank * 1000 + static_cast<int32_t>(i);
      const Submitted submitted = me.Alltoall("even", even.data(), {static_cast<int64_t>(even.size())}, {}, SE_INT32);
      const std::vector<int32_t> out = me.Gathered<int32_t>(submitted);
      for (int from = 0; from < me.size; ++from) {
        CHECK_EQ(out[static_cast<size_t>(from) * 3 + 2], from * 1000 + me.rank * 3 + 2);
      }
      se_release(me.engine, submitted.handle);
    }
  });
}

void Reducescatters() {
  Everywhere([](Rank& me) {
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const int64_t rows : {0, 1, 7, 30001}) {
        std::vector<double> in(static_cast<size_t>(rows) * 2);
        for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(i) + me.rank;
        const int64_t own = se_rows_of(rows, me.rank, me.size);
        std::vector<double> out(static_cast<size_t>(own) * 2, -1);
        me.WaitOk(me.Reducescatter("rs." + std::to_string(rows), in.data(), out.data(), {rows, 2}, SE_FLOAT64));
        int64_t first = 0;
        for (int rank = 0; rank < me.rank; ++rank) first += se_rows_of(rows, rank, me.size);
        for (size_t i = 0; i < out.size(); ++i) {
          const double expected =
              me.size * static_cast<double>(first * 2 + static_cast<int64_t>(i)) + me.size * (me.size - 1) / 2.0;
          CHECK_EQ(out[i], expected);
        }
      }
      // Averages of narrow integers are right although the sum would not fit.
      std::vector<uint8_t> in(static_cast<size_t>(me.size) * 4, 250);
      std::vector<uint8_t> out(4, 0);
      me.WaitOk(
          me.Reducescatter("bytes", in.data(), out.data(), {static_cast<int64_t>(in.size())}, SE_UINT8, SE_AVERAGE));
      CHECK_EQ(static_cast<int>(out[3]), 250);
    }
  });
}

// Tensors of several types, agreed on and done as one.
void Groups() {
  Everywhere([](Rank& me) {
    for (int turn = 0; turn < kTurns; ++turn) {
      std::vector<float> a(5, 1);
      std::vector<int64_t> b(40000, me.rank);
      std::vector<float> c(1, 2);
      Asked reduce("group", SE_ALLREDUCE, SE_AVERAGE);
      reduce.With(a.data(), a.data(), {5}).With(b.data(), b.data(), {200, 200}, SE_INT64).With(c.data(), c.data(), {});
      me.WaitOk(me.Submit(reduce));
      CHECK_EQ(a[4], 1.0f);
      CHECK_EQ(b[39999], (me.size - 1) / 2);
      CHECK_EQ(c[0], 2.0f);
      Asked gather("gather", SE_ALLGATHER);
      gather.With(a.data(), nullptr, {5}).With(b.data(), nullptr, {me.rank + 1, 3}, SE_INT64);
      const Submitted gathered = me.Submit(gather);
      CHECK_EQ(me.Gathered<float>(gathered).size(), static_cast<size_t>(5 * me.size));
      std::vector<int64_t> rows;
      CHECK_EQ(me.Gathered<int64_t>(gathered, &rows, 1).size(), static_cast<size_t>(3 * me.size * (me.size + 1) / 2));
      CHECK_EQ(rows[static_cast<size_t>(me.size) - 1], me.size);
      se_release(me.engine, gathered.handle);
    }
    // One tensor of a group differs: none of it is done.
    std::vector<float> a(5, 1);
    std::vector<float> b(6, 1);
    const bool odd = me.rank == me.size - 1 && me.size > 1;
    Asked bad("bad group", SE_ALLREDUCE);
    bad.With(a.data(), a.data(), {5}).With(b.data(), b.data(), {odd ? 5 : 6});
    CHECK_EQ(me.Wait(me.Submit(bad)), me.size > 1 ? SE_MISMATCH : SE_OK);
    if (me.size > 1) CHECK_EQ(a[0], 1.0f);
  });
}

// What is sent in int8 between hosts is, with what is owed, what it was; on one host it is that without any owing. The
// requests find each other as others do: named, as plans, fused with small ones, and beside a rank that has joined.
void Int8Allreduces() {
  Everywhere([](Rank& me) {
    constexpr size_t kCount = 40000;
    std::vector<float> in(kCount), out(kCount), flags(3), residue(kCount);
    double owed = 0, error = 0;
    const auto asked = [&](const std::string& name) {
      Asked request(name, SE_ALLREDUCE, SE_AVERAGE);
      request.With(in.data(), out.data(), {kCount}).Owing(residue.data());
      request.With(flags.data(), flags.data(), {3});
      return request;
    };
    OwnedPlan plan(me, asked("planned"));
    for (int turn = 0; turn < 2 * kTurns; ++turn) {
      std::vector<double> average(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        in[i] = static_cast<float>(std::sin(static_cast<double>(i + 1) * (me.rank + 2)));
        for (int rank = 0; rank < me.size; ++rank) {
          average[i] += static_cast<float>(std::sin(static_cast<double>(i + 1) * (rank + 2))) / me.size;
        }
      }
      std::fill(flags.begin(), flags.end(), static_cast<float>(me.rank));
      if (turn % 2 == 0) {
        me.WaitOk(me.Submit(asked("named")));
      } else {
        const void* inputs[] = {in.data(), flags.data()};
        void* outputs[] = {out.data(), flags.data()};
        int64_t handle = 0;
        CHECK_EQ(se_plan_submit(plan.plan, inputs, outputs, nullptr, 0, &handle), SE_OK);
        me.WaitOk({SE_OK, handle});
      }
      for (const float flag : flags) CHECK_EQ(flag, static_cast<float>(me.size - 1) / 2.0f);
      owed = error = 0;
      for (size_t i = 0; i < kCount; ++i) owed = std::max(owed, std::abs(static_cast<double>(residue[i])));
      for (size_t i = 0; i < kCount; ++i) error = std::max(error, std::abs(out[i] - average[i]));
      CHECK(owed < 0.02 * me.size);
      CHECK(error < 0.05);
    }
    float across = se_counter(me.engine, "stream_bytes") > 1000 ? 1.0f : 0.0f;
    me.WaitOk(me.Allreduce("across", &across, &across, {1}, SE_FLOAT32, SE_MAX));
    CHECK_EQ(across > 0, error > 1e-5);  // inside a host float32 is sent unchanged
    std::vector<float> small(10, 1), nothing(10);
    me.WaitOk(me.Submit(Asked("small", SE_ALLREDUCE).With(small.data(), small.data(), {10}).Owing(nothing.data())));
    CHECK_EQ(small[9], static_cast<float>(me.size));
    CHECK(nothing == std::vector<float>(10));
    Asked joined("joined", SE_ALLREDUCE);
    joined.With(in.data(), out.data(), {kCount}).Owing(residue.data());
    const bool gives = me.rank == 0 || me.size == 1;
    if (gives) me.WaitOk(me.Submit(joined));
    me.WaitOk(me.Join("the end"));
    if (gives) {
      for (size_t i = 0; i < kCount; ++i) CHECK(std::abs(out[i] - in[i]) < 0.1);
    }
  });
}

void Int8IsAgreedOn() {
  RunRanks(2, {.channel = Channel::kStream}, [](Rank& me) {
    std::vector<float> values(5000, 1), residue(5000);
    Asked one("x", SE_ALLREDUCE);
    one.With(values.data(), values.data(), {5000});
    if (me.rank == 1) one.Owing(residue.data());
    CHECK_EQ(me.Wait(me.Submit(one)), SE_MISMATCH);
    CHECK_CONTAINS(se_last_error(), "rank 1 has float32 sent as int8");
    Asked doubles("y", SE_ALLREDUCE);
    doubles.With(values.data(), values.data(), {100}, SE_FLOAT64).Owing(residue.data());
    CHECK_EQ(me.Submit(doubles).status, SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(se_last_error(), "only the sum or average of float32 tensors in host memory");
    Asked largest("z", SE_ALLREDUCE, SE_MAX);
    largest.With(values.data(), values.data(), {100}).Owing(residue.data());
    CHECK_EQ(me.Submit(largest).status, SE_INVALID_ARGUMENT);
  });
}

void Joins() {
  Everywhere([](Rank& me) {
    for (int turn = 0; turn < kTurns; ++turn) {
      // Rank r has r + 1 batches; the others' zeros do not count in a sum.
      for (int batch = 0; batch <= me.rank; ++batch) {
        std::vector<float> x(1000, 1);
        me.WaitOk(me.Allreduce("batch", x.data(), x.data(), {1000}));
        CHECK_EQ(x[999], static_cast<float>(me.size - batch));
      }
      const Submitted join = me.Join("join");
      CHECK_EQ(me.Wait(join), SE_OK);
      se_result result{};
      CHECK_EQ(se_get_result(me.engine, join.handle, 0, &result), SE_OK);
      CHECK_EQ(result.last_joined, me.size - 1);
      se_release(me.engine, join.handle);
      std::vector<float> after(10, 1);
      me.WaitOk(me.Allreduce("after", after.data(), after.data(), {10}));
      CHECK_EQ(after[0], static_cast<float>(me.size));
    }
  });
}

void Adasums() {
  Everywhere([](Rank& me) {
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<float> x(1000, 3);
      const int32_t status = me.Wait(me.Allreduce("adasum", x.data(), x.data(), {1000}, SE_FLOAT32, SE_ADASUM));
      const bool power_of_two = (me.size & (me.size - 1)) == 0;
      CHECK_EQ(status, power_of_two ? SE_OK : SE_INVALID_ARGUMENT);
      // Parallel gradients of one length: the adaptive sum is their average.
      if (power_of_two) CHECK(std::abs(x[500] - 3) < 1e-5);
      if (!power_of_two) CHECK_CONTAINS(se_last_error(), "power of two");
    }
    std::vector<int32_t> whole(4, 1);
    CHECK_EQ(me.Wait(me.Allreduce("integers", whole.data(), whole.data(), {4}, SE_INT32, SE_ADASUM)),
             SE_INVALID_ARGUMENT);
  });
}

// Scalars, vectors and barriers in the caller's thread; once known, without the coordinator.
void SteadyState() {
  for (const Place& place : kPlaces) {
    if (place.size == 1 || place.options.cache_capacity == 0) continue;
    RunRanks(place.size, place.options, [](Rank& me) {
      const auto step = [&](int i) {
        std::vector<float> loss = {static_cast<float>(i)};
        me.RunOk(Asked("loss", SE_ALLREDUCE, SE_AVERAGE).With(loss.data(), loss.data(), {}));
        CHECK_EQ(loss[0], static_cast<float>(i));
        std::vector<double> big(20000, me.rank + i);
        me.RunOk(Asked("big", SE_ALLREDUCE, SE_MAX).With(big.data(), big.data(), {20000}, SE_FLOAT64));
        CHECK_EQ(big[19999], me.size - 1 + i);
        std::vector<int32_t> word = {me.rank == 1 ? i : -1, 5};
        me.RunOk(Asked("word", SE_BROADCAST, SE_SUM, 1).With(word.data(), word.data(), {2}, SE_INT32));
        CHECK_EQ(word[0], i);
        me.RunOk(Asked("barrier", SE_BARRIER));
        std::vector<int16_t> mine = {static_cast<int16_t>(me.rank), 7};
        int64_t handle = 0;
        me.RunOk(Asked("all", SE_ALLGATHER).With(mine.data(), nullptr, {1, 2}, SE_INT16), &handle);
        const std::vector<int16_t> all = me.Gathered<int16_t>({SE_OK, handle});
        CHECK_EQ(all[static_cast<size_t>(me.size) * 2 - 2], me.size - 1);
        se_release(me.engine, handle);
      };
      CheckSteady(me, 3, 50, step);
      CHECK(se_counter(me.engine, "cache_hits") >= 250);
      CHECK(se_counter(me.engine, "inline_operations") >= 150);
    });
  }
}

// The same names in another order on each rank, several at once, step after step.
void OrderMayDiffer() {
  for (const Place& place : kPlaces) {
    RunRanks(place.size, place.options, [](Rank& me) {
      for (int i = 0; i < 40; ++i) {
        std::vector<std::vector<float>> x(6, std::vector<float>(300, 1));
        std::vector<Submitted> handles;
        for (size_t k = 0; k < x.size(); ++k) {
          const size_t which = (k * (me.rank % 2 == 0 ? 1 : 5) + static_cast<size_t>(me.rank)) % x.size();
          handles.push_back(me.Allreduce("t" + std::to_string(which), x[which].data(), x[which].data(), {300}));
        }
        for (const Submitted& handle : handles) me.WaitOk(handle);
        for (const auto& tensor : x) CHECK_EQ(tensor[299], static_cast<float>(me.size));
      }
    });
  }
}

void ShapesMayChange() {
  Everywhere([](Rank& me) {
    for (const int64_t count : {4, 4, 9, 4, 100000, 4}) {
      std::vector<float> x(static_cast<size_t>(count), 1);
      me.RunOk(Asked("x", SE_ALLREDUCE).With(x.data(), x.data(), {count}));
      CHECK_EQ(x.back(), static_cast<float>(me.size));
    }
  });
}

void Plans() {
  Everywhere([](Rank& me) {
    OwnedPlan scalar(me, Asked("scalar", SE_ALLREDUCE).With(nullptr, nullptr, {}));
    OwnedPlan bucket(me, Asked("bucket", SE_ALLREDUCE, SE_AVERAGE)
                             .With(nullptr, nullptr, {3000})
                             .With(nullptr, nullptr, {5})
                             .With(nullptr, nullptr, {70000}));
    for (int i = 0; i < 60; ++i) {
      float x = 1;
      std::vector<float> a(3000, 1), b(5, 2), c(70000, static_cast<float>(me.rank));
      void* outputs[] = {a.data(), b.data(), c.data()};
      int64_t pending = 0;
      CHECK_EQ(se_plan_submit(bucket.plan, outputs, outputs, nullptr, SE_DEFER, &pending), SE_OK);
      void* one[] = {&x};
      int64_t handle = 0;
      CHECK_EQ(se_plan_run(scalar.plan, one, one, nullptr, 60, &handle), SE_OK);
      CHECK_EQ(handle, 0);
      CHECK_EQ(x, static_cast<float>(me.size));
      me.WaitOk({SE_OK, pending});
      CHECK_EQ(b[4], 2.0f);
      CHECK_EQ(c[69999], static_cast<float>(me.size - 1) / 2);
      // Another name of the plan's is taken while it is in flight, and free after.
      me.RunOk(Asked("bucket", SE_BARRIER));
    }
    // In flight for certain as long as the others wait in the barrier.
    float alone = 1;
    void* memory[] = {&alone};
    int64_t handle = 0;
    if (me.rank == 0 && me.size > 1) {
      int64_t pending = 0;
      CHECK_EQ(se_plan_submit(scalar.plan, memory, memory, nullptr, 0, &pending), SE_OK);
      CHECK_EQ(se_plan_submit(scalar.plan, memory, memory, nullptr, 0, &handle), SE_DUPLICATE_NAME);
      CHECK_EQ(me.Run(Asked("scalar", SE_BARRIER)), SE_DUPLICATE_NAME);
      me.RunOk(Asked("go", SE_BARRIER));
      me.WaitOk({SE_OK, pending});
    } else {
      me.RunOk(Asked("go", SE_BARRIER));
      CHECK_EQ(se_plan_run(scalar.plan, memory, memory, nullptr, 60, &handle), SE_OK);
    }
    void* none[] = {nullptr};
    CHECK_EQ(se_plan_run(scalar.plan, none, none, nullptr, 60, &handle), SE_INVALID_ARGUMENT);
  });
}

// Work that was left to the next wait is still done when a peer waits for it.
void DeferredRequestsAreNotForgotten() {
  for (const Channel channel : {Channel::kShared, Channel::kStream}) {
    std::atomic<bool> done{false};
    RunRanks(2, {.channel = channel}, [&](Rank& me) {
      OwnedPlan plan(me, Asked("x", SE_ALLREDUCE).With(nullptr, nullptr, {100}));
      std::vector<float> x(100, 1);
      void* memory[] = {x.data()};
      int64_t handle = 0;
      CHECK_EQ(se_plan_run(plan.plan, memory, memory, nullptr, 60, &handle), SE_OK);
      if (me.rank == 0) {
        CHECK_EQ(se_plan_submit(plan.plan, memory, memory, nullptr, SE_DEFER, &handle), SE_OK);
        while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // never waits for it
        // The peer may be done a moment earlier.
        while (se_poll(me.engine, handle) == SE_IN_PROGRESS) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK_EQ(se_poll(me.engine, handle), SE_OK);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK_EQ(se_plan_run(plan.plan, memory, memory, nullptr, 60, &handle), SE_OK);
        done = true;
      }
      CHECK_EQ(x[99], 4.0f);
    });
  }
}

// A rank that is late by seconds: the others leave the rounds, and return.
void LatecomersAreWaitedFor() {
  for (const Channel channel : {Channel::kShared, Channel::kStream}) {
    RunRanks(3, {.channel = channel}, [](Rank& me) {
      for (int i = 0; i < 5; ++i) {
        std::vector<float> x(10, 1);
        if (i == 3 && me.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        me.RunOk(Asked("x", SE_ALLREDUCE).With(x.data(), x.data(), {10}));
        CHECK_EQ(x[9], 3.0f);
      }
    });
  }
}

// Tensors in shared memory are reduced where they are.
void ArenaTensors() {
  for (const int size : {2, 3, 4}) {
    RunRanks(size, {.channel = Channel::kShared}, [](Rank& me) {
      for (const int64_t count : {100, 100000, 1000003}) {
        void* data = nullptr;
        CHECK_EQ(se_shared_allocate(me.engine, count * 4, &data), SE_OK);
        auto* x = static_cast<float*>(data);
        for (int turn = 0; turn < 4; ++turn) {
          for (int64_t i = 0; i < count; ++i) x[i] = static_cast<float>(i % 97 + me.rank);
          me.RunOk(Asked("x" + std::to_string(count), SE_ALLREDUCE, SE_AVERAGE).With(x, x, {count}));
          for (int64_t i = 0; i < count; ++i) {
            CHECK_EQ(x[i], static_cast<float>(i % 97) + static_cast<float>(me.size - 1) / 2);
          }
        }
        se_shared_free(me.engine, data);
      }
    });
  }
  RunRanks(2, {.channel = Channel::kStream}, [](Rank& me) {
    void* data = nullptr;
    CHECK(se_shared_allocate(me.engine, 100, &data) != SE_OK);
  });
}

void TimelinesAndRecordsAreKept() {
  RunRanks(2, {}, [](Rank& me) {
    const std::string path =
        "/tmp/spark_estimator_trace_" + std::to_string(getpid()) + "_" + std::to_string(me.rank) + ".json";
    CHECK_EQ(se_timeline_start(me.engine, path.c_str(), 1), SE_OK);
    CHECK_EQ(se_timeline_start(me.engine, path.c_str(), 1), SE_INVALID_ARGUMENT);
    std::vector<float> x(100, 1);
    for (int i = 0; i < 3; ++i) me.RunOk(Asked("loss", SE_ALLREDUCE).With(x.data(), x.data(), {100}));
    CHECK_EQ(me.Wait(me.Broadcast("bad", me.rank, x.data(), x.data(), {4})), SE_MISMATCH);
    CHECK_EQ(se_timeline_stop(me.engine), SE_OK);
    CHECK_EQ(se_timeline_stop(me.engine), SE_OK);
    std::ifstream file(path);
    const std::string trace((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    CHECK_CONTAINS(trace, "NEGOTIATE_ALLREDUCE");
    CHECK_CONTAINS(trace, "allreduce.loss");
    unlink(path.c_str());
    int64_t bytes = 0;
    CHECK_EQ(se_describe(me.engine, "flight_recorder", nullptr, 0, &bytes), SE_OK);
    std::string text(static_cast<size_t>(bytes) + 1, '\0');
    CHECK_EQ(se_describe(me.engine, "flight_recorder", text.data(), bytes + 1, &bytes), SE_OK);
    CHECK_CONTAINS(text, "loss");
    CHECK_CONTAINS(text, "mismatch");
    CHECK_EQ(se_describe(me.engine, "algorithms", text.data(), 20, &bytes), SE_OK);
    CHECK_CONTAINS(text, "allreduce from 4");
    CHECK_EQ(se_describe(me.engine, "nonsense", nullptr, 0, &bytes), SE_INVALID_ARGUMENT);
  });
}

// The stall inspector asks the rank that is missing where it is.
void MissingRanksAreAsked() {
  std::atomic<bool> answered{false};
  RunRanks(2, {.stall_warning_seconds = 0.3}, [&](Rank& me) {
    std::vector<float> x(4, 1);
    if (me.rank == 0) {
      me.WaitOk(me.Allreduce("x", x.data(), x.data(), {4}));
      CHECK(answered);
    } else {
      int64_t question = 0;
      int32_t status = SE_IN_PROGRESS;
      for (int i = 0; i < 200 && status == SE_IN_PROGRESS; ++i) {
        status = se_await_question(me.engine, 0.1, &question);
      }
      CHECK_EQ(status, SE_OK);
      CHECK_EQ(se_answer(me.engine, question, "in the test of stalls"), SE_OK);
      answered = true;
      me.WaitOk(me.Allreduce("x", x.data(), x.data(), {4}));
      CHECK_EQ(se_await_question(me.engine, 0.01, &question), SE_IN_PROGRESS);
      CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
      CHECK_EQ(se_await_question(me.engine, 0.01, &question), SE_SHUT_DOWN);
    }
  });
}

}  // namespace

int main() {
  return RunTests({{"alltoalls", Alltoalls},
                   {"reducescatters", Reducescatters},
                   {"groups", Groups},
                   {"int8 allreduces", Int8Allreduces},
                   {"int8 is agreed on", Int8IsAgreedOn},
                   {"joins", Joins},
                   {"adasums", Adasums},
                   {"steady state", SteadyState},
                   {"order may differ", OrderMayDiffer},
                   {"shapes may change", ShapesMayChange},
                   {"plans", Plans},
                   {"deferred requests are not forgotten", DeferredRequestsAreNotForgotten},
                   {"latecomers are waited for", LatecomersAreWaitedFor},
                   {"arena tensors", ArenaTensors},
                   {"timelines and records are kept", TimelinesAndRecordsAreKept},
                   {"missing ranks are asked", MissingRanksAreAsked}});
}
