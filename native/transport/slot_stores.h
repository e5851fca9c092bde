// How a rank writes what the other ranks of its host will read: through its caches, or past them into memory.
#ifndef SPARK_ESTIMATOR_TRANSPORT_SLOT_STORES_H_
#define SPARK_ESTIMATOR_TRANSPORT_SLOT_STORES_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace spark_estimator {

// Learns by timing its own stores. A line that another core has read must be taken from that core's cache before it can
// be written: on cores that share a cache this is the fastest way to hand it over, but between sockets, where the host
// of a virtual machine may put its cores at any time, each line waits for a trip between them, and storing past the
// caches is ten times as fast. What is stored past them costs its reader a little more, so it has to pay clearly.
//
// Each rank decides for itself; readers need not know.
class SlotStores {
 public:
  static constexpr uint32_t kPeriod = 512;      // of this many blocks one is stored each way to be timed
  static constexpr size_t kTimedBytes = 4096;   // fewer say little about bandwidth
  static constexpr double kPays = 2.5;          // the cached way takes this much longer before it is left

  // Begins a block, that is, decides how the stores up to the next block go.
  void BeginBlock();

  // Copies into a slot. What is copied may be read by others after a store that releases.
  void Copy(void* to, const void* from, size_t bytes);

  // For stores that are not copies.
  bool past_caches() const { return past_; }

 private:
  enum Way { kCached, kPast, kWays };
  static constexpr int kUntimed = -1;

  void Took(int way, double nanoseconds_per_byte);

  uint32_t blocks_ = 0;
  bool past_ = false;
  int timed_ = kUntimed;  // the way that the first copy of this block is to be timed on
  // Nanoseconds a byte: the last measurements, of which the lesser counts, since a rank may be pushed off its core.
  std::array<std::array<double, 2>, kWays> costs_{};
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_SLOT_STORES_H_
