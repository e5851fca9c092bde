// The collectives over streams: every algorithm at every number of ranks, sizes around each limit, short writes.
#include "algorithms/streams/stream.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/streams/halves.h"
#include "algorithms/streams/list.h"
#include "algorithms/streams/ring.h"
#include "base/kernels/halves.h"
#include "stream_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

const std::vector<AllreduceAlgorithm> kAllreduces = {AllreduceAlgorithm::kExchange, AllreduceAlgorithm::kDoubling,
                                                     AllreduceAlgorithm::kHalving, AllreduceAlgorithm::kDirect,
                                                     AllreduceAlgorithm::kRing};

// Small whole numbers, so that sums are exact in every dtype.
double Value(int rank, size_t i) { return static_cast<double>((i * 7 + static_cast<size_t>(rank) * 3) % 11) - 5; }

double Reduced(int32_t reduce_op, int size, size_t i) {
  double all = Value(0, i);
  for (int r = 1; r < size; ++r) {
    const double next = Value(r, i);
    if (reduce_op == SE_SUM) all += next;
    if (reduce_op == SE_MIN) all = std::min(all, next);
    if (reduce_op == SE_MAX) all = std::max(all, next);
    if (reduce_op == SE_PRODUCT) all *= next;
  }
  return all;
}

void AllreduceSizes() {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (const AllreduceAlgorithm algorithm : kAllreduces) {
        for (const size_t n : {0, 1, 2, 5, 13, 63, 1000, 16385, 200001}) {
          if (n > 100000 && size > 5) continue;
          std::vector<float> in(n), out(n, -1), expected(n);
          for (size_t i = 0; i < n; ++i) {
            in[i] = static_cast<float>(Value(group.rank(), i));
            expected[i] = static_cast<float>(Reduced(SE_SUM, size, i));
          }
          const std::vector<float> before = in;
          CHECK_OK(StreamAllreduce(group, algorithm, in.data(), out.data(), n, SE_FLOAT32, SE_SUM, Finish{}));
          CHECK(out == expected);
          CHECK(in == before);
          CHECK_OK(StreamAllreduce(group, algorithm, in.data(), in.data(), n, SE_FLOAT32, SE_SUM, Finish{}));
          CHECK(in == expected);
        }
      }
    });
  }
}

void ShortWrites() {
  for (int size = 2; size <= 5; ++size) {
    RunStreamRanks(
        size,
        [&](StreamGroup& group) {
          for (const AllreduceAlgorithm algorithm : kAllreduces) {
            for (const size_t n : {5, 5000, 70003}) {
              std::vector<double> data(n);
              for (size_t i = 0; i < n; ++i) data[i] = Value(group.rank(), i);
              CHECK_OK(StreamAllreduce(group, algorithm, data.data(), data.data(), n, SE_FLOAT64, SE_SUM, Finish{}));
              for (size_t i = 0; i < n; ++i) CHECK_EQ(data[i], Reduced(SE_SUM, size, i));
            }
          }
        },
        4096);
  }
}

// Stripes end in the middle of elements and of messages.
void SeveralConnections() {
  for (const int socket_buffer_bytes : {0, 4096}) {
    RunStreamRanks(
        3,
        [&](StreamGroup& group) {
          for (const AllreduceAlgorithm algorithm : kAllreduces) {
            for (const size_t n : {1, 8193, 200001}) {
              std::vector<double> data(n);
              for (size_t i = 0; i < n; ++i) data[i] = Value(group.rank(), i);
              CHECK_OK(StreamAllreduce(group, algorithm, data.data(), data.data(), n, SE_FLOAT64, SE_SUM, Finish{}));
              for (size_t i = 0; i < n; ++i) CHECK_EQ(data[i], Reduced(SE_SUM, 3, i));
            }
          }
          CHECK_OK(StreamBarrier(group));
        },
        socket_buffer_bytes, 3);
  }
}

