#include "engine/negotiation/negotiation_driver.h"

#include <algorithm>
#include <cstdio>

#include "engine/wire/validity.h"

namespace spark_estimator {

void NegotiationDriver::Lead(NegotiationLeader leader, StallReporter stalls) {
  leader_.emplace(std::move(leader));
  stalls_.emplace(std::move(stalls));
}

// --- this rank's requests

void NegotiationDriver::Begin() {
  std::vector<RequestPtr> pending = parts_.pending->TakeAll();
  std::ranges::sort(pending, {}, &Request::order);
  Send(pending);
  if (leads()) leader_->RankLeftRounds(parts_.membership->rank());
}

void NegotiationDriver::Send(const std::vector<RequestPtr>& requests) {
  const RoundId round = parts_.rounds->round();
  Requests message{round.epoch, round.position, {}};
  for (const RequestPtr& request : requests) {
    if (!negotiation_.Add(request)) {
      // Numbered from 0 again since a join, while an older one of that number is still negotiated: its turn is after
      // that.
      const RequestTable::Lock lock = parts_.requests->lock();
      parts_.requests->submitted().push_back(request);
      continue;
    }
    Signature signature = *request->signature;
    signature.number = request->number;
    if (leads()) {
      leader_->Add(parts_.membership->rank(), std::move(signature), Clock::now());
    } else {
      message.signatures.push_back(std::move(signature));
    }
  }
  if (!leads()) parts_.links->Send(0, FrameType::kRequests, Encode(message));
}

Status NegotiationDriver::Advance() {
  {
    RequestTable::Lock lock = parts_.requests->lock();
    const std::vector<RequestPtr> submitted = std::exchange(parts_.requests->submitted(), {});
    lock.unlock();
    if (!submitted.empty()) Send(submitted);
  }
  if (leads()) MakeResponses();
  while (negotiation_.has_responses()) {
    SE_RETURN_IF_ERROR(Obey(negotiation_.TakeResponse()));
    // After a return to the rounds, later frames are of another epoch.
    if (parts_.rounds->in_rounds()) break;
  }
  return Status::Ok();
}

Time NegotiationDriver::NextWake() const {
  const bool negotiates = !parts_.rounds->in_rounds();
  // Requests also arrive while an operation waits for its peers.
  const bool has_ready = leads() && leader_->coordinator().has_ready();
  if (negotiates && (has_responses() || has_ready)) return Clock::now();
  Time next = Time::max();
  if (!leads()) return next;
  if (negotiates && stalls_->enabled() && leader_->coordinator().has_waiting()) next = stalls_->next_check();
  return std::min(next, stalls_->next_deadline());
}

// --- rank 0

bool NegotiationDriver::ReceiveRequests(int rank, const std::string& payload) {
  Requests requests;
  const int size = parts_.membership->size();
  const auto possible = [&](const Signature& signature) { return IsPossible(signature, size); };
  if (!leads() || !Decode(payload, &requests) || !std::ranges::all_of(requests.signatures, possible)) return false;
  TakeIn(rank, std::move(requests));
  return true;
}

void NegotiationDriver::TakeIn(int rank, Requests requests) {
  const auto receipt = leader_->Receive(rank, std::move(requests), parts_.rounds->round().epoch,
                                        negotiation_.ends_with_resume(), Clock::now());
  if (receipt == NegotiationLeader::Receipt::kTaken) parts_.rounds->LeaveNext();
}

void NegotiationDriver::MakeResponses() {
  ReportStalls();
  std::vector<Response> responses =
      leader_->TakeResponses(!negotiation_.has_responses(), parts_.rounds->round().position);
  if (responses.empty()) return;
  parts_.links->SendToAll(FrameType::kResponses, Encode(responses));
  negotiation_.Receive(std::move(responses));
}

bool NegotiationDriver::ReceiveStall(const std::string& payload) {
  RoundId round;
  if (!leads() || !Decode(payload, &round)) return false;
  if (parts_.rounds->PeerStalled(round)) parts_.links->SendToAll(FrameType::kEnterFullNegotiation, payload);
  return true;
}

// --- responses

bool NegotiationDriver::ReceiveResponses(int rank, const std::string& payload) {
  std::vector<Response> responses;
  const int size = parts_.membership->size();
  const auto possible = [&](const Response& response) { return IsPossible(response, size); };
  if (rank != 0 || !Decode(payload, &responses) || !std::ranges::all_of(responses, possible)) return false;
  negotiation_.Receive(std::move(responses));
  parts_.rounds->LeaveNext();
  return true;
}

Status NegotiationDriver::Obey(const Response& response) {
  Increase(parts_.counters->responses);
  switch (response.kind) {
    case Response::Kind::kRun:
      return Run(response);
    case Response::Kind::kFail:
      Fail(response);
      return Status::Ok();
    case Response::Kind::kJoined:
      parts_.runner->CountWithoutRun();
      parts_.requests->RestartNumbers();
      if (const RequestPtr join = negotiation_.TakeJoin()) {
        join->last_joined = response.last_joined;
        parts_.requests->Complete(*join, Status::Ok());
      }
      return Status::Ok();
    case Response::Kind::kResume:
      Resume(response.position);
      return Status::Ok();
  }
  return Status(SE_INTERNAL, "the coordinator sent a response of an unknown kind");
}

Status NegotiationDriver::Run(const Response& response) {
  Negotiation::Operation operation;
  SE_RETURN_IF_ERROR(negotiation_.Match(response, &operation));
  const std::vector<RequestPtr>& requests = operation.requests;
  const Membership& membership = *parts_.membership;
  std::vector<const Signature*> signatures;
  for (const RequestPtr& request : requests) signatures.push_back(request->signature.get());
  if (!MayBeOne(signatures, parts_.parameters->fusion_threshold_bytes)) {
    return parts_.membership->RankLost(0, "sent a response that makes one operation of " + LabelOf(*requests[0]) +
                                              " and " + std::to_string(requests.size() - 1) +
                                              " more, which cannot be fused");
  }
  if (!RowsFit(response.rows, *requests[0]->signature, membership.rank(), membership.size())) {
    return parts_.membership->RankLost(0, "sent a response for " + LabelOf(*requests[0]) + " with rows that cannot be");
  }
  const Time now = Clock::now();
  Time youngest{};  // of what this rank has submitted
  for (const RequestPtr& request : requests) {
    request->agreed = now;
    youngest = std::max(youngest, request->submitted);
  }
  if (youngest != Time()) {
    Increase(parts_.counters->wait_nanoseconds,
             std::chrono::duration_cast<std::chrono::nanoseconds>(now - youngest).count());
  }
  SE_RETURN_IF_ERROR(parts_.runner->Run(requests, response.rows, OperationRunner::AgreedBy::kCoordinator));
  if (!response.signatures.empty()) return Status::Ok();  // a rank took part without a request: nothing to remember
  for (const RequestPtr& request : requests) parts_.cache->Insert(request->signature, response.rows);
  return Status::Ok();
}

void NegotiationDriver::Fail(const Response& response) {
  const bool named = response.number == Signature::kNamed;
  for (const std::string& name : response.names) {
    // What was agreed on for unnamed requests is not about this one alone.
    if (named) parts_.cache->Erase(name);
    if (std::ranges::find(response.rows, parts_.membership->rank()) != response.rows.end()) continue;
    const RequestPtr request = negotiation_.TakeFailed(name);
    if (request == nullptr) {
      // The other ranks have given up waiting for this rank, which has not yet made its request of that number: when it
      // does, that one has failed as well, and the next ones match again.
      if (!named) parts_.requests->FailUnnamed(response.KindOfUnnamed(), response.number, response.text);
      continue;
    }
    const Time now = Clock::now();
    request->agreed = now;
    parts_.runner->RecordFailure(*request, SE_MISMATCH, now);
    parts_.requests->Complete(*request, Status(SE_MISMATCH, response.text));
  }
  parts_.runner->CountWithoutRun();
}

void NegotiationDriver::Resume(uint32_t position) {
  // Frames after this response are about the next return to full negotiation.
  parts_.rounds->Resume(position, negotiation_.has_responses());
  // The coordinator will never see requests that it has not answered: they are proposed again.
  std::vector<RequestPtr> unanswered = negotiation_.TakeAll();
  if (leads()) {
    for (auto& [rank, requests] : leader_->TakeEarly()) TakeIn(rank, std::move(requests));
  }
  const RequestTable::Lock lock = parts_.requests->lock();
  parts_.pending->Add(unanswered);
  parts_.pending->Add(parts_.requests->submitted());
  // Waiting callers may continue in their own threads.
  parts_.turn->WakeAllIfAnyWaits();
}

// --- stalls

void NegotiationDriver::ReportStalls() {
  if (!leader_->coordinator().has_waiting()) return;
  std::vector<std::string> lines;
  const auto questions = stalls_->Check(leader_->coordinator(), Clock::now(), &lines);
  const int global_rank = parts_.membership->global_rank(parts_.membership->rank());
  for (const std::string& line : lines) {
    std::fprintf(stderr, "[spark_estimator] rank %d: %s\n", global_rank, line.c_str());
  }
  // A rank that others wait for reads it in its own log, and is asked what it is doing instead.
  for (const StallReporter::Question& question : questions) {
    if (question.rank == parts_.membership->rank()) {
      parts_.questions->Ask(question.number);
      continue;
    }
    parts_.links->Send(question.rank, FrameType::kNotice, question.about);
    parts_.links->Send(question.rank, FrameType::kAsk, Encode(QuestionMessage{question.number, question.about}));
  }
}

void NegotiationDriver::TendQuestions() {
  for (const QuestionMessage& answer : parts_.questions->TakeAnswers()) {
    if (!leads()) {
      parts_.links->Send(0, FrameType::kAnswer, Encode(answer));
    } else if (stalls_->Answered(answer.number)) {
      PrintAnswer(parts_.membership->rank(), answer.text);
    }
  }
  if (!leads() || !stalls_->has_open_questions()) return;
  for (const int rank : stalls_->TakeOverdue(Clock::now())) {
    std::fprintf(stderr,
                 "[spark_estimator] %s did not report its stack within %.0f s: its Python code is blocked "
                 "(native code may hold the GIL)\n",
                 parts_.membership->NameOf(rank).c_str(), StallReporter::kAnswerTime.count());
  }
}

bool NegotiationDriver::ReceiveAnswer(int rank, const std::string& payload) {
  QuestionMessage answer;
  if (!leads() || !Decode(payload, &answer)) return false;
  if (stalls_->Answered(answer.number)) PrintAnswer(rank, answer.text);
  return true;
}

void NegotiationDriver::PrintAnswer(int rank, const std::string& text) const {
  std::fprintf(stderr, "[spark_estimator] current stack of %s:\n%s\n", parts_.membership->NameOf(rank).c_str(),
               text.c_str());
}

void NegotiationDriver::RankLeft(int rank) {
  if (stalls_) stalls_->RankLeft(rank);
}

}  // namespace spark_estimator
