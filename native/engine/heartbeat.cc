#include "engine/heartbeat.h"

#include <algorithm>
#include <set>

namespace spark_estimator {
namespace {

// Distances of powers of two both ways: symmetric, and any two ranks are at most log2(size) watchers apart.
std::vector<int> WatchedBy(int rank, int size) {
  std::set<int> ranks;
  if (size <= Heartbeat::kAllWatchAll) {
    for (int peer = 0; peer < size; ++peer) ranks.insert(peer);
  } else {
    for (int distance = 1; distance <= size / 2; distance *= 2) {
      ranks.insert((rank + distance) % size);
      ranks.insert((rank - distance + size) % size);
    }
  }
  ranks.erase(rank);
  return {ranks.begin(), ranks.end()};
}

Clock::duration Ticks(Seconds seconds) { return std::chrono::duration_cast<Clock::duration>(seconds); }

}  // namespace

Heartbeat::Heartbeat(int rank, int size, Seconds interval, Seconds silence, Time now)
    : interval_(Ticks(std::max(interval, Seconds(0)))),
      silence_(silence > Seconds(0) ? Ticks(std::max(silence, 3 * interval)) : Clock::duration(0)),
      watched_(WatchedBy(rank, size)),
      heard_(static_cast<size_t>(size), Time::max()),
      awake_(now),
      next_send_(now) {
  for (const int peer : watched_) heard_[static_cast<size_t>(peer)] = now;
}

void Heartbeat::NoteAwake(Time now) {
  if (now - awake_ > silence_ / 2) {
    for (Time& heard : heard_) {
      if (heard != Time::max()) heard = now;
    }
  }
  awake_ = now;
}

bool Heartbeat::DueToSend(Time now) {
  NoteAwake(now);
  if (!enabled() || watched_.empty() || now < next_send_) return false;
  next_send_ = now + interval_;
  return true;
}

void Heartbeat::Heard(int rank, Time now) {
  NoteAwake(now);
  if (Time& heard = heard_[static_cast<size_t>(rank)]; heard != Time::max()) heard = now;
}

void Heartbeat::Forget(int rank) {
  heard_[static_cast<size_t>(rank)] = Time::max();
  std::erase(watched_, rank);
}

std::optional<int> Heartbeat::Lost(Time now) {
  NoteAwake(now);
  if (!enabled() || silence_ == Clock::duration(0) || watched_.empty()) return std::nullopt;
  const auto heard_at = [&](int rank) { return heard_[static_cast<size_t>(rank)]; };
  const int quietest = *std::ranges::min_element(watched_, {}, heard_at);
  return now - heard_at(quietest) > silence_ ? std::optional<int>(quietest) : std::nullopt;
}

double Heartbeat::SilentSeconds(int rank, Time now) const {
  const Time heard = heard_[static_cast<size_t>(rank)];
  return heard == Time::max() ? 0.0 : Seconds(now - heard).count();
}

Time Heartbeat::NextWake() const {
  if (!enabled() || watched_.empty()) return Time::max();
  if (silence_ == Clock::duration(0)) return next_send_;
  // Often enough that our own pauses are told from the peers'.
  Time wake = std::min(next_send_, awake_ + silence_ / 4);
  for (const int peer : watched_)
    wake = std::min(wake, heard_[static_cast<size_t>(peer)] + silence_ + Clock::duration(1));
  return wake;
}

}  // namespace spark_estimator
