// The reduction kernels: every dtype and op against plain arithmetic, and all instruction sets against each other.
#include "base/kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/dtype.h"
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

template <typename T>
T One(const Kernels& kernels, int32_t dtype, int32_t op, std::vector<T> values, Finish finish = {}) {
  std::vector<const void*> sources;
  for (const T& value : values) sources.push_back(&value);
  T result{};
  kernels.combine(dtype, op, &result, sources.data(), static_cast<int>(values.size()), 1, finish);
  return result;
}

void Integers() {
  for (const Kernels* k : Variants()) {
    CHECK_EQ((One<int32_t>(*k, SE_INT32, SE_SUM, {1, 2, 3})), 6);
    CHECK_EQ((One<int32_t>(*k, SE_INT32, SE_PRODUCT, {-2, 3, 4})), -24);
    CHECK_EQ((One<int32_t>(*k, SE_INT32, SE_MIN, {5, -7, 3})), -7);
    CHECK_EQ((One<int64_t>(*k, SE_INT64, SE_MAX, {5, int64_t{1} << 40, 3})), int64_t{1} << 40);
    CHECK_EQ((One<int32_t>(*k, SE_INT32, SE_SUM, {std::numeric_limits<int32_t>::max(), 1})),
             std::numeric_limits<int32_t>::min());  // wraps
    CHECK_EQ(+(One<uint8_t>(*k, SE_UINT8, SE_SUM, {200, 100})), 44);
    CHECK_EQ((One<int16_t>(*k, SE_INT16, SE_PRODUCT, {32767, 32767})), 1);
    CHECK_EQ((One<int64_t>(*k, SE_INT64, SE_SUM, {-7, 0}, Finish{1.0, 2})), -3);  // toward zero
    CHECK_EQ((One<int32_t>(*k, SE_INT32, SE_SUM, {3, 4}, Finish{0.5, 1})), 3);
    CHECK_EQ(+(One<int8_t>(*k, SE_INT8, SE_SUM, {100, 0}, Finish{3.0, 1})), 127);  // held to the range
    CHECK_EQ(+(One<int8_t>(*k, SE_INT8, SE_SUM, {-100, 0}, Finish{3.0, 1})), -128);
    CHECK_EQ(+(One<uint8_t>(*k, SE_UINT8, SE_SUM, {100, 0}, Finish{-3.0, 1})), 0);
  }
}

void Bools() {
  for (const Kernels* k : Variants()) {
    for (const int32_t op : {SE_SUM, SE_MAX}) CHECK_EQ(+(One<uint8_t>(*k, SE_BOOL, op, {0, 2, 0})), 1);
    for (const int32_t op : {SE_PRODUCT, SE_MIN}) CHECK_EQ(+(One<uint8_t>(*k, SE_BOOL, op, {1, 2, 0})), 0);
    CHECK_EQ(+(One<uint8_t>(*k, SE_BOOL, SE_PRODUCT, {4, 2})), 1);
  }
}

void NanIsKept() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* k : Variants()) {
    for (const int32_t op : {SE_MIN, SE_MAX, SE_SUM, SE_PRODUCT}) {
      CHECK(std::isnan(One<float>(*k, SE_FLOAT32, op, {nan, 1.0f})));
      CHECK(std::isnan(One<float>(*k, SE_FLOAT32, op, {1.0f, nan})));
    }
    const uint16_t bf16_nan = One<uint16_t>(*k, SE_BFLOAT16, SE_SUM, {0x7fc0, 0x3f80});
    CHECK((bf16_nan & 0x7f80) == 0x7f80 && (bf16_nan & 0x7f) != 0);
    const uint16_t f16_nan = One<uint16_t>(*k, SE_FLOAT16, SE_SUM, {0x7e00, 0x3c00});
    CHECK((f16_nan & 0x7c00) == 0x7c00 && (f16_nan & 0x3ff) != 0);
  }
}

// All 65536 halves survive the conversion to float32 and back, in every variant.
void HalvesRoundTrip() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const int32_t dtype : {SE_FLOAT16, SE_BFLOAT16}) {
    for (const Kernels* k : Variants()) {
      std::vector<uint16_t> out(all.size());
      k->finish(dtype, out.data(), all.data(), all.size(), Finish{});
      const uint32_t infinity = dtype == SE_FLOAT16 ? 0x7c00 : 0x7f80;
      for (size_t i = 0; i < all.size(); ++i) {
        const bool is_nan = (i & 0x7fff) > infinity;
        CHECK(is_nan ? (out[i] & 0x7fffu) > infinity : out[i] == all[i]);
      }
    }
  }
}

void HalfArithmetic() {
  for (const Kernels* k : Variants()) {
    CHECK_EQ((One<uint16_t>(*k, SE_FLOAT16, SE_SUM, {0x3c00, 0x3c00})), 0x4000);                // 1 + 1
    CHECK_EQ((One<uint16_t>(*k, SE_FLOAT16, SE_SUM, {0x7bff, 0x7bff})), 0x7c00);                // overflow
    CHECK_EQ((One<uint16_t>(*k, SE_FLOAT16, SE_SUM, {0x0001, 0x0001})), 0x0002);                // subnormals
    CHECK_EQ((One<uint16_t>(*k, SE_FLOAT16, SE_SUM, {0x7bff, 0x7bff}, Finish{1, 2})), 0x7bff);  // float32 in between
    CHECK_EQ((One<uint16_t>(*k, SE_BFLOAT16, SE_SUM, {0x3f80, 0x3f80})), 0x4000);
    CHECK_EQ((One<uint16_t>(*k, SE_BFLOAT16, SE_SUM, {0x3f80, 0x3b80})), 0x3f80);  // 1 + 2^-8: tie to even
    CHECK_EQ((One<uint16_t>(*k, SE_FLOAT16, SE_SUM, {0x6800, 0x3c00})), 0x6800);   // 2048 + 1: tie to even
    CHECK_EQ((One<uint16_t>(*k, SE_FLOAT16, SE_SUM, {0x6800, 0x4200})), 0x6802);   // 2048 + 3: tie to even
  }
}

