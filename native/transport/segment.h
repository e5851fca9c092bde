// One rank's piece of shared memory: flags, slots and an arena that every rank of the same host can read.
//
// A segment is anonymous (memfd), so a kill leaves nothing behind and no process can attach to it by name. Its size is
// sealed and the pages of its flags and slots are allocated when it is made, so that touching them can never raise
// SIGBUS; those of the arena, a large sparse tail, are allocated and freed with the memory there (transport/arena.h).
#ifndef SPARK_ESTIMATOR_TRANSPORT_SEGMENT_H_
#define SPARK_ESTIMATOR_TRANSPORT_SEGMENT_H_

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/waiting.h"

namespace spark_estimator {

// How a segment is divided; a pure function of the number of ranks of the host, so that all of them agree.
struct SegmentLayout {
  static constexpr size_t kSlots = 4;  // in flight between a writer and its readers; at least 3, see allreduce
  // Slots move on through their ring, so that a line is written again only when it has left its readers' own caches:
  // taking it back from there costs several times as much.
  static constexpr size_t kLeastRingBytes = size_t{2} << 20;
  static constexpr size_t kSmallBytes = 8192;                          // largest vector for one shot
  static constexpr size_t kProposalBytes = 2048;                       // a rank's proposal in a round, and
  static constexpr size_t kRoundBytes = kProposalBytes + kSmallBytes;  // one small vector that it sends with it

  explicit SegmentLayout(int local_size);

  size_t chunk_bytes;   // one owner's share of one block
  size_t input_offset;  // the ring of input slots, of up to local_size * chunk_bytes: what is offered to the others
  size_t input_ring_bytes;
  size_t output_offset;  // the ring of output slots, of up to chunk_bytes: what this rank has reduced
  size_t output_ring_bytes;
  size_t small_offset;  // two small slots of kSmallBytes, used in turn
  size_t round_offset;  // two round slots of kRoundBytes, used in turn
  size_t arena_offset;  // what follows, to the end of the file, is the arena
};

class Segment {
 public:
  // Makes a segment for `local_size` ranks of one host and returns its descriptor. The arena is as large as the
  // machine's memory, at most 64 GiB, less if the process's limits are lower; it costs only address space.
  static Status Create(int local_size, UniqueFd* fd);

  // For how many ranks of a host a segment was made.
  static Status LocalSizeOf(int fd, int* local_size);

  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // Maps a segment made by Create, here or in another process; refuses anything else. The descriptor may be closed
  // after, except this rank's own, which its Arena keeps. If the arena does not fit into the address space, the rest is
  // mapped without it.
  Status Map(int fd, int local_size);
  bool mapped() const { return base_ != nullptr; }

  Flag& input_posted() { return header()->input_posted; }    // blocks whose input slot is filled
  Flag& output_posted() { return header()->output_posted; }  // blocks that are reduced (or, without a reduction, read)
  Flag& small_posted() { return header()->small_posted; }    // small ops whose slot is filled
  Flag& round_posted() { return header()->round_posted; }    // rounds whose slot is filled
  Flag& arena_posted() { return header()->arena_posted; }    // steps of the collectives on arenas, begun and done
  // Whether it is of these.
  bool Has(const Flag& flag) const {
    const auto* at = reinterpret_cast<const uint8_t*>(&flag);
    return base_ != nullptr && at >= base_ && at < base_ + sizeof(Header);
  }
  uint8_t* input_ring() { return base_ + layout_.input_offset; }
  uint8_t* output_ring() { return base_ + layout_.output_offset; }
  uint8_t* small_slot(uint32_t op) { return base_ + layout_.small_offset + (op % 2) * SegmentLayout::kSmallBytes; }
  // SegmentLayout::kRoundBytes bytes, 64-byte aligned; the slots of two positions in a row are not the same.
  uint8_t* round_slot(uint32_t position) {
    return base_ + layout_.round_offset + (position % 2) * SegmentLayout::kRoundBytes;
  }
  // nullptr when it is not mapped.
  uint8_t* arena() { return arena_bytes_ == 0 ? nullptr : base_ + layout_.arena_offset; }
  size_t arena_bytes() const { return arena_bytes_; }
  size_t arena_offset() const { return layout_.arena_offset; }  // in the file
  size_t input_ring_bytes() const { return layout_.input_ring_bytes; }
  size_t output_ring_bytes() const { return layout_.output_ring_bytes; }
  // Of the largest slots.
  size_t input_slot_bytes() const { return static_cast<size_t>(local_size_) * layout_.chunk_bytes; }
  size_t chunk_bytes() const { return layout_.chunk_bytes; }

 private:
  struct Header {
    uint64_t magic;
    uint32_t version;
    int32_t local_size;
    Flag input_posted;
    Flag output_posted;
    Flag small_posted;
    Flag round_posted;
    Flag arena_posted;
  };
  static constexpr uint64_t kMagic = 0x544e454d47455345;  // "ESEGMENT"

  Header* header() { return reinterpret_cast<Header*>(base_); }
  void Unmap();

  uint8_t* base_ = nullptr;
  int local_size_ = 0;
  size_t arena_bytes_ = 0;
  SegmentLayout layout_{1};
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_SEGMENT_H_
