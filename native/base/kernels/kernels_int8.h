// The kernels between float32 and blocks of int8. Part of kernels_body.h, see there.

// 1.5 * 2^23: a float32 plus this has its nearest whole number in the lowest bits, ties to even.
constexpr float kRounding = 12582912.0f;
// A block whose values are all smaller is sent as zeros: the reciprocal of its scale might not be finite.
constexpr float kLeastMagnitude = 0x1p-100f;

// The bits of the largest magnitude: of floats without sign they are in the order of the values, and NaN is the last.
static inline uint32_t ScaledValues(float* __restrict x, const float* values, const float* addend, float factor,
                                    size_t count) {
  int32_t largest = 0;
  if (addend != nullptr) {
    for (size_t i = 0; i < count; ++i) x[i] = values[i] * factor + addend[i];
  } else {
    for (size_t i = 0; i < count; ++i) x[i] = values[i] * factor;
  }
  for (size_t i = 0; i < count; ++i) {
    int32_t bits;
    memcpy(&bits, x + i, sizeof(bits));
    bits &= 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

static inline void Fill(float* to, float value, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = value;
}

static inline void EncodeBlock(const float* values, const float* addend, float factor, float* residue, float* decoded,
                               uint8_t* block, size_t count) {
  float x[kInt8BlockValues];
  float rounded[kInt8BlockValues];
  const uint32_t largest_bits = ScaledValues(x, values, addend, factor, count);
  const float largest = FromBits(largest_bits);
  uint8_t* __restrict codes = block + sizeof(float);
  float scale = 0.0f;
  if (largest_bits > 0x7f7fffffu) {  // infinity or NaN
    scale = FromBits(0x7fc00000u);
    memset(codes, 0, count);
    if (residue != nullptr) Fill(residue, 0.0f, count);
    if (decoded != nullptr) Fill(decoded, scale, count);
  } else if (largest < kLeastMagnitude) {
    memset(codes, 0, count);
    if (residue != nullptr) memcpy(residue, x, count * sizeof(float));
    if (decoded != nullptr) Fill(decoded, 0.0f, count);
  } else {
    scale = largest / 127.0f;
    if (ToBits(scale * 127.0f) > 0x7f7fffffu) scale = FromBits(ToBits(scale) - 1);  // decoded, it must be finite
    const float reciprocal = 127.0f / largest;
    for (size_t i = 0; i < count; ++i) rounded[i] = x[i] * reciprocal + kRounding;
    for (size_t i = 0; i < count; ++i) {
      int32_t bits;
      memcpy(&bits, rounded + i, sizeof(bits));
      codes[i] = static_cast<uint8_t>(bits);
    }
    for (size_t i = 0; i < count; ++i) rounded[i] = (rounded[i] - kRounding) * scale;
    if (residue != nullptr) {
      for (size_t i = 0; i < count; ++i) residue[i] = x[i] - rounded[i];
    }
    if (decoded != nullptr) memcpy(decoded, rounded, count * sizeof(float));
  }
  memcpy(block, &scale, sizeof(scale));
  for (size_t i = count; i % 4 != 0; ++i) codes[i] = 0;
}

static inline void DecodeBlock(float* to, const float* addend, const uint8_t* block, size_t count, float factor) {
  float scale;
  memcpy(&scale, block, sizeof(scale));
  const int8_t* codes = reinterpret_cast<const int8_t*>(block + sizeof(scale));
  float decoded[kInt8BlockValues];
  for (size_t i = 0; i < count; ++i) decoded[i] = static_cast<float>(codes[i]) * scale;
  if (addend == nullptr) {
    for (size_t i = 0; i < count; ++i) to[i] = decoded[i] * factor;
  } else {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) to[i] = (addend[i] + decoded[i]) * factor;
  }
}

// Whole blocks have a count that the compiler knows.
static void EncodeInt8(const float* values, const float* addend, float factor, float* residue, float* decoded,
                       uint8_t* blocks, size_t count) {
  while (count >= kInt8BlockValues) {
    EncodeBlock(values, addend, factor, residue, decoded, blocks, kInt8BlockValues);
    values += kInt8BlockValues;
    if (addend != nullptr) addend += kInt8BlockValues;
    if (residue != nullptr) residue += kInt8BlockValues;
    if (decoded != nullptr) decoded += kInt8BlockValues;
    blocks += Int8BlockBytes(kInt8BlockValues);
    count -= kInt8BlockValues;
  }
  if (count > 0) EncodeBlock(values, addend, factor, residue, decoded, blocks, count);
}

static void DecodeInt8(float* to, const float* addend, float* residue, const uint8_t* blocks, size_t count,
                       float factor) {
  while (count > 0) {
    const size_t values = count < kInt8BlockValues ? count : kInt8BlockValues;
    if (values == kInt8BlockValues) {
      DecodeBlock(to, addend, blocks, kInt8BlockValues, factor);
    } else {
      DecodeBlock(to, addend, blocks, values, factor);
    }
    if (residue != nullptr) {
      float scale;
      memcpy(&scale, blocks, sizeof(scale));
      if (scale != scale) Fill(residue, 0.0f, values);
      residue += values;
    }
    to += values;
    if (addend != nullptr) addend += values;
    blocks += Int8BlockBytes(values);
    count -= values;
  }
}
