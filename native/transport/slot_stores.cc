#include "transport/slot_stores.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/kernels.h"

namespace spark_estimator {

void SlotStores::BeginBlock() {
  const uint32_t turn = blocks_++ % kPeriod;
  // Twice in a row each way at the start of a period, as the lesser of two counts.
  timed_ = turn < 2 ? kCached : turn < 4 ? kPast : kUntimed;
  if (timed_ != kUntimed) {
    past_ = timed_ == kPast;
    return;
  }
  const auto cost = [&](Way way) { return std::min(costs_[way][0], costs_[way][1]); };
  past_ = cost(kPast) > 0.0 && cost(kCached) > kPays * cost(kPast);
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
    Took(way, SecondsSince(start) * 1e9 / static_cast<double>(bytes));
  }
}

void SlotStores::Took(int way, double nanoseconds_per_byte) {
  auto& costs = costs_[static_cast<size_t>(way)];
  costs[1] = costs[0];
  costs[0] = nanoseconds_per_byte;
}

}  // namespace spark_estimator
