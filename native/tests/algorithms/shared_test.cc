// The collectives inside one host: every op, dtype and size against plain arithmetic, in place, in lists, in any order.
#include "algorithms/shared.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "shared_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

// ThreadSanitizer makes every access a call: the same paths, less often and with less data.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

// Below and above the limits of the algorithms: nothing, one-shot, one block, several blocks, more than there are
// slots.
const std::vector<size_t> kCounts =
    kSlow ? std::vector<size_t>{0, 3, 2048, 2049, 70001, 300007}
          : std::vector<size_t>{0, 1, 3, 17, 2047, 2048, 2049, 4097, 20000, 70001, 300007, 1500001};

// Small whole numbers, so that sums are exact.
float Value(int rank, size_t i) { return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 11) - 5; }
float SumAt(int size, size_t i) {
  float sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += Value(rank, i);
  return sum;
}
std::vector<float> Values(int rank, size_t count, size_t start = 0) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, start + i);
  return values;
}
std::vector<float> Sums(int size, size_t count, size_t start = 0) {
  std::vector<float> sums(count);
  for (size_t i = 0; i < count; ++i) sums[i] = SumAt(size, start + i);
  return sums;
}

Status Allreduce(SharedGroup& group, std::vector<float>& in, std::vector<float>& out, Finish finish = {}) {
  BufferList list;
  list.Add(in.data(), out.data(), in.size() * 4);
  return SharedAllreduce(group, list, SE_FLOAT32, SE_SUM, finish);
}

void Allreduces() {
  for (int size = 1; size <= 5; ++size) {
    RunSharedRanks(size, {}, [](SharedRank& me) {
      for (const size_t count : kCounts) {
        std::vector<float> in = Values(me.rank(), count), out(count, -1);
        const std::vector<float> expected = Sums(me.size(), count);
        CheckOk(Allreduce(me.group, in, out));
        CHECK(out == expected);
        CHECK(in == Values(me.rank(), count));  // the input is left alone
        CheckOk(Allreduce(me.group, in, in));
        CHECK(in == expected);
      }
    });
  }
}

// Tensors of all sizes in one op, at addresses that are aligned to their elements only.
void Lists() {
  for (int size = 1; size <= 4; ++size) {
    RunSharedRanks(size, {}, [](SharedRank& me) {
      for (const auto& counts : std::vector<std::vector<size_t>>{
               {1, 0, 3}, {0, 0}, {5000, 1, 70000, 0, 13, 200000}, std::vector<size_t>(300, 777), {1000003, 1}}) {
        for (const bool in_place : {true, false}) {
          std::vector<std::vector<float>> ins, outs;
          for (const size_t n : counts) ins.push_back(Values(me.rank(), n + 1, n));
          for (const size_t n : counts) outs.push_back(std::vector<float>(n + 1, -1));
          BufferList list;
          for (size_t k = 0; k < counts.size(); ++k) {
            list.Add(&ins[k][1], in_place ? &ins[k][1] : &outs[k][1], counts[k] * 4);
          }
          CheckOk(SharedAllreduce(me.group, list, SE_FLOAT32, SE_SUM, Finish{}));
          for (size_t k = 0; k < counts.size(); ++k) {
            const std::vector<float>& out = in_place ? ins[k] : outs[k];
            for (size_t i = 1; i <= counts[k]; ++i) CHECK_EQ(out[i], SumAt(me.size(), counts[k] + i));
          }
        }
      }
    });
  }
}

