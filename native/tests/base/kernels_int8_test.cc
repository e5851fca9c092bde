// The kernels between float32 and blocks of int8: against float64, and all instruction sets against each other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/kernels/int8_block.h"
#include "base/kernels/kernels.h"
#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

std::vector<const Kernels*> Variants() {
  std::vector<const Kernels*> all = {BaselineKernels()};
  if (Avx2Kernels()) all.push_back(Avx2Kernels());
  if (Avx512Kernels()) all.push_back(Avx512Kernels());
  return all;
}

size_t BytesOf(size_t count) {
  size_t bytes = 0;
  for (; count > kInt8BlockValues; count -= kInt8BlockValues) bytes += Int8BlockBytes(kInt8BlockValues);
  return bytes + (count > 0 ? Int8BlockBytes(count) : 0);
}

struct Encoded {
  std::vector<uint8_t> blocks;
  std::vector<float> residue;
  std::vector<float> decoded;
  bool operator==(const Encoded&) const = default;
};

Encoded Encode(const Kernels& kernels, const std::vector<float>& values, const std::vector<float>& addend,
               float factor) {
  Encoded result;
  result.blocks.assign(BytesOf(values.size()), 0xee);
  result.residue = addend;  // in place, as the algorithms do
  result.decoded = values;
  kernels.encode_int8(result.decoded.data(), result.residue.data(), factor, result.residue.data(),
                      result.decoded.data(), result.blocks.data(), values.size());
  return result;
}

std::vector<float> Random(size_t count, float size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The nearest of 255 steps of each block, the error, and decoding.
void AgainstFloat64() {
  for (const size_t count : {0, 1, 2, 3, 15, 17, 255, 256, 257, 511, 512, 1000, 5003}) {
    for (const float size : {1e-20f, 1e-3f, 1.0f, 1e30f}) {
      const std::vector<float> values = Random(count, size, 1), addend = Random(count, size / 300, 2);
      const float factor = 0.25f;
      for (const Kernels* k : Variants()) {
        const Encoded encoded = Encode(*k, values, addend, factor);
        size_t at = 0;
        for (size_t start = 0; start < count; start += kInt8BlockValues) {
          const size_t n = std::min(kInt8BlockValues, count - start);
          double largest = 0;
          std::vector<double> x(n);
          for (size_t i = 0; i < n; ++i) {
            x[i] = static_cast<double>(values[start + i]) * factor + addend[start + i];
            largest = std::max(largest, std::abs(x[i]));
          }
          float scale;
          std::memcpy(&scale, encoded.blocks.data() + at, sizeof(scale));
          CHECK(std::abs(scale - largest / 127) <= largest * 1e-7);
          int top = 0;
          for (size_t i = 0; i < n; ++i) {
            const auto code = static_cast<int8_t>(encoded.blocks[at + sizeof(scale) + i]);
            top = std::max(top, std::abs(+code));
            CHECK(std::abs(code - x[i] / scale) <= 0.5001);
            CHECK_EQ(encoded.decoded[start + i], static_cast<float>(code) * scale);
            CHECK(std::abs(encoded.residue[start + i] - (x[i] - code * static_cast<double>(scale))) <= largest * 1e-6);
          }
          CHECK_EQ(top, 127);
          at += Int8BlockBytes(n);
        }
        CHECK_EQ(at, encoded.blocks.size());
        std::vector<float> sums = Random(count, size, 3);
        const std::vector<float> before = sums;
        k->decode_int8(sums.data(), sums.data(), nullptr, encoded.blocks.data(), count, 0.5f);
        for (size_t i = 0; i < count; ++i) CHECK_EQ(sums[i], (before[i] + encoded.decoded[i]) * 0.5f);
        k->decode_int8(sums.data(), nullptr, nullptr, encoded.blocks.data(), count, 1.0f);
        CHECK(sums == encoded.decoded);
      }
    }
  }
}

// Bits, the bytes that fill a block included, are those of the plainest variant.
void SameBits() {
  for (const size_t count : {1, 7, 64, 255, 256, 259, 4099}) {
    std::vector<float> values = Random(count, 1, 4);
    const std::vector<float> addend = Random(count, 0.01f, 5);
    for (size_t i = 0; i < count; i += 5) values[i] = 0.5f;  // ties
    const Encoded expected = Encode(*BaselineKernels(), values, addend, 3);
    for (const Kernels* k : Variants()) CHECK(Encode(*k, values, addend, 3) == expected);
  }
}

void NothingButZerosAndTinyValues() {
  for (const Kernels* k : Variants()) {
    for (const float value : {0.0f, -0.0f, 1e-45f, 1e-38f}) {
      const std::vector<float> values(300, value), nothing(300, 0);
      const Encoded encoded = Encode(*k, values, nothing, 1);
      CHECK(encoded.decoded == nothing);
      for (const float residue : encoded.residue) CHECK_EQ(residue, value);  // it waits until there is more of it
    }
  }
}

void LargestValues() {
  const float most = std::numeric_limits<float>::max();
  for (const Kernels* k : Variants()) {
    const std::vector<float> values = {most, -most, most / 2, 1.0f}, nothing(4, 0);
    const Encoded encoded = Encode(*k, values, nothing, 1);
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(std::isfinite(encoded.decoded[i]));
      CHECK(std::abs(encoded.decoded[i] - values[i]) <= most / 253);
    }
  }
}

// A block with such a value is NaN, and owes nothing; its neighbours are as ever.
void ValuesThatAreNotFinite() {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (const Kernels* k : Variants()) {
      std::vector<float> values = Random(600, 1, 6), owed = Random(600, 1, 7);
      values[300] = bad;
      const Encoded encoded = Encode(*k, values, std::vector<float>(600, 0.25f), 1);
      std::vector<float> sums(600);
      k->decode_int8(sums.data(), nullptr, owed.data(), encoded.blocks.data(), 600, 1);
      for (size_t i = 0; i < 600; ++i) {
        const bool lost = i / kInt8BlockValues == 1;
        CHECK_EQ(std::isnan(encoded.decoded[i]), lost);
        CHECK_EQ(std::isnan(sums[i]), lost);
        if (lost) CHECK_EQ(encoded.residue[i], 0.0f);
        CHECK_EQ(owed[i] == 0.0f, lost);
      }
    }
  }
}

void WithoutResidue() {
  for (const Kernels* k : Variants()) {
    const std::vector<float> values = Random(300, 1, 8);
    std::vector<uint8_t> blocks(BytesOf(300));
    k->encode_int8(values.data(), nullptr, 1, nullptr, nullptr, blocks.data(), 300);
    CHECK(blocks == Encode(*k, values, std::vector<float>(300, 0), 1).blocks);
  }
}

}  // namespace

int main() {
  return RunTests({{"against float64", AgainstFloat64},
                   {"same bits", SameBits},
                   {"nothing but zeros and tiny values", NothingButZerosAndTinyValues},
                   {"largest values", LargestValues},
                   {"values that are not finite", ValuesThatAreNotFinite},
                   {"without residue", WithoutResidue}});
}