template <typename T>
void CheckDtype(StreamGroup& group, AllreduceAlgorithm algorithm, int32_t dtype, size_t n) {
  for (const int32_t op : {SE_SUM, SE_MIN, SE_MAX, SE_PRODUCT}) {
    std::vector<T> data(n);
    for (size_t i = 0; i < n; ++i) data[i] = static_cast<T>(static_cast<int64_t>(Value(group.rank(), i)));
    CHECK_OK(StreamAllreduce(group, algorithm, data.data(), data.data(), n, dtype, op, Finish{}));
    for (size_t i = 0; i < n; ++i) {
      // Narrow integers wrap, which the conversion of a whole number does as well; unsigned ones begin at 251.
      if (std::is_unsigned_v<T> && (op == SE_MIN || op == SE_MAX)) {
        T all = static_cast<T>(static_cast<int64_t>(Value(0, i)));
        for (int r = 1; r < group.size(); ++r) {
          const T next = static_cast<T>(static_cast<int64_t>(Value(r, i)));
          all = op == SE_MIN ? std::min(all, next) : std::max(all, next);
        }
        CHECK_EQ(+data[i], +all);
      } else {
        CHECK_EQ(+data[i], +static_cast<T>(static_cast<int64_t>(Reduced(op, group.size(), i))));
      }
    }
  }
}

void DtypesAndOps() {
  for (const int size : {2, 3, 5}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (const AllreduceAlgorithm algorithm : kAllreduces) {
        for (const size_t n : {5, 3001}) {
          CheckDtype<uint8_t>(group, algorithm, SE_UINT8, n);
          CheckDtype<int8_t>(group, algorithm, SE_INT8, n);
          CheckDtype<int16_t>(group, algorithm, SE_INT16, n);
          CheckDtype<int32_t>(group, algorithm, SE_INT32, n);
          CheckDtype<int64_t>(group, algorithm, SE_INT64, n);
          CheckDtype<float>(group, algorithm, SE_FLOAT32, n);
          CheckDtype<double>(group, algorithm, SE_FLOAT64, n);
          std::vector<uint8_t> bools(n), any(n), all(n);
          for (size_t i = 0; i < n; ++i) bools[i] = i % 3 == static_cast<size_t>(group.rank());
          CHECK_OK(StreamAllreduce(group, algorithm, bools.data(), any.data(), n, SE_BOOL, SE_SUM, Finish{}));
          CHECK_OK(StreamAllreduce(group, algorithm, bools.data(), all.data(), n, SE_BOOL, SE_PRODUCT, Finish{}));
          for (size_t i = 0; i < n; ++i) {
            CHECK_EQ(+any[i], i % 3 < static_cast<size_t>(group.size()) ? 1 : 0);
            CHECK_EQ(+all[i], 0);
          }
        }
      }
    });
  }
}

// The result of one rank with all values and one rounding, for every algorithm.
void HalvesAreRoundedOnce() {
  for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16}) {
    for (const int size : {2, 3, 4, 6, 8, 9}) {
      for (const size_t n : {size_t{7}, size_t{4001}}) {
        std::vector<std::vector<uint16_t>> inputs(static_cast<size_t>(size), std::vector<uint16_t>(n));
        std::vector<double> sums(n, 0);
        std::mt19937 random(7);
        for (auto& input : inputs) {
          for (size_t i = 0; i < n; ++i) {
            // Multiples of 1/4 below 512: exact in float16, their sums exact in float32, not in either half.
            float value = static_cast<float>(random() % 2048) / 4;
            if (dtype == SE_BFLOAT16) value = static_cast<float>(random() % 256);
            HalvesFromFloat32(dtype, &input[i], &value, 1);
            sums[i] += static_cast<double>(value);
          }
        }
        std::vector<uint16_t> expected(n);
        for (size_t i = 0; i < n; ++i) {
          const auto average = static_cast<float>(sums[i]) * static_cast<float>(1.0 / size);
          HalvesFromFloat32(dtype, &expected[i], &average, 1);
        }
        RunStreamRanks(size, [&](StreamGroup& group) {
          for (const AllreduceAlgorithm algorithm : kAllreduces) {
            std::vector<uint16_t> out(n);
            CHECK_OK(StreamAllreduce(group, algorithm, inputs[static_cast<size_t>(group.rank())].data(), out.data(), n,
                                     dtype, SE_SUM, Finish{1.0, size}));
            CHECK(out == expected);
          }
        });
      }
    }
  }
}

// An intermediate sum of these exceeds float16's largest number, the average does not.
void HalvesDoNotOverflow() {
  for (const int size : {2, 4, 5}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (const AllreduceAlgorithm algorithm : kAllreduces) {
        for (const size_t n : {size_t{1}, size_t{5000}}) {
          std::vector<uint16_t> data(n, 0x7bff);  // 65,504
          CHECK_OK(StreamAllreduce(group, algorithm, data.data(), data.data(), n, SE_FLOAT16, SE_SUM,
                                   Finish{1.0, group.size()}));
          for (const uint16_t value : data) CHECK_EQ(value, 0x7bff);
        }
      }
    });
  }
}