// One dtype and reduce op through all three ways of reducing, against the kernel that the kernels' test has checked.
void ReduceEveryWay(SharedRank& me, int32_t dtype, int32_t op, size_t count, Finish finish) {
  const size_t element = DtypeBytes(dtype);
  const size_t bytes = count * element;
  std::vector<std::vector<uint8_t>> inputs;
  for (int rank = 0; rank < me.size(); ++rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 77);
    std::vector<uint8_t> data(bytes);
    for (size_t i = 0; i < bytes; ++i) {
      // Floating point of the order of one: the sign and most of the exponent are fixed.
      const bool top = i % element == element - 1;
      data[i] = static_cast<uint8_t>(dtype >= SE_FLOAT16 && dtype <= SE_FLOAT64 && top ? 0x3f - (random() & 4)
                                     : dtype == SE_BOOL                                ? random() % 2
                                                                                       : random());
    }
    inputs.push_back(std::move(data));
  }
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<uint8_t> expected(bytes);
  GetKernels().combine(dtype, op, expected.data(), sources.data(), me.size(), count, finish);

  const auto mine = static_cast<size_t>(me.rank());
  std::vector<uint8_t> reduced = inputs[mine];
  BufferList list;
  list.Add(reduced.data(), reduced.data(), bytes);
  CheckOk(SharedAllreduce(me.group, list, dtype, op, finish));
  CHECK(reduced == expected);

  std::vector<uint8_t*> seen;
  uint8_t* shared = me.AllocateShared(bytes, &seen);
  std::memcpy(shared, inputs[mine].data(), bytes);
  CheckOk(SymmetricAllreduce(me.group, seen, bytes, dtype, op, finish));
  CHECK(std::memcmp(shared, expected.data(), bytes) == 0);
  CheckOk(SharedBarrier(me.group));  // before it is freed, all have read it
  CheckOk(me.arena->Free(shared));

  // The two halves of an allreduce, in place.
  const std::vector<size_t> shares = SharesOf(bytes, element, me.size());
  size_t start = 0;
  for (size_t rank = 0; rank < mine; ++rank) start += shares[rank];
  std::vector<uint8_t> halves = inputs[mine];
  CheckOk(SharedReducescatter(me.group, halves.data(), shares, halves.data() + start, dtype, op, finish));
  CHECK(std::memcmp(halves.data() + start, expected.data() + start, shares[mine]) == 0);
  CheckOk(SharedAllgather(me.group, halves.data() + start, shares, halves.data()));
  CHECK(halves == expected);
}

void DtypesAndReduceOps() {
  for (const int size : kSlow ? std::vector<int>{2, 5} : std::vector<int>{1, 2, 3, 4, 5}) {
    RunSharedRanks(size, {}, [](SharedRank& me) {
      for (int32_t dtype = SE_UINT8; dtype <= SE_UINT16; ++dtype) {
        for (const int32_t op : {SE_SUM, SE_MIN, SE_MAX, SE_PRODUCT}) {
          for (const size_t count : {size_t{5}, size_t{1001}, size_t{kSlow ? 20001 : 70001}}) {
            ReduceEveryWay(me, dtype, op, count, Finish{});
            if (op == SE_SUM && dtype != SE_BOOL) ReduceEveryWay(me, dtype, op, count, Finish{0.5, me.size()});
          }
        }
      }
    });
  }
}

// The sum of floats depends on the order: all ranks must get the same bits, however often.
void SameBitsEverywhere() {
  std::vector<std::vector<float>> results(4);
  RunSharedRanks(4, {}, [&](SharedRank& me) {
    std::mt19937 random(static_cast<unsigned>(me.rank()));
    std::vector<float> data(100003);
    for (float& value : data) value = static_cast<float>(random() % 100000) / 777.0f;
    CheckOk(Allreduce(me.group, data, data, Finish{1.0, 4}));
    results[static_cast<size_t>(me.rank())] = data;
  });
  for (size_t rank = 1; rank < 4; ++rank) {
    CHECK(std::memcmp(results[0].data(), results[rank].data(), results[0].size() * 4) == 0);
  }
}

void Broadcasts() {
  for (int size = 1; size <= 5; ++size) {
    RunSharedRanks(size, {}, [](SharedRank& me) {
      for (const size_t count : kCounts) {
        for (int root = 0; root < me.size(); root += 2) {
          std::vector<float> in = Values(me.rank(), count), out(count, -99);
          CheckOk(SharedBroadcast(me.group, root, in.data(), out.data(), count * 4));
          CHECK(out == Values(root, count));
          CHECK(in == Values(me.rank(), count));
          CheckOk(SharedBroadcast(me.group, root, in.data(), in.data(), count * 4));
          CHECK(in == Values(root, count));
        }
      }
    });
  }
}

