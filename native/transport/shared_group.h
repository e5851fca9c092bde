// The ranks of a group that are on one host and all see each other's segments, from the view of one of them.
#ifndef SPARK_ESTIMATOR_TRANSPORT_SHARED_GROUP_H_
#define SPARK_ESTIMATOR_TRANSPORT_SHARED_GROUP_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/scoped.h"
#include "transport/liveness.h"
#include "transport/segment.h"
#include "transport/slot_stores.h"
#include "transport/waiting.h"

namespace spark_estimator {

// The position in its ring of each of the last kSlots slots.
class SlotRing {
 public:
  // The next slot, which is block `number`'s. When the oldest of kSlots slots is done, so is all data there.
  void Place(uint32_t number, size_t bytes, size_t ring_bytes) {
    if (next_ + bytes > ring_bytes) next_ = 0;
    offsets_[number % SegmentLayout::kSlots] = next_;
    next_ += bytes;
  }
  // The same few places again and again, each large enough for any slot.
  void PlaceAgain(uint32_t number, size_t largest_bytes) {
    offsets_[number % SegmentLayout::kSlots] = number % SegmentLayout::kSlots * largest_bytes;
  }
  size_t offset(uint32_t number) const { return offsets_[number % SegmentLayout::kSlots]; }

 private:
  size_t next_ = 0;
  std::array<size_t, SegmentLayout::kSlots> offsets_{};
};

// For one thread at a time.
struct SharedGroup {
  int rank = 0;  // among the ranks of this host
  int size = 1;
  std::vector<Segment> segments;  // [size], by local rank
  // The same on all ranks, since all run the same collectives in the same order.
  uint32_t next_block = 0;
  uint32_t next_small = 0;
  uint32_t next_arena = 0;
  SlotRing input_slots;
  SlotRing output_slots;

  // What a collective waits for, null for nothing; and how often it had to wait, by which others see its progress.
  const Flag* awaited = nullptr;
  int64_t waits = 0;

  SlotStores stores;
  Waiting waiting;
  Liveness* liveness = nullptr;

  Segment& mine() { return segments[static_cast<size_t>(rank)]; }
  Segment& of(int peer) { return segments[static_cast<size_t>(peer)]; }

  // Begins block `number`, whose slots have that many bytes on every rank and are written in pieces of about
  // `piece_bytes`; in the order of the blocks.
  void PlaceBlock(uint32_t number, size_t input_bytes, size_t output_bytes, size_t piece_bytes) {
    if (waiting.crowded()) {  // who takes turns on a core shares its caches, and the less they touch the better
      input_slots.PlaceAgain(number, mine().input_slot_bytes());
      output_slots.PlaceAgain(number, mine().chunk_bytes());
    } else {
      input_slots.Place(number, input_bytes, mine().input_ring_bytes());
      output_slots.Place(number, output_bytes, mine().output_ring_bytes());
    }
    stores.BeginBlock(piece_bytes, waiting.crowded());
  }
  uint8_t* InputSlot(int peer, uint32_t number) { return of(peer).input_ring() + input_slots.offset(number); }
  uint8_t* OutputSlot(int peer, uint32_t number) { return of(peer).output_ring() + output_slots.offset(number); }

  // See Waiting::AwaitUntil.
  Status AwaitFlagUntil(Flag& flag, uint32_t value, Time deadline, bool* reached) {
    return waiting.AwaitUntil(flag, value, deadline, *liveness, reached);
  }
  Status AwaitFlag(Flag& flag, uint32_t value) {
    if (Reached(flag, value)) return Status::Ok();
    const ScopedValue<const Flag*> waits_for(awaited, &flag);
    ++waits;
    bool reached = false;
    return waiting.AwaitUntil(flag, value, Time::max(), *liveness, &reached);
  }
  // The local rank whose flag a collective waits for; -1 for none.
  int AwaitedPeer() const {
    if (awaited == nullptr) return -1;
    const auto holder = std::ranges::find_if(segments, [&](const Segment& segment) { return segment.Has(*awaited); });
    return holder != segments.end() ? static_cast<int>(holder - segments.begin()) : -1;
  }
  // Waits until every other rank's flag, as chosen by `flag_of(Segment&)`, has reached `value`.
  template <typename FlagOf>
  Status AwaitOthers(FlagOf flag_of, uint32_t value) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      SE_RETURN_IF_ERROR(AwaitFlag(flag_of(of(peer)), value));
    }
    return Status::Ok();
  }
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_SHARED_GROUP_H_
