// Who is in the group: the ranks' names, who has left in good order, who is lost, and whose silence is too long.
//
// The transitions of a rank's presence:
//
//   state      RankLeft (its goodbye)         RankLost (its link ended, it was silent, it broke the protocol)
//   kPresent   kLeft                          kLost
//   kLeft      kLeft, with the new goodbye    refused: stays kLeft
//   kLost      kLeft                          kLost
//
// RankLost names the rank as the one that broke the job in every case: also one that has left may send nonsense.
//
// It holds no sockets and reads no clock. Threads: used by the driving thread; NameOf() and global_rank() by any once
// the engine is created.
#ifndef SPARK_ESTIMATOR_ENGINE_MEMBERSHIP_H_
#define SPARK_ESTIMATOR_ENGINE_MEMBERSHIP_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/membership/heartbeat.h"
#include "engine/wire/message.h"

namespace spark_estimator {

class Membership {
 public:
  enum class Presence : uint8_t {
    kPresent,
    kLeft,
    kLost
  };

  Membership(int rank, int size);

  // --- names, set while the engine is created

  void Describe(int rank, int global_rank, std::string name);
  void Rename(int rank, std::string name);
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  int global_rank(int rank) const { return members_[static_cast<size_t>(rank)].global_rank; }
  std::vector<int> global_ranks() const;
  // "rank 3 on host (pid 5)"
  std::string NameOf(int rank) const;

  // --- who has left, who is lost

  Presence presence(int rank) const { return members_[static_cast<size_t>(rank)].presence; }
  bool has_left(int rank) const { return presence(rank) == Presence::kLeft; }
  bool any_left() const { return num_left_ > 0; }
  // `rank` has sent its goodbye: it sends nothing more. With an overlay older frames of it may arrive later.
  void RankLeft(int rank, const Goodbye& goodbye, Time now);
  // SE_PEER_LOST with the rank's name and `what`, as in "is lost: ...".
  Status RankLost(int rank, const std::string& what);
  // Another rank's account of who broke the job.
  Status Aborted(const Abort& abort, int sender);
  // The rank that broke the job, by the latest account; -1 for none.
  int lost_rank() const { return lost_rank_; }
  // SE_SHUT_DOWN when a rank has left without taking part in operation `number`; the goodbye names who left first.
  Status CheckDepartures(int64_t number);
  // Whether all that have left took part in `executed` operations.
  bool LeaversTookPartIn(int64_t executed) const;
  // This rank's own goodbye.
  Goodbye OwnGoodbye(int64_t executed) const;
  // A failure of this rank itself, with its name in front; others as they are.
  Status WithOwnName(const Status& why) const;
  // The message on this failure for the other ranks.
  Abort AbortFor(const Status& why) const;

  // --- heartbeats; nothing happens if they are disabled

  bool has_heartbeat() const { return heartbeat_.has_value(); }
  void StartHeartbeat(Seconds interval, Seconds silence, Time now, bool overlay = false);
  // Data has arrived from `rank`.
  void Heard(int rank, Time now);
  // `rank` has sent a heartbeat: it watches this one.
  void WatchedBy(int rank, Time now);
  // `rank` is not watched any more.
  void StopWatching(int rank, Time now);
  // Whether heartbeats are to be sent now, to watched().
  bool DueToSend(Time now) { return heartbeat_ && heartbeat_->DueToSend(now); }
  std::span<const int> watched() const { return heartbeat_ ? heartbeat_->watched() : std::span<const int>(); }
  // A watched rank that has been silent for too long.
  std::optional<int> Silent(Time now) { return heartbeat_ ? heartbeat_->Lost(now) : std::nullopt; }
  // RankLost for a rank that Silent() gave.
  Status RankSilent(int rank, Time now);
  // When DueToSend() and Silent() are to be asked again.
  Time NextWake() const { return heartbeat_ ? heartbeat_->NextWake() : Time::max(); }

 private:
  struct Member {
    int global_rank = 0;
    std::string name;
    Presence presence = Presence::kPresent;
    Goodbye goodbye;  // of kLeft
  };

  const int rank_;
  std::vector<Member> members_;  // [size], by rank
  std::optional<Heartbeat> heartbeat_;
  int num_left_ = 0;
  int lost_rank_ = -1;
  int first_leaver_ = -1;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_MEMBERSHIP_H_
