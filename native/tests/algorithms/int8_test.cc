// Allreduces in int8 over streams: sums and residues against float64, ragged parts, short writes, values that are lost.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>
#include <vector>

#include "algorithms/int8/stream.h"
#include "base/kernels/int8_block.h"
#include "stream_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

// A rank's tensors: values, what they owe, and what they are apart from that.
struct Tensor {
  std::vector<float> values;
  std::vector<float> result;
  std::vector<float> residue;
  bool in_place = false;
  bool exact = false;

  Int8Part Part() {
    float* output = in_place ? values.data() : result.data();
    return {values.data(), output, residue.empty() ? nullptr : residue.data(), values.size(), exact};
  }
  const std::vector<float>& Result() const { return in_place ? values : result; }
};

std::vector<Int8Part> PartsOf(std::vector<Tensor>& tensors) {
  std::vector<Int8Part> parts;
  for (Tensor& tensor : tensors) parts.push_back(tensor.Part());
  return parts;
}

std::vector<Tensor> Tensors(const std::vector<size_t>& sizes) {
  std::vector<Tensor> tensors(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    tensors[i].values.resize(sizes[i]);
    tensors[i].result.resize(sizes[i]);
    tensors[i].exact = i % 3 == 2;
    tensors[i].in_place = i % 2 == 0;
    if (!tensors[i].exact) tensors[i].residue.resize(sizes[i]);
  }
  return tensors;
}

constexpr float kPrescale = 0.5f;
constexpr double kFactor = 4.0;

// Over some steps: each rank's received values equal all sent values minus the residues; the same bits on all ranks.
void CheckSums(int size, const std::vector<size_t>& sizes, int socket_buffer_bytes = 0) {
  std::vector<std::vector<double>> balance(sizes.size());
  std::vector<std::vector<float>> last(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) balance[i].resize(sizes[i]);
  std::mutex mutex;
  RunStreamRanks(
      size,
      [&](StreamGroup& group) {
        std::vector<Tensor> tensors = Tensors(sizes);
        std::mt19937 random(static_cast<unsigned>(group.rank()) + 1);
        std::normal_distribution<float> normal;
        for (int step = 0; step < 3; ++step) {
          std::vector<std::vector<float>> given;
          for (Tensor& tensor : tensors) {
            for (float& value : tensor.values) value = normal(random);
            given.push_back(tensor.values);
          }
          CHECK_OK(Int8Allreduce(group, PartsOf(tensors), kPrescale, Finish{kFactor, 1}));
          const std::lock_guard<std::mutex> lock(mutex);
          for (size_t t = 0; t < sizes.size(); ++t) {
            for (size_t i = 0; i < sizes[t]; ++i) {
              balance[t][i] += static_cast<double>(given[t][i]) * kPrescale;
              if (group.rank() == 0) balance[t][i] -= tensors[t].Result()[i] / kFactor;
              if (step == 2 && !tensors[t].exact) balance[t][i] -= tensors[t].residue[i];
            }
          }
        }
        const std::lock_guard<std::mutex> lock(mutex);
        for (size_t t = 0; t < sizes.size(); ++t) {
          if (last[t].empty()) last[t] = tensors[t].Result();
          CHECK(last[t] == tensors[t].Result());
          for (const float owed : tensors[t].residue) CHECK(std::abs(owed) < 0.05 * size);
        }
      },
      socket_buffer_bytes);
  for (const std::vector<double>& of_tensor : balance) {
    for (const double value : of_tensor) CHECK(std::abs(value) < 1e-4);
  }
}

void Sums() {
  for (const int size : {2, 3, 4, 5, 8}) {
    for (const std::vector<size_t>& sizes :
         {std::vector<size_t>{1}, {0, 3, 5}, {255, 257, 256}, {1000, 3, 40, 0, 7}, {70001, 13, 3001, 1}}) {
      CheckSums(size, sizes);
    }
  }
}

void ShortWrites() {
  for (const int size : {2, 3, 5}) CheckSums(size, {100003, 17, 4000}, 4096);
}

void Nothing() {
  RunStreamRanks(3, [](StreamGroup& group) { CHECK_OK(Int8Allreduce(group, {}, 1.0f, Finish{})); });
}

// A value that one rank cannot encode in int8 is NaN on all, has no residue on any, and does not change the blocks
// beside it.
void ValuesThatAreNotFinite() {
  for (const int size : {2, 3, 4}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      std::vector<Tensor> tensors = Tensors({20000});
      for (size_t i = 0; i < 20000; ++i) tensors[0].values[i] = static_cast<float>(i % 100) + 0.3f;
      if (group.rank() == 1) tensors[0].values[5000] = std::numeric_limits<float>::infinity();
      if (group.rank() == 0) tensors[0].values[9000] = std::numeric_limits<float>::max();
      if (group.rank() == 1) tensors[0].values[9000] = std::numeric_limits<float>::max();
      CHECK_OK(Int8Allreduce(group, PartsOf(tensors), 1.0f, Finish{}));
      for (size_t i = 0; i < 20000; ++i) {
        const size_t block = i / kInt8BlockValues;
        const bool lost = block == 5000 / kInt8BlockValues;
        CHECK_EQ(std::isnan(tensors[0].Result()[i]), lost || (size > 2 && block == 9000 / kInt8BlockValues));
        if (lost) CHECK_EQ(tensors[0].residue[i], 0.0f);
      }
    });
  }
}

// A rank that has joined gives zeros and keeps nothing.
void WithoutResidue() {
  for (const int size : {2, 3}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      std::vector<Tensor> tensors = Tensors({3000});
      const bool joined = group.rank() == size - 1;
      for (size_t i = 0; i < 3000; ++i) tensors[0].values[i] = joined ? 0.0f : 1.0f;
      if (joined) tensors[0].residue.clear();
      CHECK_OK(Int8Allreduce(group, PartsOf(tensors), 1.0f, Finish{}));
      for (const float value : tensors[0].Result()) CHECK(std::abs(value - static_cast<float>(size - 1)) < 1e-5f);
    });
  }
}

// A quarter of float32's bytes, and a scale for each block.
void BytesOnTheWire() {
  for (const int size : {2, 4}) {
    RunStreamRanks(size, [&](StreamGroup& group) {
      std::vector<Tensor> tensors = Tensors({1 << 20});
      CHECK_OK(Int8Allreduce(group, PartsOf(tensors), 1.0f, Finish{}));
      const double float32 = 4.0 * 2 * 2 * (1 << 20) * (size - 1) / size;  // sent and received
      CHECK(static_cast<double>(group.bytes_moved()) < float32 / 3.9);
    });
  }
}

}  // namespace

int main() {
  return RunTests({{"sums", Sums},
                   {"short writes", ShortWrites},
                   {"nothing", Nothing},
                   {"values that are not finite", ValuesThatAreNotFinite},
                   {"without residue", WithoutResidue},
                   {"bytes on the wire", BytesOnTheWire}});
}
