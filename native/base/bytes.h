// Reading and writing of the small binary messages that ranks exchange; a reader never passes the end.
//
// Numbers are sent in the byte order of the host: ranks of one job run the same build on machines of one byte order.
#ifndef SPARK_ESTIMATOR_BASE_BYTES_H_
#define SPARK_ESTIMATOR_BASE_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace spark_estimator {

class ByteWriter {
 public:
  template <typename T>
  void Number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Flag(bool value) { Number(static_cast<uint8_t>(value)); }
  void Text(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  void Numbers(const std::vector<int64_t>& values) {
    Number(static_cast<uint32_t>(values.size()));
    if (!values.empty()) bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first read past the end, ok() is false and all reads give zeros.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Number() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    if (Has(sizeof(T))) {
      std::memcpy(&value, bytes_.data() + position_, sizeof(T));
      position_ += sizeof(T);
    }
    return value;
  }
  // Fails for anything but 0 and 1: no two encodings mean the same.
  bool Flag() {
    const auto value = Number<uint8_t>();
    if (value > 1) Fail();
    return value == 1;
  }
  std::string Text() {
    const auto length = Number<uint32_t>();
    if (!Has(length)) return {};
    std::string text(bytes_.substr(position_, length));
    position_ += length;
    return text;
  }
  std::vector<int64_t> Numbers() {
    const auto count = Number<uint32_t>();
    if (!Has(static_cast<uint64_t>(count) * sizeof(int64_t))) return {};
    std::vector<int64_t> values(count);
    if (count > 0) std::memcpy(values.data(), bytes_.data() + position_, count * sizeof(int64_t));
    position_ += count * sizeof(int64_t);
    return values;
  }
  bool ok() const { return ok_; }
  // For callers that find the values impossible.
  void Fail() { ok_ = false; }
  bool AtEnd() const { return ok_ && position_ == bytes_.size(); }

 private:
  bool Has(uint64_t count) {
    if (ok_ && count <= bytes_.size() - position_) return true;
    ok_ = false;
    return false;
  }

  std::string_view bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

// CRC-32C (Castagnoli) of `bytes`, the checksum of control frames.
uint32_t Crc32c(std::string_view bytes, uint32_t seed = 0);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_BYTES_H_
