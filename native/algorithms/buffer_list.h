// Several buffers treated as one long vector, without copying them together.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_BUFFER_LIST_H_
#define SPARK_ESTIMATOR_ALGORITHMS_BUFFER_LIST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spark_estimator {

struct BufferPart {
  const uint8_t* input;
  uint8_t* output;  // may equal input
  size_t bytes;
};

class BufferList {
 public:
  void Add(const void* input, void* output, size_t bytes) {
    if (bytes == 0) return;
    parts_.push_back({static_cast<const uint8_t*>(input), static_cast<uint8_t*>(output), bytes});
    starts_.push_back(total_bytes_);
    total_bytes_ += bytes;
  }
  size_t total_bytes() const { return total_bytes_; }
  const std::vector<BufferPart>& parts() const { return parts_; }
  bool in_place() const {
    return std::all_of(parts_.begin(), parts_.end(), [](const BufferPart& part) { return part.input == part.output; });
  }

  // Calls visit(input, output, offset in the range, bytes) for the pieces of [start, start + bytes), in order.
  template <typename Visit>
  void ForEach(size_t start, size_t bytes, Visit visit) const {
    if (bytes == 0) return;
    auto index = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), start) - starts_.begin()) - 1;
    for (size_t done = 0; done < bytes; ++index) {
      const size_t offset = start + done - starts_[index];
      const size_t piece = std::min(parts_[index].bytes - offset, bytes - done);
      visit(parts_[index].input + offset, parts_[index].output + offset, done, piece);
      done += piece;
    }
  }

 private:
  std::vector<BufferPart> parts_;
  std::vector<size_t> starts_;
  size_t total_bytes_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_BUFFER_LIST_H_
