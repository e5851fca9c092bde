// Tensors, or parts of them, that are worked through chunk by chunk as if they were one: where each lies in the row of
// all of them, and what of it lies in a chunk. Pure arithmetic.
#ifndef SPARK_ESTIMATOR_GPU_PACKING_H_
#define SPARK_ESTIMATOR_GPU_PACKING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace spark_estimator {

// `Byte` is uint8_t for memory that is written, const uint8_t for memory that is read.
template <typename Byte>
class Packing {
 public:
  // Where a tensor begins, so that a GPU's threads read 16 bytes at a time. A chunk's size must be a multiple of it:
  // then no element lies in two chunks.
  static constexpr size_t kAlignment = 16;

  // Null memory has a place in the row as well.
  void Add(Byte* memory, size_t bytes) {
    if (bytes == 0) return;
    sections_.push_back({bytes_, memory, bytes});
    bytes_ = (bytes_ + bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Up to the end of the last tensor, with what aligns it.
  size_t bytes() const { return bytes_; }

  // Calls visit(offset, memory, bytes) for what lies in the chunk, in order; `offset` is in the chunk.
  template <typename Visit>
  void ForEachIn(size_t chunk, size_t chunk_bytes, Visit visit) const {
    const size_t begin = chunk * chunk_bytes;
    const size_t end = begin + chunk_bytes;
    auto section = std::partition_point(sections_.begin(), sections_.end(),
                                        [&](const Section& each) { return each.offset + each.bytes <= begin; });
    for (; section != sections_.end() && section->offset < end; ++section) {
      const size_t first = std::max(begin, section->offset);
      const size_t last = std::min(end, section->offset + section->bytes);
      Byte* memory = section->memory == nullptr ? nullptr : section->memory + (first - section->offset);
      visit(first - begin, memory, last - first);
    }
  }

 private:
  struct Section {
    size_t offset;
    Byte* memory;
    size_t bytes;
  };

  std::vector<Section> sections_;
  size_t bytes_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_PACKING_H_
