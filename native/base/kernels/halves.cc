// Without branches on the values, so that the compiler makes vector code of it on every processor.
#include "base/kernels/halves.h"

#include <bit>

namespace spark_estimator {
namespace {

float FromFloat16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t shifted = static_cast<uint32_t>(half & 0x7fffu) << 13;
  // Read as a float32 it is too small by 2^112, subnormals included.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(shifted) * 0x1p112f);
  return std::bit_cast<float>(sign | (shifted >= 0x0f800000u ? shifted | 0x7f800000u : finite));
}

uint16_t ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Adding 0.5 lines the mantissa up with the smallest step of float16, 2^-24, and the processor rounds it.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : result;
  return static_cast<uint16_t>(sign | result);
}

uint16_t ToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

}  // namespace

void HalvesToFloat32(int32_t dtype, float* floats, const void* halves, size_t count) {
  const auto* from = static_cast<const uint16_t*>(halves);
  if (dtype == SE_FLOAT16) {
    for (size_t i = 0; i < count; ++i) floats[i] = FromFloat16(from[i]);
  } else {
    for (size_t i = 0; i < count; ++i) floats[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
  }
}

void HalvesFromFloat32(int32_t dtype, void* halves, const float* floats, size_t count) {
  auto* to = static_cast<uint16_t*>(halves);
  if (dtype == SE_FLOAT16) {
    for (size_t i = 0; i < count; ++i) to[i] = ToFloat16(floats[i]);
  } else {
    for (size_t i = 0; i < count; ++i) to[i] = ToBfloat16(floats[i]);
  }
}

}  // namespace spark_estimator
