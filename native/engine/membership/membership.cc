#include "engine/membership/membership.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace spark_estimator {

Membership::Membership(int rank, int size) : rank_(rank), members_(static_cast<size_t>(size)) {}

void Membership::Describe(int rank, int global_rank, std::string name) {
  Member& member = members_[static_cast<size_t>(rank)];
  member.global_rank = global_rank;
  member.name = std::move(name);
}

void Membership::Rename(int rank, std::string name) { members_[static_cast<size_t>(rank)].name = std::move(name); }

std::vector<int> Membership::global_ranks() const {
  std::vector<int> ranks;
  for (const Member& member : members_) ranks.push_back(member.global_rank);
  return ranks;
}

std::string Membership::NameOf(int rank) const {
  const Member& member = members_[static_cast<size_t>(rank)];
  return "rank " + std::to_string(member.global_rank) + (member.name.empty() ? "" : " on " + member.name);
}

void Membership::RankLeft(int rank, const Goodbye& goodbye, Time now) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (member.presence != Presence::kLeft) num_left_ += 1;
  member.presence = Presence::kLeft;
  member.goodbye = goodbye;
  StopWatching(rank, now);
}

Status Membership::RankLost(int rank, const std::string& what) {
  Member& member = members_[static_cast<size_t>(rank)];
  if (member.presence == Presence::kPresent) member.presence = Presence::kLost;
  lost_rank_ = rank;
  return Status(SE_PEER_LOST, NameOf(rank) + " " + what);
}

Status Membership::Aborted(const Abort& abort, int sender) {
  lost_rank_ = abort.lost_rank;
  return Status(SE_PEER_LOST, abort.reason + " (reported by rank " + std::to_string(global_rank(sender)) + ")");
}

Status Membership::CheckDepartures(int64_t number) {
  for (const Member& member : members_) {
    if (member.presence != Presence::kLeft || member.goodbye.executed >= number) continue;
    first_leaver_ = member.goodbye.first_leaver;
    return Status(SE_SHUT_DOWN,
                  NameOf(first_leaver_) +
                      " has left the job: it shut down, or its function returned or raised. If it ended without an "
                      "error, the ranks made different numbers of collectives, for example because they have different "
                      "numbers of batches: give all ranks the same number, or call hvd.join()");
  }
  return Status::Ok();
}

bool Membership::LeaversTookPartIn(int64_t executed) const {
  return std::ranges::all_of(members_, [&](const Member& member) {
    return member.presence != Presence::kLeft || member.goodbye.executed >= executed;
  });
}

Goodbye Membership::OwnGoodbye(int64_t executed) const {
  return Goodbye{executed, first_leaver_ >= 0 ? first_leaver_ : rank_};
}

Status Membership::WithOwnName(const Status& why) const {
  const std::string name = NameOf(rank_);
  if (lost_rank_ >= 0 || why.code() == SE_SHUT_DOWN || why.message().starts_with(name)) return why;
  return why.Within(name + " failed");
}

Abort Membership::AbortFor(const Status& why) const {
  return Abort{lost_rank_ >= 0 ? lost_rank_ : rank_, WithOwnName(why).message()};
}

void Membership::StartHeartbeat(Seconds interval, Seconds silence, Time now, bool overlay) {
  heartbeat_.emplace(rank_, size(), interval, silence, now, overlay);
}

void Membership::Heard(int rank, Time now) {
  if (heartbeat_) heartbeat_->Heard(rank, now);
}

void Membership::WatchedBy(int rank, Time now) {
  if (heartbeat_) heartbeat_->WatchedBy(rank, now);
}

void Membership::StopWatching(int rank, Time now) {
  if (heartbeat_) heartbeat_->Forget(rank, now);
}

Status Membership::RankSilent(int rank, Time now) {
  char silence[32];
  std::snprintf(silence, sizeof(silence), "%.1f", heartbeat_ ? heartbeat_->SilentSeconds(rank, now) : 0.0);
  return RankLost(rank, std::string("is lost: it has sent no heartbeat for ") + silence +
                            " s (its process is frozen, or its machine or the network to it is gone). "
                            "SPARK_ESTIMATOR_SILENCE_SECONDS sets this time");
}

}  // namespace spark_estimator
