#include "transport/slot_stores.h"

#include <cstring>

#include "base/clock.h"
#include "base/kernels/kernels.h"

namespace spark_estimator {

void SlotStores::BeginBlock(size_t piece_bytes, bool cores_shared) {
  size_class_ = piece_bytes >= kLargeBytes ? 1 : 0;
  Learned& learned = learned_[size_class_];
  const uint32_t turn = learned.blocks++ % kPeriod;
  // Each way twice in a row at the start of a period, since the smaller of two measurements counts.
  timed_ = turn < 2 ? kCached : turn < 4 ? kPast : kUntimed;
  past_ = timed_ == kPast;
  if (timed_ != kUntimed) return;
  past_ =
      learned.cost(kPast) > 0.0 && learned.cost(kCached) > (cores_shared ? kPaysShared : kPays) * learned.cost(kPast);
  // The host of a virtual machine moves its cores without a word: what it costs to look is nothing beside a large
  // piece.
  if (!past_ && size_class_ == 1) timed_ = kCached;
}

void SlotStores::Copy(void* to, const void* from, size_t bytes) {
  const int way = bytes >= kTimedBytes ? timed_ : kUntimed;
  const Time start = way == kUntimed ? Time() : Clock::now();
  if (past_) {
    GetKernels().copy_past_caches(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
  if (way != kUntimed) {
    timed_ = kUntimed;
    auto& costs = learned_[size_class_].costs[static_cast<size_t>(way)];
    costs[1] = costs[0];
    costs[0] = SecondsSince(start) * 1e9 / static_cast<double>(bytes);
  }
}

}  // namespace spark_estimator
