#include "engine/negotiation/negotiation_leader.h"

#include <algorithm>

namespace spark_estimator {

NegotiationLeader::NegotiationLeader(std::vector<int> global_ranks, int64_t fusion_threshold_bytes)
    : coordinator_(global_ranks, fusion_threshold_bytes), states_(global_ranks.size(), RankState::kInRounds) {}

NegotiationLeader::Receipt NegotiationLeader::Receive(int rank, Requests requests, uint32_t epoch, bool epoch_ends,
                                                      Time now) {
  if (requests.epoch < epoch || (requests.epoch == epoch && epoch_ends)) return Receipt::kStale;
  if (requests.epoch > epoch) {
    early_.push_back({rank, std::move(requests)});
    return Receipt::kEarly;
  }
  RankLeftRounds(rank);
  for (Signature& signature : requests.signatures) coordinator_.Add(rank, std::move(signature), now);
  return Receipt::kTaken;
}

std::vector<Response> NegotiationLeader::TakeResponses(bool all_obeyed, uint32_t position) {
  std::vector<Response> responses = coordinator_.TakeReady();
  // A rank that has not left the rounds yet may have requests, too.
  const auto negotiates = [](RankState state) { return state == RankState::kNegotiating; };
  if (all_obeyed && !coordinator_.has_waiting() && std::ranges::all_of(states_, negotiates)) {
    states_.assign(states_.size(), RankState::kInRounds);
    Response resume;
    resume.kind = Response::Kind::kResume;
    resume.position = position + kResumeDistance;
    responses.push_back(std::move(resume));
  }
  return responses;
}

}  // namespace spark_estimator
