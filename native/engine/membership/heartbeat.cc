#include "engine/membership/heartbeat.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace spark_estimator {
namespace {

// Those at distances of powers of two both ways: symmetric, and any two ranks are at most log2(size) watchers apart.
// `staying` is ascending and contains `rank`.
std::set<int> WatchedAmong(const std::vector<int>& staying, int rank, bool overlay) {
  std::set<int> ranks;
  const size_t size = staying.size();
  if (size <= Heartbeat::kAllWatchAll && !overlay) {
    ranks.insert(staying.begin(), staying.end());
  } else {
    const auto own_index = static_cast<size_t>(std::ranges::lower_bound(staying, rank) - staying.begin());
    for (size_t distance = 1; distance <= size / 2; distance *= 2) {
      ranks.insert(staying[(own_index + distance) % size]);
      ranks.insert(staying[(own_index + size - distance) % size]);
    }
  }
  ranks.erase(rank);
  return ranks;
}

Clock::duration Ticks(Seconds seconds) { return std::chrono::duration_cast<Clock::duration>(seconds); }

}  // namespace

Heartbeat::Heartbeat(int rank, int size, Seconds interval, Seconds silence, Time now, bool overlay)
    : rank_(rank),
      overlay_(overlay),
      interval_(Ticks(std::max(interval, Seconds(0)))),
      silence_(silence > Seconds(0) ? Ticks(std::max(silence, 3 * interval)) : Clock::duration(0)),
      staying_(static_cast<size_t>(size)),
      heard_(static_cast<size_t>(size), Time::max()),
      awake_(now),
      next_send_(now) {
  std::iota(staying_.begin(), staying_.end(), 0);
  Deal(now);
}

void Heartbeat::Deal(Time now) {
  std::set<int> wanted = WatchedAmong(staying_, rank_, overlay_);
  for (const int peer : watched_) {
    if (!wanted.contains(peer)) heard_[static_cast<size_t>(peer)] = Time::max();
  }
  for (const int peer : wanted) {
    if (!Watches(peer)) heard_[static_cast<size_t>(peer)] = now;
  }
  watched_.assign(wanted.begin(), wanted.end());
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

void Heartbeat::WatchedBy(int rank, Time now) {
  if (rank == rank_ || Watches(rank) || !std::ranges::binary_search(staying_, rank)) return;
  watched_.insert(std::ranges::lower_bound(watched_, rank), rank);
  heard_[static_cast<size_t>(rank)] = now;
}

void Heartbeat::Forget(int rank, Time now) {
  if (rank == rank_ || std::erase(staying_, rank) == 0) return;
  heard_[static_cast<size_t>(rank)] = Time::max();
  std::erase(watched_, rank);
  // In a small group all ranks watch all others, also after departures. With an overlay there are no other connections.
  if (staying_.size() + 1 > kAllWatchAll && !overlay_) Deal(now);
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
  // Often enough that this process's own pauses are distinguished from the peers'.
  Time wake = std::min(next_send_, awake_ + silence_ / 4);
  for (const int peer : watched_)
    wake = std::min(wake, heard_[static_cast<size_t>(peer)] + silence_ + Clock::duration(1));
  return wake;
}

}  // namespace spark_estimator