// How many elements rank `from` gives to rank `to`: uneven, sometimes none.
size_t Given(int from, int to, size_t count) {
  return (from + to) % 3 == 1 ? 0 : count / static_cast<size_t>(1 + (from * 2 + to) % 4) + static_cast<size_t>(to);
}

void Allgathers() {
  for (int size = 1; size <= 5; ++size) {
    RunSharedRanks(size, {}, [](SharedRank& me) {
      for (const size_t count : kCounts) {
        std::vector<size_t> bytes_of;
        std::vector<float> expected;
        for (int rank = 0; rank < me.size(); ++rank) {
          const std::vector<float> part = Values(rank, count == 0 ? 0 : Given(rank, 0, count));
          bytes_of.push_back(part.size() * 4);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        const auto mine = static_cast<size_t>(me.rank());
        const std::vector<float> in = Values(me.rank(), bytes_of[mine] / 4);
        std::vector<float> out(expected.size(), -1);
        CheckOk(SharedAllgather(me.group, in.data(), bytes_of, out.data()));
        CHECK(out == expected);
        std::fill(out.begin(), out.end(), -1.0f);
        size_t start = 0;
        for (size_t rank = 0; rank < mine; ++rank) start += bytes_of[rank] / 4;
        std::copy(in.begin(), in.end(), out.begin() + static_cast<std::ptrdiff_t>(start));
        CheckOk(SharedAllgather(me.group, out.data() + start, bytes_of, out.data()));
        CHECK(out == expected);
      }
    });
  }
}

void Alltoalls() {
  for (int size = 1; size <= 5; ++size) {
    RunSharedRanks(size, {}, [](SharedRank& me) {
      const auto ranks = static_cast<size_t>(me.size());
      for (const size_t count : kCounts) {
        std::vector<size_t> send(ranks), receive(ranks);
        std::vector<float> in, expected;
        size_t largest = 0;
        for (int from = 0; from < me.size(); ++from) {
          for (int to = 0; to < me.size(); ++to) {
            const size_t given = count == 0 ? 0 : Given(from, to, count);
            largest = std::max(largest, given * 4);
            // Data from a to b begins with a value that only this pair has.
            const std::vector<float> part = Values(from, given, static_cast<size_t>(to) * 5);
            if (from == me.rank()) {
              send[static_cast<size_t>(to)] = given * 4;
              in.insert(in.end(), part.begin(), part.end());
            }
            if (to == me.rank()) {
              receive[static_cast<size_t>(from)] = given * 4;
              expected.insert(expected.end(), part.begin(), part.end());
            }
          }
        }
        std::vector<float> out(expected.size(), -1);
        CheckOk(SharedAlltoall(me.group, in.data(), send, receive, largest, out.data()));
        CHECK(out == expected);

        const std::vector<size_t> even(ranks, count * 4);
        std::vector<float> both, exchanged;
        for (int peer = 0; peer < me.size(); ++peer) {
          const std::vector<float> to = Values(me.rank(), count, static_cast<size_t>(peer) * 5);
          const std::vector<float> from = Values(peer, count, static_cast<size_t>(me.rank()) * 5);
          both.insert(both.end(), to.begin(), to.end());
          exchanged.insert(exchanged.end(), from.begin(), from.end());
        }
        CheckOk(SharedAlltoall(me.group, both.data(), even, even, count * 4, both.data()));
        CHECK(both == exchanged);
      }
    });
  }
}

void Reducescatters() {
  for (int size = 1; size <= 5; ++size) {
    RunSharedRanks(size, {}, [](SharedRank& me) {
      const auto mine = static_cast<size_t>(me.rank());
      for (const size_t count : kCounts) {
        for (const bool even : {true, false}) {
          std::vector<size_t> bytes_of = SharesOf(count * 4, 4, me.size());
          if (!even) {  // any division that all agree on
            for (int rank = 0; rank < me.size(); ++rank)
              bytes_of[static_cast<size_t>(rank)] = Given(rank, 1, count) * 4;
          }
          size_t total = 0, start = 0;
          for (size_t rank = 0; rank < bytes_of.size(); ++rank) {
            if (rank < mine) start += bytes_of[rank] / 4;
            total += bytes_of[rank] / 4;
          }
          const std::vector<float> in = Values(me.rank(), total);
          std::vector<float> out(bytes_of[mine] / 4, -1);
          CheckOk(SharedReducescatter(me.group, in.data(), bytes_of, out.data(), SE_FLOAT32, SE_SUM, Finish{}));
          CHECK(out == Sums(me.size(), out.size(), start));
          CHECK(in == Values(me.rank(), total));
        }
      }
    });
  }
}

void Shares() {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{5}, size_t{64}, size_t{1001}}) {
    for (const int size : {1, 2, 3, 7}) {
      const std::vector<size_t> shares = SharesOf(count * 8, 8, size);
      CHECK_EQ(shares.size(), static_cast<size_t>(size));
      size_t total = 0;
      for (const size_t share : shares) {
        CHECK_EQ(share % 8, 0u);
        CHECK(share <= shares[0] && share + 8 >= shares[0]);
        total += share;
      }
      CHECK_EQ(total, count * 8);
    }
  }
}

