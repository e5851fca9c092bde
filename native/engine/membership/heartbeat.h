// Detects lost peers: when to send heartbeats, to which ranks, and which peer has been silent for too long. No I/O;
// times are arguments.
//
// A connection's end shows that a process died; only silence shows that one is frozen or cut off. The engine's own
// thread sends heartbeats, so a peer that computes, holds Python's lock or waits in a collective still sends them.
#ifndef SPARK_ESTIMATOR_ENGINE_HEARTBEAT_H_
#define SPARK_ESTIMATOR_ENGINE_HEARTBEAT_H_

#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"

namespace spark_estimator {

// Not thread-safe. `now` may be equal in consecutive calls but must not decrease.
class Heartbeat {
 public:
  // `interval` between two heartbeats to each watched peer; 0: none are sent and no rank is ever lost. A peer that gave
  // none for longer than `silence` is lost; 0: no rank is ever lost. A silence below three intervals counts as three:
  // one heartbeat may be late, another in flight.
  // `overlay`: only ranks at distances of powers of two are connected.
  Heartbeat(int rank, int size, Seconds interval, Seconds silence, Time now, bool overlay = false);

  // The ranks that this one sends to and receives from, ascending. Of the ranks that have not left these are all, when
  // they are up to kAllWatchAll; else those at distances of powers of two, about 2 log2(size), so every rank that stays
  // is watched by others that stay. A watches B exactly when B watches A, as soon as both know who has left. With an
  // overlay they are those at distances of powers of two of the whole group, as far as they stay.
  std::span<const int> watched() const { return watched_; }
  bool enabled() const { return interval_ > Seconds(0); }

  // True if a heartbeat has to be sent now to all watched peers; the next one is then due in an interval.
  bool DueToSend(Time now);
  // Any bytes of `rank` arrived: a heartbeat, a control frame, a part of a tensor. Ranks that are not watched are
  // allowed.
  void Heard(int rank, Time now);
  // A heartbeat of `rank`, which therefore watches this one and expects heartbeats in return from now on. The two may
  // not know the same departures yet, and so disagree about which rank watches which.
  void WatchedBy(int rank, Time now);
  // `rank` has left, in good order or not: its silence means nothing any more. Without an overlay the others' watches
  // are dealt out again among those that stay. The clock of a rank that is newly watched starts now.
  void Forget(int rank, Time now);
  // The watched rank that has been silent for longest, if for more than `silence`. To be called after arrived data was
  // read and reported to Heard(). If this object itself was not called for half of `silence` (the process was stopped
  // or swapped out, the machine was suspended), all clocks restart: it was we who were away.
  std::optional<int> Lost(Time now);
  // Seconds since a watched rank last sent data (or since the clocks restarted); 0 for one that is not watched.
  double SilentSeconds(int rank, Time now) const;
  // By when DueToSend() and Lost() have to be called again; Time::max() when not enabled.
  Time NextWake() const;

  static constexpr int kAllWatchAll = 16;

 private:
  void NoteAwake(Time now);

  // Watches the ranks that are this one's to watch among those that stay, and no others.
  void Deal(Time now);
  bool Watches(int rank) const { return heard_[static_cast<size_t>(rank)] != Time::max(); }

  int rank_;
  bool overlay_;
  Clock::duration interval_;
  Clock::duration silence_;
  std::vector<int> staying_;  // the ranks that have not left, this one included; ascending
  std::vector<int> watched_;
  std::vector<Time> heard_;  // [size], by rank; Time::max() for who is not watched
  Time awake_;               // of the last call
  Time next_send_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_HEARTBEAT_H_