void HalvesConvert() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16}) {
      float value = 0;
      uint16_t back = 0;
      HalvesToFloat32(dtype, &value, &half, 1);
      HalvesFromFloat32(dtype, &back, &value, 1);
      const uint32_t infinity = dtype == SE_FLOAT16 ? 0x7c00 : 0x7f80;
      if ((bits & 0x7fff) > infinity) {
        CHECK(std::isnan(value) && (back & 0x7fff) > infinity);
      } else {
        CHECK_EQ(back, half);
      }
    }
    float smallest = 0;
    const uint16_t one_step = 1;
    HalvesToFloat32(SE_FLOAT16, &smallest, &one_step, 1);
    CHECK_EQ(smallest, 0x1p-24f);
  }
  const std::vector<std::pair<float, uint16_t>> rounded = {
      {65519.0f, 0x7bff}, {65520.0f, 0x7c00},       {0x1p-25f, 0},
      {0x1.8p-25f, 1},    {1.00048828125f, 0x3c00}, {-0.0f, 0x8000}};
  for (const auto& [value, expected] : rounded) {
    uint16_t half = 0;
    HalvesFromFloat32(SE_FLOAT16, &half, &value, 1);
    CHECK_EQ(half, expected);
  }
}

// The sum of floats depends on the order: all ranks must get the same bits.
void SameBitsEverywhere() {
  for (const AllreduceAlgorithm algorithm : kAllreduces) {
    for (const int size : {3, 4, 7}) {
      const size_t n = 4001;
      std::vector<std::vector<float>> results(static_cast<size_t>(size), std::vector<float>(n));
      RunStreamRanks(size, [&](StreamGroup& group) {
        std::mt19937 random(static_cast<unsigned>(group.rank()));
        std::vector<float>& data = results[static_cast<size_t>(group.rank())];
        for (float& value : data) value = static_cast<float>(random() % 100000) / 777.0f;
        CHECK_OK(StreamAllreduce(group, algorithm, data.data(), data.data(), n, SE_FLOAT32, SE_SUM, Finish{0.3, size}));
      });
      for (const auto& result : results) CHECK(result == results[0]);
    }
  }
}

void ChosenBySize() {
  for (const int size : {2, 3, 9}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (const size_t n : {1, 2000, 4096, 4097, 50000, 131072}) {
        std::vector<float> data(n, static_cast<float>(group.rank() + 1));
        CHECK_OK(StreamAllreduce(group, data.data(), data.data(), n, SE_FLOAT32, SE_SUM, Finish{}));
        for (const float value : data) CHECK_EQ(value, static_cast<float>(size * (size + 1) / 2));
      }
    });
  }
}

void Reducescatters() {
  for (int size = 1; size <= 6; ++size) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (const size_t unit : {0, 1, 3, 1000, 30000}) {
        std::vector<size_t> bytes_of;
        std::vector<size_t> start_of;
        size_t n = 0;
        for (int r = 0; r < size; ++r) {
          const size_t mine = r == 1 ? 0 : unit + static_cast<size_t>(r);  // rank 1 gets nothing
          start_of.push_back(n);
          bytes_of.push_back(mine * sizeof(int32_t));
          n += mine;
        }
        std::vector<int32_t> in(n);
        for (size_t i = 0; i < n; ++i) in[i] = static_cast<int32_t>(Value(group.rank(), i)) * 100;
        const auto me = static_cast<size_t>(group.rank());
        std::vector<int32_t> out(bytes_of[me] / sizeof(int32_t), -1);
        CHECK_OK(StreamReducescatter(group, in.data(), bytes_of, out.data(), SE_INT32, SE_SUM, Finish{1.0, size}));
        for (size_t i = 0; i < out.size(); ++i) {
          CHECK_EQ(out[i], static_cast<int32_t>(Reduced(SE_SUM, size, start_of[me] + i)) * 100 / size);
        }
      }
    });
  }
}

void Broadcasts() {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 11}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (const BroadcastAlgorithm algorithm :
           {BroadcastAlgorithm::kTree, BroadcastAlgorithm::kChain, BroadcastAlgorithm::kScatterAllgather}) {
        for (const size_t n : {0, 1, 10, 40000, 1000000}) {
          if (n > 100000 && size > 5) continue;
          for (int root = 0; root < size; ++root) {
            std::vector<uint8_t> data(n);
            for (size_t i = 0; i < n; ++i) data[i] = static_cast<uint8_t>(i * 31 + static_cast<size_t>(group.rank()));
            CHECK_OK(StreamBroadcast(group, algorithm, root, data.data(), n));
            for (size_t i = 0; i < n; ++i) {
              CHECK_EQ(+data[i], +static_cast<uint8_t>(i * 31 + static_cast<size_t>(root)));
            }
          }
        }
      }
    });
  }
}