// Several tensors of the arenas in one op, at odd places in them.
void TensorsInArenas() {
  for (int size = 1; size <= 4; ++size) {
    RunSharedRanks(size, {}, [](SharedRank& me) {
      for (int round = 0; round < 3; ++round) {
        const std::vector<size_t> counts = {7, 0, 100001, 1, 4096, 33};
        std::vector<uint8_t*> seen;
        std::vector<size_t> bytes_of;
        std::vector<uint8_t*> own;
        for (const size_t count : counts) {
          std::vector<uint8_t*> places;
          own.push_back(me.AllocateShared((count + 3) * 4, &places));
          for (uint8_t* place : places) seen.push_back(place + 12);
          bytes_of.push_back(count * 4);
          const std::vector<float> values = Values(me.rank(), count, count);
          if (count > 0) std::memcpy(own.back() + 12, values.data(), count * 4);
        }
        CheckOk(SymmetricAllreduce(me.group, seen, bytes_of, SE_FLOAT32, SE_SUM, Finish{}));
        for (size_t k = 0; k < counts.size(); ++k) {
          const std::vector<float> sums = Sums(me.size(), counts[k], counts[k]);
          CHECK(counts[k] == 0 || std::memcmp(own[k] + 12, sums.data(), counts[k] * 4) == 0);
        }
        CheckOk(SharedBarrier(me.group));
        for (uint8_t* data : own) CheckOk(me.arena->Free(data));
      }
    });
  }
}

void Barriers() {
  for (int size = 1; size <= 5; ++size) {
    std::atomic<int> arrived{0};
    RunSharedRanks(size, {}, [&](SharedRank& me) {
      for (int round = 1; round <= (kSlow ? 50 : 200); ++round) {
        ++arrived;
        CheckOk(SharedBarrier(me.group));
        CHECK(arrived.load() >= round * me.size());
        CheckOk(SharedBarrier(me.group));
      }
    });
  }
}

