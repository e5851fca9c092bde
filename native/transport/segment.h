// One rank's piece of shared memory: flags and slots that every rank of the same host can read.
//
// A segment is anonymous (memfd), so nothing is left behind by a kill and nobody can attach to it by name; its pages
// are allocated and its size sealed when it is made, so that touching it can never raise SIGBUS.
#ifndef SPARK_ESTIMATOR_TRANSPORT_SEGMENT_H_
#define SPARK_ESTIMATOR_TRANSPORT_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/liveness.h"

namespace spark_estimator {

// A counter that one rank raises and others wait for. Two lines apart, so that neither the flags' owners nor the
// processor's pairwise prefetch make neighbours share.
struct alignas(128) Flag {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};

// Raises `flag` to `value` and wakes whoever sleeps on it.
void Post(Flag& flag, uint32_t value);
// Returns when `flag` has reached `value` (counters wrap: "reached" is a signed difference), or when `liveness` says
// that it never will. Spins for `spin_pauses` turns, gives the processor away a few times, then sleeps.
Status Await(Flag& flag, uint32_t value, int spin_pauses, Liveness& liveness);

// How a segment is divided; a pure function of the number of ranks, so that all ranks agree.
struct SegmentLayout {
  static constexpr size_t kSlots = 4;          // in flight between a writer and its readers; at least 3, see allreduce
  static constexpr size_t kSmallBytes = 8192;  // largest vector that goes in one shot

  explicit SegmentLayout(int size);

  size_t chunk_bytes;    // one owner's share of one block
  size_t input_offset;   // kSlots input slots of size * chunk_bytes: what this rank offers to the others
  size_t output_offset;  // kSlots output slots of chunk_bytes: what this rank has reduced
  size_t small_offset;   // two small slots of kSmallBytes, used in turn
  size_t total_bytes;
};

class Segment {
 public:
  // Makes a segment for a job of `size` ranks and gives its descriptor.
  static Status Create(int size, UniqueFd* fd);

  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // Maps a segment made by Create, here or in another process; refuses anything else. The descriptor may be closed
  // after.
  Status Map(int fd, int size);
  bool mapped() const { return base_ != nullptr; }

  Flag& input_posted() { return header()->input_posted; }    // blocks whose input slot is filled
  Flag& output_posted() { return header()->output_posted; }  // blocks that are reduced (or, without a reduction, read)
  Flag& small_posted() { return header()->small_posted; }    // small ops whose slot is filled
  uint8_t* input_slot(uint32_t block) { return base_ + layout_.input_offset + Turn(block) * input_slot_bytes(); }
  uint8_t* output_slot(uint32_t block) { return base_ + layout_.output_offset + Turn(block) * layout_.chunk_bytes; }
  uint8_t* small_slot(uint32_t op) { return base_ + layout_.small_offset + (op % 2) * SegmentLayout::kSmallBytes; }
  size_t input_slot_bytes() const { return static_cast<size_t>(size_) * layout_.chunk_bytes; }
  size_t chunk_bytes() const { return layout_.chunk_bytes; }

 private:
  struct Header {
    uint64_t magic;
    uint32_t version;
    int32_t size;
    Flag input_posted;
    Flag output_posted;
    Flag small_posted;
  };
  static constexpr uint64_t kMagic = 0x544e454d47455345;  // "ESEGMENT"

  Header* header() { return reinterpret_cast<Header*>(base_); }
  static size_t Turn(uint32_t block) { return block % SegmentLayout::kSlots; }
  void Unmap();

  uint8_t* base_ = nullptr;
  int size_ = 0;
  SegmentLayout layout_{1};
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_SEGMENT_H_