void RaggedAllgathers() {
  for (const int size : {1, 2, 3, 4, 5, 6, 8, 9, 11}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (const AllgatherAlgorithm algorithm :
           {AllgatherAlgorithm::kExchange, AllgatherAlgorithm::kBruck, AllgatherAlgorithm::kRing}) {
        for (const size_t unit : {0, 1, 100, 50000}) {
          std::vector<size_t> bytes_of;
          std::vector<uint8_t> expected;
          for (int r = 0; r < size; ++r) {
            bytes_of.push_back(unit == 0 || r == 1 ? 0 : unit + static_cast<size_t>(r));
            for (size_t i = 0; i < bytes_of.back(); ++i) {
              expected.push_back(static_cast<uint8_t>(i * 13 + static_cast<size_t>(r) * 7));
            }
          }
          std::vector<uint8_t> in(bytes_of[static_cast<size_t>(group.rank())]);
          for (size_t i = 0; i < in.size(); ++i) {
            in[i] = static_cast<uint8_t>(i * 13 + static_cast<size_t>(group.rank()) * 7);
          }
          std::vector<uint8_t> out(expected.size(), 99);
          CHECK_OK(StreamAllgather(group, algorithm, in.data(), bytes_of, out.data()));
          CHECK(out == expected);
        }
      }
    });
  }
}

void RaggedAlltoalls() {
  for (const int size : {1, 2, 3, 5, 9, 10, 19}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (const size_t unit : {0, 3, 5000}) {
        const auto bytes_between = [&](int from, int to) {
          return unit == 0 ? 0 : (unit + static_cast<size_t>(from * 5 + to * 3)) * static_cast<size_t>((from + to) % 3);
        };
        const auto byte = [](int from, int to, size_t i) {
          return static_cast<uint8_t>(static_cast<size_t>(from * 16 + to) + i * 3);
        };
        std::vector<size_t> send_bytes;
        std::vector<size_t> receive_bytes;
        std::vector<uint8_t> in;
        std::vector<uint8_t> expected;
        for (int r = 0; r < size; ++r) {
          send_bytes.push_back(bytes_between(group.rank(), r));
          receive_bytes.push_back(bytes_between(r, group.rank()));
          for (size_t i = 0; i < send_bytes.back(); ++i) in.push_back(byte(group.rank(), r, i));
          for (size_t i = 0; i < receive_bytes.back(); ++i) expected.push_back(byte(r, group.rank(), i));
        }
        std::vector<uint8_t> out(expected.size());
        CHECK_OK(StreamAlltoall(group, in.data(), send_bytes, out.data(), receive_bytes));
        CHECK(out == expected);
      }
    });
  }
}

void Barriers() {
  for (int size = 1; size <= 9; ++size) {
    std::atomic<int> arrived{0};
    RunStreamRanks(size, [&](StreamGroup& group) {
      for (int round = 1; round <= 20; ++round) {
        ++arrived;
        CHECK_OK(StreamBarrier(group));
        CHECK(arrived.load() >= round * size);
        CHECK_OK(StreamBarrier(group));
      }
    });
  }
}