// Random bytes of every dtype and length, one variant against the next, bit for bit; also in place and with three.
void VariantsAgree() {
  std::mt19937 random(7);
  const auto variants = Variants();
  for (int32_t dtype = SE_UINT8; dtype <= SE_UINT16; ++dtype) {
    for (const int32_t op : {SE_SUM, SE_MIN, SE_MAX, SE_PRODUCT}) {
      for (const size_t count : {size_t{1}, size_t{7}, size_t{33}, size_t{1024}, size_t{2500}}) {
        std::vector<std::vector<uint8_t>> data(3, std::vector<uint8_t>(count * DtypeBytes(dtype)));
        for (auto& bytes : data) {
          if (dtype == SE_FLOAT32) {
            for (size_t i = 0; i < count; ++i)
              reinterpret_cast<float*>(bytes.data())[i] = static_cast<float>(random() % 1000) / 7;
          } else if (dtype == SE_FLOAT64) {
            for (size_t i = 0; i < count; ++i) reinterpret_cast<double*>(bytes.data())[i] = (random() % 1000) / 7.0;
          } else {
            for (auto& byte : bytes)
              byte = static_cast<uint8_t>(random() & (dtype == SE_FLOAT16 || dtype == SE_BFLOAT16 ? 0x3b : 0xff));
          }
        }
        const void* sources[3] = {data[0].data(), data[1].data(), data[2].data()};
        const Finish finish = dtype == SE_BOOL ? Finish{} : Finish{0.5, 3};
        std::vector<uint8_t> first(data[0].size());
        variants[0]->combine(dtype, op, first.data(), sources, 3, count, finish);
        for (const Kernels* k : variants) {
          std::vector<uint8_t> again(first.size());
          k->combine(dtype, op, again.data(), sources, 3, count, finish);
          CHECK(std::memcmp(first.data(), again.data(), first.size()) == 0);
          std::vector<uint8_t> apart(first.size());
          k->combine(dtype, op, apart.data(), sources, 2, count, finish);
          std::vector<uint8_t> in_place = data[1];
          const void* pair[2] = {data[0].data(), in_place.data()};
          k->combine(dtype, op, in_place.data(), pair, 2, count, finish);
          CHECK(std::memcmp(apart.data(), in_place.data(), apart.size()) == 0);
        }
      }
    }
  }
}

void Widening() {
  const std::vector<int8_t> narrow = {-128, -1, 0, 127};
  for (const Kernels* k : Variants()) {
    std::vector<int64_t> wide(narrow.size());
    k->widen(SE_INT8, wide.data(), narrow.data(), narrow.size());
    CHECK_EQ(wide[0], -128);
    std::vector<int8_t> back(narrow.size());
    k->narrow(SE_INT8, back.data(), wide.data(), wide.size());
    CHECK(back == narrow);
    const std::vector<uint16_t> unsigned_narrow = {0, 1, 32768, 65535};
    k->widen(SE_UINT16, wide.data(), unsigned_narrow.data(), unsigned_narrow.size());
    CHECK_EQ(wide[3], 65535);
    std::vector<uint16_t> unsigned_back(unsigned_narrow.size());
    k->narrow(SE_UINT16, unsigned_back.data(), wide.data(), wide.size());
    CHECK(unsigned_back == unsigned_narrow);
  }
}

void CopiesPastTheCaches() {
  std::vector<uint8_t> from(1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 7 + 1);
  alignas(64) uint8_t to[1200];
  for (const Kernels* k : Variants()) {
    for (const size_t offset : {0, 1, 16, 63, 64, 65}) {
      for (const size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 129, 640, 999}) {
        std::memset(to, 0, sizeof(to));
        k->copy_past_caches(to + offset, from.data() + 1, bytes);
        CHECK(std::memcmp(to + offset, from.data() + 1, bytes) == 0);
        CHECK_EQ(+to[offset + bytes], 0);
        CHECK(offset == 0 || to[offset - 1] == 0);
      }
    }
  }
}

// Linux lists what the processor has and what the kernel saves.
void VariantsAreThoseThatLinuxLists() {
#if defined(__x86_64__)
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && line.rfind("flags", 0) != 0) {
  }
  std::istringstream words(line);
  const std::set<std::string> flags{std::istream_iterator<std::string>(words), {}};
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(), [&](const char* name) { return flags.count(name) != 0; });
  };
  CHECK(flags.size() > 2);
  const bool avx2 = has({"avx2", "fma", "f16c"});
  CHECK_EQ(Avx2Kernels() != nullptr, avx2);
  CHECK_EQ(Avx512Kernels() != nullptr, avx2 && has({"avx512f", "avx512bw", "avx512dq", "avx512vl"}));
#endif
}

}  // namespace

int main() {
  return RunTests({{"integers", Integers},
                   {"bools", Bools},
                   {"NaN is kept", NanIsKept},
                   {"halves round trip", HalvesRoundTrip},
                   {"half arithmetic", HalfArithmetic},
                   {"variants agree", VariantsAgree},
                   {"widening", Widening},
                   {"copies past the caches", CopiesPastTheCaches},
                   {"variants are those that Linux lists", VariantsAreThoseThatLinuxLists}});
}
