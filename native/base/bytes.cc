#include "base/bytes.h"

#include <array>

namespace spark_estimator {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f63b78u : 0u);
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

}  // namespace

uint32_t Crc32c(std::string_view bytes, uint32_t seed) {
  uint32_t value = ~seed;
  for (const char byte : bytes) value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~value;
}

}  // namespace spark_estimator
