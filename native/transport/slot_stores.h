// How a rank writes what the other ranks of its host will read: through its caches, or past them into memory.
#ifndef SPARK_ESTIMATOR_TRANSPORT_SLOT_STORES_H_
#define SPARK_ESTIMATOR_TRANSPORT_SLOT_STORES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace spark_estimator {

// Learns by timing its own stores. A line that another core has read must be taken from that core's cache before it can
// be written: on cores that share a cache this is the fastest way to transfer it, but between sockets, where the host
// of a virtual machine may put its cores at any time, each line waits for a trip between them, and storing past the
// caches is ten times as fast. What is stored past them costs its reader a little more, so it has to pay clearly.
//
// Each rank decides for itself; readers need not know.
class SlotStores {
 public:
  static constexpr uint32_t kPeriod = 512;     // one of this many blocks is stored each way, to be timed
  static constexpr size_t kTimedBytes = 4096;  // fewer show little about bandwidth
  // From here on the processor runs ahead of the stores, and the ways compare differently.
  static constexpr size_t kLargeBytes = 16384;
  // How much longer the cached way has to take before it is abandoned; more where ranks share cores, and so caches.
  static constexpr double kPays = 2.5;
  static constexpr double kPaysShared = 4.0;

  // Begins a block of pieces of about this number of bytes, that is, decides how to store up to the next block.
  void BeginBlock(size_t piece_bytes, bool cores_shared);

  // Copies into a slot. What is copied may be read by others after a store that releases.
  void Copy(void* to, const void* from, size_t bytes);

  // For stores that are not copies.
  bool past_caches() const { return past_; }

 private:
  enum Way {
    kCached,
    kPast,
    kWays
  };
  static constexpr int kUntimed = -1;

  // Of small pieces, or of large ones.
  struct Learned {
    uint32_t blocks = 0;
    // Nanoseconds a byte: the last measurements, of which the smaller counts, since a rank may be preempted.
    std::array<std::array<double, 2>, kWays> costs{};

    double cost(Way way) const { return std::min(costs[way][0], costs[way][1]); }
  };

  std::array<Learned, 2> learned_{};
  size_t size_class_ = 0;
  bool past_ = false;
  int timed_ = kUntimed;  // the way to time with the first copy of this block
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_SLOT_STORES_H_
