// How many of a text's next bytes form one valid UTF-8 character: users choose names, and output must be readable.
#ifndef SPARK_ESTIMATOR_BASE_UTF8_H_
#define SPARK_ESTIMATOR_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace spark_estimator {

// Bytes of the character that `text` begins with, 0 when these bytes are none (RFC 3629: no overlong forms, no
// surrogates, nothing above U+10FFFF) or `text` is empty. `*code_point` gets the character.
inline size_t Utf8CharacterBytes(std::string_view text, uint32_t* code_point) {
  if (text.empty()) return 0;
  const auto byte_at = [text](size_t at) { return static_cast<uint8_t>(text[at]); };
  const uint32_t lead = byte_at(0);
  if (lead < 0x80) {
    *code_point = lead;
    return 1;
  }
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return 0;
  uint32_t value = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte_at(i) & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte_at(i) & 0x3Fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kLeast[bytes] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return 0;
  *code_point = value;
  return bytes;
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_UTF8_H_
