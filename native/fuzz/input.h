// What the fuzz targets share: taking the fuzzer's bytes apart, and ending the process when something is not so.
#ifndef SPARK_ESTIMATOR_FUZZ_INPUT_H_
#define SPARK_ESTIMATOR_FUZZ_INPUT_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace spark_estimator::fuzz {

inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

// The bytes of one run; zeros and empty pieces after their end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Byte() { return Take<uint8_t>(); }
  uint32_t Number() { return Take<uint32_t>(); }
  // As many bytes as the next two bytes give, as far as available.
  std::string_view Piece() {
    const size_t length = Take<uint16_t>();
    const std::string_view piece = rest_.substr(0, length);
    rest_.remove_prefix(piece.size());
    return piece;
  }
  std::string_view Rest() { return rest_; }

 private:
  template <typename T>
  T Take() {
    T value{};
    const size_t count = std::min(sizeof(T), rest_.size());
    std::memcpy(&value, rest_.data(), count);
    rest_.remove_prefix(count);
    return value;
  }

  std::string_view rest_;
};

}  // namespace spark_estimator::fuzz

#endif  // SPARK_ESTIMATOR_FUZZ_INPUT_H_