// Random ops, sizes and roots one after another, in which ranks play different parts: the flags must be consistent
// after any sequence, also where the counters wrap, and for all ways of waiting.
void AnyOrder() {
  for (int size = 2; size <= 5; ++size) {
    for (const SharedOptions& options : {SharedOptions{.first_number = 0xffffff00u}, SharedOptions{.cores = 8},
                                         SharedOptions{.cores = 8, .spin_microseconds = 0}}) {
      RunSharedRanks(size, options, [&](SharedRank& me) {
        std::mt19937 random(static_cast<unsigned>(size));  // the same on all ranks
        for (int turn = 0; turn < (kSlow ? 60 : 300); ++turn) {
          const size_t count = random() % 4 == 0 ? random() % 200000 : random() % 5000;
          const int root = static_cast<int>(random() % static_cast<unsigned>(size));
          const size_t start = random() % 1000;
          const auto mine = static_cast<size_t>(me.rank());
          std::vector<float> data = Values(me.rank(), count, start);
          const auto ranks = static_cast<size_t>(size);
          switch (random() % 5) {
            case 0:
              CheckOk(Allreduce(me.group, data, data));
              CHECK(data == Sums(size, count, start));
              break;
            case 1:
              CheckOk(SharedBroadcast(me.group, root, data.data(), data.data(), count * 4));
              CHECK(data == Values(root, count, start));
              break;
            case 2: {
              std::vector<float> all(count * ranks);
              CheckOk(SharedAllgather(me.group, data.data(), std::vector<size_t>(ranks, count * 4), all.data()));
              for (int rank = 0; rank < size; ++rank) {
                const std::vector<float> expected = Values(rank, count, start);
                CHECK(count == 0 ||
                      std::memcmp(&all[static_cast<size_t>(rank) * count], expected.data(), count * 4) == 0);
              }
              break;
            }
            case 3: {
              const std::vector<size_t> shares = SharesOf(count * 4, 4, size);
              std::vector<float> out(shares[mine] / 4);
              CheckOk(SharedReducescatter(me.group, data.data(), shares, out.data(), SE_FLOAT32, SE_SUM, Finish{}));
              size_t before = 0;
              for (size_t rank = 0; rank < mine; ++rank) before += shares[rank] / 4;
              CHECK(out == Sums(size, out.size(), start + before));
              break;
            }
            default: {
              std::vector<float> in, out(count * ranks), expected;
              for (int peer = 0; peer < size; ++peer) {
                const std::vector<float> to = Values(me.rank(), count, start + static_cast<size_t>(peer));
                const std::vector<float> from = Values(peer, count, start + mine);
                in.insert(in.end(), to.begin(), to.end());
                expected.insert(expected.end(), from.begin(), from.end());
              }
              const std::vector<size_t> even(ranks, count * 4);
              CheckOk(SharedAlltoall(me.group, in.data(), even, even, count * 4, out.data()));
              CHECK(out == expected);
            }
          }
        }
      });
    }
  }
}

// A rank that never arrives: every op of the others ends with the error of liveness.
void APeerIsLost() {
  for (int op = 0; op < 7; ++op) {
    for (const size_t count : {size_t{10}, size_t{100000}}) {
      RunSharedRanks(3, {}, [&](SharedRank& me) {
        if (me.rank() == 2) return;
        me.life.gone = true;
        std::vector<float> in(count * 3), out(count * 3);
        const std::vector<size_t> bytes_of(3, count * 4);
        std::vector<uint8_t*> seen;
        BufferList list;
        list.Add(in.data(), out.data(), count * 4);
        Status status;
        switch (op) {
          case 0:
            status = SharedAllreduce(me.group, list, SE_FLOAT32, SE_SUM, Finish{});
            break;
          case 1:
            status = SharedBroadcast(me.group, 2, in.data(), out.data(), count * 4);
            break;
          case 2:
            status = SharedAllgather(me.group, in.data(), bytes_of, out.data());
            break;
          case 3:
            status = SharedReducescatter(me.group, in.data(), bytes_of, out.data(), SE_FLOAT32, SE_SUM, Finish{});
            break;
          case 4:
            status = SharedAlltoall(me.group, in.data(), bytes_of, bytes_of, count * 4, out.data());
            break;
          case 5:
            me.AllocateShared(count * 4, &seen);
            status = SymmetricAllreduce(me.group, seen, count * 4, SE_FLOAT32, SE_SUM, Finish{});
            break;
          default:
            status = SharedBarrier(me.group);
        }
        CHECK_EQ(status.code(), SE_PEER_LOST);
      });
    }
  }
}

}  // namespace

int main() {
  return RunTests({{"allreduces", Allreduces},
                   {"lists", Lists},
                   {"dtypes and reduce ops", DtypesAndReduceOps},
                   {"same bits everywhere", SameBitsEverywhere},
                   {"broadcasts", Broadcasts},
                   {"allgathers", Allgathers},
                   {"alltoalls", Alltoalls},
                   {"reducescatters", Reducescatters},
                   {"shares", Shares},
                   {"tensors in arenas", TensorsInArenas},
                   {"barriers", Barriers},
                   {"any order", AnyOrder},
                   {"a peer is lost", APeerIsLost}});
}
