// The adaptive sum against its definition, computed plainly in long double, and its symmetries.
#include "algorithms/adasum.h"

#include <cmath>
#include <random>
#include <vector>

#include "base/kernels/halves.h"
#include "stream_ranks.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

using Vector = std::vector<long double>;

Vector Pair(const Vector& a, const Vector& b) {
  long double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    sum[i] = (aa > 0 ? 1 - ab / (2 * aa) : 1) * a[i] + (bb > 0 ? 1 - ab / (2 * bb) : 1) * b[i];
  }
  return sum;
}

Vector Reference(std::vector<Vector> vectors) {
  while (vectors.size() > 1) {
    std::vector<Vector> next;
    for (size_t i = 0; i < vectors.size(); i += 2) next.push_back(Pair(vectors[i], vectors[i + 1]));
    vectors = next;
  }
  return vectors[0];
}

float Random(int rank, size_t tensor, size_t i) {
  std::minstd_rand random(
      static_cast<unsigned>(1 + rank * 1000003 + static_cast<int>(tensor) * 7919 + static_cast<int>(i) * 31));
  random.discard(3);
  return static_cast<float>(random() % 2001) / 1000 - 1;
}

template <typename T>
void CheckAgainstReference(int size, int32_t dtype, double prescale, double postscale, long double tolerance) {
  const std::vector<size_t> counts = {1, 0, 17, 5000};
  RunStreamRanks(size, [&](StreamGroup& group) {
    std::vector<std::vector<T>> tensors;
    std::vector<std::vector<T>> outputs;
    std::vector<AdasumPart> parts;
    for (size_t t = 0; t < counts.size(); ++t) {
      tensors.emplace_back(counts[t]);
      for (size_t i = 0; i < counts[t]; ++i) tensors[t][i] = static_cast<T>(Random(group.rank(), t, i));
      outputs.emplace_back(counts[t]);
    }
    for (size_t t = 0; t < counts.size(); ++t) parts.push_back({tensors[t].data(), outputs[t].data(), counts[t]});
    CHECK_OK(AdasumAllreduce(group, parts, dtype, prescale, postscale));
    for (size_t t = 0; t < counts.size(); ++t) {
      std::vector<Vector> inputs;
      for (int r = 0; r < size; ++r) {
        inputs.emplace_back(counts[t]);
        for (size_t i = 0; i < counts[t]; ++i) {
          inputs.back()[i] = static_cast<long double>(static_cast<T>(Random(r, t, i))) * prescale;
        }
      }
      const Vector expected = Reference(inputs);
      for (size_t i = 0; i < counts[t]; ++i) {
        CHECK(std::abs(static_cast<long double>(outputs[t][i]) - expected[i] * postscale) <= tolerance);
      }
    }
  });
}

void AgainstTheDefinition() {
  for (const int size : {1, 2, 4, 8, 16}) {
    CheckAgainstReference<float>(size, SE_FLOAT32, 1, 1, 1e-5L);
    CheckAgainstReference<double>(size, SE_FLOAT64, 1, 1, 1e-12L);
    CheckAgainstReference<double>(size, SE_FLOAT64, 0.5, 3, 1e-12L);
  }
}

void EqualVectorsAreAveragedOrthogonalOnesAdded() {
  RunStreamRanks(4, [](StreamGroup& group) {
    std::vector<float> equal = {1, -2, 3};
    std::vector<float> own(4, 0);
    own[static_cast<size_t>(group.rank())] = 5;
    std::vector<float> nothing(3, 0);
    const std::vector<AdasumPart> parts = {
        {equal.data(), equal.data(), 3}, {own.data(), own.data(), 4}, {nothing.data(), nothing.data(), 3}};
    CHECK_OK(AdasumAllreduce(group, parts, SE_FLOAT32, 1, 1));
    CHECK(equal == std::vector<float>({1, -2, 3}));
    CHECK(own == std::vector<float>({5, 5, 5, 5}));
    CHECK(nothing == std::vector<float>({0, 0, 0}));
  });
}

void Halves() {
  for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16}) {
    RunStreamRanks(4, [&](StreamGroup& group) {
      const size_t n = 3001;
      std::vector<uint16_t> data(n);
      std::vector<Vector> inputs(4, Vector(n));
      for (int r = 0; r < 4; ++r) {
        for (size_t i = 0; i < n; ++i) {
          float value = Random(r, 0, i);
          uint16_t half = 0;
          HalvesFromFloat32(dtype, &half, &value, 1);
          HalvesToFloat32(dtype, &value, &half, 1);
          inputs[static_cast<size_t>(r)][i] = static_cast<long double>(value);
          if (r == group.rank()) data[i] = half;
        }
      }
      const std::vector<AdasumPart> parts = {{data.data(), data.data(), n}};
      CHECK_OK(AdasumAllreduce(group, parts, dtype, 1, 1));
      const Vector expected = Reference(inputs);
      const long double step = dtype == SE_FLOAT16 ? 0x1p-11L : 0x1p-8L;  // half a unit in the last place, relative
      for (size_t i = 0; i < n; ++i) {
        float value = 0;
        HalvesToFloat32(dtype, &value, &data[i], 1);
        CHECK(std::abs(static_cast<long double>(value) - expected[i]) <= std::abs(expected[i]) * step + 1e-5L);
      }
    });
  }
}

// More than a batch, so that tensors are sent in several.
void SameBitsOnAllRanks() {
  std::vector<std::vector<float>> results(8, std::vector<float>(3 << 20));
  RunStreamRanks(8, [&](StreamGroup& group) {
    std::vector<float>& data = results[static_cast<size_t>(group.rank())];
    std::mt19937 random(static_cast<unsigned>(group.rank()));
    for (float& value : data) value = static_cast<float>(random() % 20001) / 9999 - 1;
    std::vector<AdasumPart> parts;
    const size_t third = data.size() / 3;
    for (size_t i = 0; i < 3; ++i) parts.push_back({data.data() + i * third, data.data() + i * third, third});
    CHECK_OK(AdasumAllreduce(group, parts, SE_FLOAT32, 1, 1));
  });
  for (const auto& result : results) CHECK(result == results[0]);
}

void Refusals() {
  RunStreamRanks(3, [](StreamGroup& group) {
    const Status status = AdasumAllreduce(group, {}, SE_FLOAT32, 1, 1);
    CHECK_EQ(status.code(), SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(status.message(), "not 3");
  });
  RunStreamRanks(2, [](StreamGroup& group) {
    const Status status = AdasumAllreduce(group, {}, SE_INT32, 1, 1);
    CHECK_EQ(status.code(), SE_INVALID_ARGUMENT);
    CHECK_CONTAINS(status.message(), "int32");
  });
}

}  // namespace

int main() {
  return RunTests({{"against the definition", AgainstTheDefinition},
                   {"equal vectors are averaged, orthogonal ones added", EqualVectorsAreAveragedOrthogonalOnesAdded},
                   {"halves", Halves},
                   {"same bits on all ranks", SameBitsOnAllRanks},
                   {"refusals", Refusals}});
}