// Two rings across hosts at once, as the ranks of hosts form them, over the sockets of the whole group.
// Blocks end in the middle of tensors; the last list is shorter than a block.
void ListsInBlocks() {
  for (const int ranks : {2, 3}) {
    RunStreamRanks(ranks, [&](StreamGroup& group) {
      for (const AllreduceAlgorithm algorithm : {AllreduceAlgorithm::kRing, AllreduceAlgorithm::kDirect}) {
        for (const std::vector<size_t>& lengths : std::vector<std::vector<size_t>>{{3, 700001, 1, 5000}, {70000, 9}}) {
          std::vector<std::vector<double>> in, out;
          BufferList list;
          for (const size_t n : lengths) {
            in.emplace_back(n);
            out.emplace_back(n, -1);
            for (size_t i = 0; i < n; ++i) in.back()[i] = Value(group.rank(), i + n);
          }
          const std::vector<std::vector<double>> kept = in;
          for (size_t t = 0; t < in.size(); ++t) list.Add(in[t].data(), out[t].data(), in[t].size() * sizeof(double));
          CHECK_OK(StreamListAllreduce(group, algorithm, list, SE_FLOAT64, SE_SUM, Finish{}));
          CHECK(in == kept);
          BufferList in_place;
          for (auto& tensor : in) in_place.Add(tensor.data(), tensor.data(), tensor.size() * sizeof(double));
          CHECK_OK(StreamListAllreduce(group, algorithm, in_place, SE_FLOAT64, SE_SUM, Finish{}));
          CHECK(in == out);
          for (size_t t = 0; t < in.size(); ++t) {
            for (size_t i = 0; i < in[t].size(); ++i) CHECK_EQ(in[t][i], Reduced(SE_SUM, ranks, i + in[t].size()));
          }
        }
      }
      std::vector<uint16_t> halves(1500001);
      const auto value = static_cast<float>(group.rank() + 1);
      for (uint16_t& half : halves) HalvesFromFloat32(SE_BFLOAT16, &half, &value, 1);
      BufferList list;
      list.Add(halves.data(), halves.data(), 14);
      list.Add(halves.data() + 7, halves.data() + 7, (halves.size() - 7) * sizeof(uint16_t));
      CHECK_OK(StreamListAllreduce(group, AllreduceAlgorithm::kDirect, list, SE_BFLOAT16, SE_SUM, Finish{1.0, 2}));
      const float expected = ranks == 2 ? 1.5f : 3.0f;
      for (const uint16_t half : halves) {
        float result = 0;
        HalvesToFloat32(SE_BFLOAT16, &result, &half, 1);
        CHECK_EQ(result, expected);
      }
      CHECK_EQ(StreamListAllreduce(group, AllreduceAlgorithm::kDoubling, list, SE_BFLOAT16, SE_SUM, Finish{}).code(),
               SE_INTERNAL);
    });
  }
}

// Rank 0 advances its part before the others have begun, and again once it is complete.
void OperationsAdvanceWithoutWaiting() {
  constexpr size_t kCount = 300007;
  for (const int ranks : {2, 3}) {
    for (const auto& [dtype, in_ring] :
         std::vector<std::pair<int32_t, bool>>{{SE_FLOAT32, true}, {SE_BFLOAT16, false}, {SE_BFLOAT16, true}}) {
      std::atomic<bool> advanced{false};
      RunStreamRanks(ranks, [&, dtype = dtype, in_ring = in_ring](StreamGroup& group) {
        std::vector<float> values(kCount);
        for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 100 + static_cast<size_t>(group.rank()));
        std::vector<uint16_t> halves(kCount);
        auto* data = reinterpret_cast<uint8_t*>(values.data());
        auto* results = reinterpret_cast<uint8_t*>(halves.data());
        while (group.rank() != 0 && !advanced) std::this_thread::yield();
        const auto operation =
            dtype == SE_FLOAT32
                ? BeginRingAllreduce(group, data, data, kCount, dtype, SE_SUM, Finish{})
                : BeginHalvesAllreduce(group, values.data(), results, kCount, dtype, SE_SUM, Finish{}, in_ring);
        if (group.rank() == 0) {
          CHECK_OK(operation->Advance());
          CHECK(group.bytes_moved() > 0);
          CHECK(!operation->done());
          advanced = true;
        }
        CHECK_OK(operation->Complete());
        CHECK(operation->done());
        CHECK_OK(operation->Advance());
        if (dtype != SE_FLOAT32) HalvesToFloat32(dtype, values.data(), halves.data(), kCount);
        for (size_t i = 0; i < kCount; ++i) {
          const auto sum = static_cast<float>(i % 100 * static_cast<size_t>(ranks)) + (ranks == 2 ? 1.0f : 3.0f);
          if (dtype == SE_FLOAT32) {
            CHECK_EQ(values[i], sum);
          } else {
            CHECK(std::abs(values[i] - sum) <= sum / 256);
          }
        }
      });
    }
  }
}

void PartsOfAGroup() {
  RunStreamRanks(6, [&](StreamGroup& group) {
    std::vector<int> members;
    for (int rank = group.rank() % 2; rank < 6; rank += 2) members.push_back(rank);
    SubGroup part(&group, members);
    CHECK_EQ(part.rank(), group.rank() / 2);
    CHECK_EQ(part.size(), 3);
    for (const AllreduceAlgorithm algorithm : kAllreduces) {
      std::vector<int64_t> data(10000, int64_t{1} << (8 * group.rank()));
      CHECK_OK(StreamAllreduce(part, algorithm, data.data(), data.data(), data.size(), SE_INT64, SE_SUM, Finish{}));
      int64_t expected = 0;
      for (const int rank : members) expected += int64_t{1} << (8 * rank);
      for (const int64_t value : data) CHECK_EQ(value, expected);
    }
    CHECK_EQ(part.bytes_moved(), group.bytes_moved());
    CHECK(part.bytes_moved() > 0);
  });
}

void ALostPeerIsAnError() {
  auto sockets = ConnectAll(2);
  sockets[1][0] = UniqueFd();
  AlwaysAlive alive;
  SocketGroup group(0, std::move(sockets[0]), &alive);
  float value = 1;
  const Status status = StreamAllreduce(group, &value, &value, 1, SE_FLOAT32, SE_SUM, Finish{});
  CHECK_EQ(status.code(), SE_PEER_LOST);
  CHECK_CONTAINS(status.message(), "rank 1");
}

class Dying : public Liveness {
 public:
  Status Check() override { return Status(SE_PEER_LOST, "rank 1 died"); }
};

// No data arrives and no connection ends: only the liveness check can end the wait.
void AWaitAsksForLiveness() {
  auto sockets = ConnectAll(2);
  Dying dying;
  SocketGroup group(0, std::move(sockets[0]), &dying);
  const Status status = StreamBarrier(group);
  CHECK_EQ(status.code(), SE_PEER_LOST);
  CHECK_CONTAINS(status.message(), "rank 1 died");
}

class Naming : public Liveness {
 public:
  Status Check() override { return Status::Ok(); }
  std::string NameOf(int rank) const override { return "rank " + std::to_string(rank + 6) + " on there"; }
};

// A rank of a process set has another number in the job, and users know that one.
void ABrokenLinkIsNamedAsItsOwnerNamesIt() {
  auto sockets = ConnectAll(2);
  Naming naming;
  SocketGroup group(0, std::move(sockets[0]), &naming);
  sockets[1].clear();
  uint8_t byte = 0;
  size_t moved = 0;
  CHECK_CONTAINS(group.TryReceive(1, &byte, 1, &moved).message(), "receiving from rank 7 on there failed");
  Status status = Status::Ok();
  while (status.ok()) status = group.TrySend(1, &byte, 1, &moved);
  CHECK_CONTAINS(status.message(), "sending to rank 7 on there failed");
}

void WrongAlgorithmsAreRefused() {
  RunStreamRanks(2, [&](StreamGroup& group) {
    float value = 1;
    CHECK_EQ(StreamAllreduce(group, AllreduceAlgorithm::kSharedOneShot, &value, &value, 1, SE_FLOAT32, SE_SUM, Finish{})
                 .code(),
             SE_INTERNAL);
    CHECK_EQ(StreamBroadcast(group, BroadcastAlgorithm::kShared, 0, &value, 4).code(), SE_INTERNAL);
    const std::vector<size_t> bytes_of = {4, 4};
    float both[2];
    CHECK_EQ(StreamAllgather(group, AllgatherAlgorithm::kShared, &value, bytes_of, both).code(), SE_INTERNAL);
  });
}

}  // namespace

int main() {
  return RunTests({{"allreduce sizes", AllreduceSizes},
                   {"short writes", ShortWrites},
                   {"several connections", SeveralConnections},
                   {"dtypes and ops", DtypesAndOps},
                   {"halves are rounded once", HalvesAreRoundedOnce},
                   {"halves do not overflow", HalvesDoNotOverflow},
                   {"halves convert", HalvesConvert},
                   {"same bits everywhere", SameBitsEverywhere},
                   {"chosen by size", ChosenBySize},
                   {"reducescatters", Reducescatters},
                   {"broadcasts", Broadcasts},
                   {"ragged allgathers", RaggedAllgathers},
                   {"ragged alltoalls", RaggedAlltoalls},
                   {"barriers", Barriers},
                   {"lists in blocks", ListsInBlocks},
                   {"operations advance without waiting", OperationsAdvanceWithoutWaiting},
                   {"parts of a group", PartsOfAGroup},
                   {"a lost peer is an error", ALostPeerIsAnError},
                   {"a wait asks for liveness", AWaitAsksForLiveness},
                   {"a broken link is named as its owner names it", ABrokenLinkIsNamedAsItsOwnerNamesIt},
                   {"wrong algorithms are refused", WrongAlgorithmsAreRefused}});
}
