// Negotiation in full: requests go to the coordinator on rank 0, and all ranks do what its responses say.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/dtype.h"
#include "engine/engine.h"
#include "engine/validity.h"

namespace spark_estimator {
namespace {

// How long a process has to say what it is doing.
constexpr Seconds kAnswerTime{3.0};
// Positions between the last one of an epoch and the first of the next: a late rank may still read the slot of the
// last one, which is written again only two positions after the first that it takes part in.
constexpr uint32_t kResumeDistance = 3;

std::vector<int64_t> NumbersOf(const Parameters& parameters) {
  const Tuning& tuning = parameters.tuning;
  return {parameters.fusion_threshold_bytes, static_cast<int64_t>(tuning.one_shot_bytes),
          static_cast<int64_t>(tuning.exchange_bytes), static_cast<int64_t>(tuning.ring_bytes), tuning.hierarchical};
}

Parameters ParametersOf(const std::vector<int64_t>& numbers) {
  Parameters parameters;
  if (numbers.size() < 5) return parameters;
  parameters.fusion_threshold_bytes = numbers[0];
  parameters.tuning.one_shot_bytes = static_cast<size_t>(numbers[1]);
  parameters.tuning.exchange_bytes = static_cast<size_t>(numbers[2]);
  parameters.tuning.ring_bytes = static_cast<size_t>(numbers[3]);
  parameters.tuning.hierarchical = static_cast<int32_t>(numbers[4]);
  return parameters;
}

}  // namespace

Status Engine::SlowCycle() {
  {
    Lock lock(mutex_);
    std::vector<RequestPtr> submitted = std::exchange(submitted_, {});
    lock.unlock();
    if (!submitted.empty()) SendRequests(submitted);
  }
  SE_RETURN_IF_ERROR(Agree());
  while (!agreed_.empty()) {
    const Response response = std::move(agreed_.front());
    agreed_.pop_front();
    SE_RETURN_IF_ERROR(Obey(response));
    // After a return to the rounds, what comes next is of another epoch.
    if (fast_) break;
  }
  return Status::Ok();
}

void Engine::SendRequests(const std::vector<RequestPtr>& requests) {
  Requests message{place_.epoch, place_.position, {}};
  for (const RequestPtr& request : requests) {
    if (request->signature->op == SE_JOIN) {
      join_ = request;
    } else if (!negotiated_.emplace(FullName(*request), request).second) {
      // Counted anew since a join, while an older one of that number is still on its way: its turn comes after that.
      Lock lock(mutex_);
      submitted_.push_back(request);
      continue;
    }
    Signature signature = *request->signature;
    signature.number = request->number;
    if (coordinator_) {
      coordinator_->Add(config_.rank, std::move(signature), Clock::now());
    } else {
      message.signatures.push_back(std::move(signature));
    }
  }
  if (!coordinator_) peers_[0].control->Send(FrameType::kRequests, Encode(message));
}

Status Engine::Agree() {
  if (!coordinator_) return Status::Ok();
  if (coordinator_->has_waiting() && Clock::now() >= next_stall_check_) {
    ReportStalls();
    next_stall_check_ = After(kStallCheckInterval);
  }
  std::vector<Response> responses = coordinator_->TakeReady();
  if (next_parameters_) {
    Response tune;
    tune.kind = Response::Kind::kTune;
    tune.parameters = NumbersOf(*std::exchange(next_parameters_, std::nullopt));
    responses.push_back(std::move(tune));
  }
  // Whoever has not left the rounds yet may have something to say, too.
  const bool all_here = std::all_of(left_rounds_.begin(), left_rounds_.end(), [](bool left) { return left; });
  if (all_here && !coordinator_->has_waiting() && agreed_.empty()) {
    left_rounds_.assign(left_rounds_.size(), false);
    Response resume;
    resume.kind = Response::Kind::kResume;
    resume.position = place_.position + kResumeDistance;
    responses.push_back(std::move(resume));
  }
  if (responses.empty()) return Status::Ok();
  SendToAll(FrameType::kResponses, Encode(responses));
  for (Response& response : responses) agreed_.push_back(std::move(response));
  return Status::Ok();
}

Status Engine::Obey(const Response& response) {
  Increase(counters_.responses);
  switch (response.kind) {
    case Response::Kind::kRun:
      return RunResponse(response);
    case Response::Kind::kFail: {
      for (const std::string& name : response.names) {
        // What was agreed on for requests without a name is not about this one alone.
        if (response.number == Signature::kNamed) cache_->Erase(name);
        if (std::ranges::find(response.rows, config_.rank) != response.rows.end()) continue;
        const auto entry = negotiated_.find(name);
        if (entry == negotiated_.end()) {
          if (response.number != Signature::kNamed) FailBeforeSubmission(response);
          continue;
        }
        const RequestPtr request = entry->second;
        negotiated_.erase(entry);
        const Time now = Clock::now();
        request->agreed = now;
        Note(*request, 1, "", now, now, SE_MISMATCH, false);
        Complete({request}, Status(SE_MISMATCH, response.text));
      }
      executed_ += 1;
      return Status::Ok();
    }
    case Response::Kind::kJoined:
      executed_ += 1;
      CountAnew();
      if (join_) {
        join_->last_joined = response.last_joined;
        Complete({std::exchange(join_, nullptr)}, Status::Ok());
      }
      return Status::Ok();
    case Response::Kind::kResume:
      Resume(response.position);
      return Status::Ok();
    case Response::Kind::kTune:
      parameters_ = ParametersOf(response.parameters);
      if (coordinator_) coordinator_->set_fusion_threshold_bytes(parameters_.fusion_threshold_bytes);
      return Status::Ok();
  }
  return Status(SE_INTERNAL, "the coordinator sent a response of an unknown kind");
}

// The others have given up waiting for this rank, which has not yet come to its request of that number: when it does,
// that one has failed as well, and the next ones meet again.
void Engine::FailBeforeSubmission(const Response& response) {
  Lock lock(mutex_);
  Unnamed& kind = unnamed_[response.KindOfUnnamed()];
  if (response.number >= kind.next) {
    kind.failed_through = std::max(kind.failed_through, response.number);
    kind.failure = response.text;
    return;
  }
  const auto just_submitted = std::ranges::find_if(submitted_, [&](const RequestPtr& request) {
    return request->unnamed == &kind && request->number == response.number;
  });
  if (just_submitted == submitted_.end()) return;
  const RequestPtr request = *just_submitted;
  submitted_.erase(just_submitted);
  CompleteLocked(*request, Status(SE_MISMATCH, response.text));
}

// When all have joined, the ranks may have submitted different numbers of requests without a name.
void Engine::CountAnew() {
  Lock lock(mutex_);
  for (auto& [name, kind] : unnamed_) {
    kind.next = 0;
    kind.failed_through = -1;
  }
}

Status Engine::RunResponse(const Response& response) {
  std::vector<RequestPtr> requests;
  std::vector<Memory> zeros;
  for (size_t i = 0; i < response.names.size(); ++i) {
    const auto entry = negotiated_.find(response.names[i]);
    if (entry != negotiated_.end()) {
      requests.push_back(entry->second);
      negotiated_.erase(entry);
      continue;
    }
    if (!join_ || i >= response.signatures.size()) {
      return Status(SE_INTERNAL,
                    "the coordinator calls for '" + response.names[i] + "', which this rank never submitted");
    }
    // This rank has joined: it takes part with zeros.
    auto request = std::make_shared<Request>();
    request->signature = std::make_shared<const Signature>(response.signatures[i]);
    request->number = response.signatures[i].number;
    request->bytes = request->signature->Bytes();
    for (const Part& part : request->signature->parts) {
      if (request->signature->place == SE_GPU) {
        request->memory.push_back({});
        continue;
      }
      zeros.emplace_back(std::calloc(static_cast<size_t>(part.Bytes()) + 1, 1));
      if (!zeros.back()) {
        return Status(SE_NO_MEMORY, "could not allocate " + std::to_string(part.Bytes()) +
                                        " bytes of memory for the zeros of '" + response.names[i] + "' after join");
      }
      request->memory.push_back({zeros.back().get(), zeros.back().get(), 0});
    }
    requests.push_back(std::move(request));
  }
  if (!RowsFit(response.rows, *requests[0]->signature, config_.rank, config_.size)) {
    lost_rank_ = 0;
    return Status(SE_PEER_LOST,
                  NameOf(0) + " sent a response for " + LabelOf(*requests[0]) + " with rows that cannot be");
  }
  const Time now = Clock::now();
  Time youngest{};  // of what this rank has submitted
  for (const RequestPtr& request : requests) {
    request->agreed = now;
    youngest = std::max(youngest, request->submitted);
  }
  if (youngest != Time()) {
    Increase(counters_.wait_nanoseconds, std::chrono::duration_cast<std::chrono::nanoseconds>(now - youngest).count());
  }
  SE_RETURN_IF_ERROR(Execute(requests, response.rows, false));
  if (!response.signatures.empty()) return Status::Ok();  // somebody took part without a request: nothing to remember
  for (const RequestPtr& request : requests) cache_->Insert(request->signature, response.rows);
  return Status::Ok();
}

void Engine::Resume(uint32_t position) {
  place_ = Place{place_.epoch + 1, position};
  posted_ = false;
  // What comes after this response is about the rounds' next end.
  slow_for_certain_ = !agreed_.empty();
  if (asked_to_go_slow_ && asked_to_go_slow_->epoch < place_.epoch) asked_to_go_slow_.reset();
  rounds_->Enter(place_);
  // What the coordinator has not answered it will never see: it is proposed anew.
  std::vector<RequestPtr> pending;
  for (auto& [name, request] : negotiated_) pending.push_back(std::move(request));
  negotiated_.clear();
  if (join_) pending.push_back(std::exchange(join_, nullptr));
  std::ranges::sort(pending, {}, &Request::order);
  fast_ = true;
  for (auto& [rank, requests] : std::exchange(early_requests_, {})) TakeRequests(rank, std::move(requests));
  Lock lock(mutex_);
  Classify(pending);
  Classify(submitted_);
  // Whoever waits may go on in its own thread.
  if (waiting_ > 0) changed_.notify_all();
}

void Engine::ReportStalls() {
  const Time now = Clock::now();
  if (config_.stall_warning_seconds > 0) {
    for (const Stall& stall : coordinator_->TakeStalled(config_.stall_warning_seconds, now)) {
      const std::string text = stall.Describe();
      std::fprintf(stderr, "[spark_estimator] rank %d: %s\n", config_.global_rank, text.c_str());
      for (const int rank : stall.missing_ranks) Ask(rank, text);
    }
  }
  if (config_.stall_shutdown_seconds > 0) coordinator_->FailStalled(config_.stall_shutdown_seconds, now);
}

void Engine::Tune(const std::vector<RequestPtr>& requests) {
  if (!autotune_ || autotune_->settled()) return;
  const Time now = Clock::now();
  for (const RequestPtr& request : requests) {
    // Requests without a name come around again by their kind.
    const std::optional<Parameters> next = autotune_->Executed(request->signature->name, request->bytes, now);
    if (!next) continue;
    next_parameters_ = next;
    slow_for_certain_ = true;  // all ranks change over at the same place
  }
  const std::string rows = autotune_->TakeCsvRows();
  if (rows.empty() || config_.autotune_log.empty()) return;
  FILE* log = std::fopen(config_.autotune_log.c_str(), last_tune_rows_ == 0 ? "w" : "a");
  const bool written = log != nullptr && std::fwrite(rows.data(), 1, rows.size(), log) == rows.size();
  const int error_number = errno;
  if ((log == nullptr || std::fclose(log) != 0 || !written) && !std::exchange(told_of_tune_log_, true)) {
    std::fprintf(stderr, "[spark_estimator] rank %d: the autotune log %s cannot be written: %s\n", config_.global_rank,
                 config_.autotune_log.c_str(), std::strerror(error_number));
  }
  last_tune_rows_ += rows.size();
}

// A rank that others wait for reads it in its own log, and is asked what it is doing instead.
void Engine::Ask(int rank, const std::string& about) {
  const int64_t question = next_question_++;
  open_questions_[question] = Asked{rank, After(kAnswerTime)};
  if (Peer& peer = peers_[static_cast<size_t>(rank)]; peer.control) {
    peer.control->Send(FrameType::kNotice, about);
    peer.control->Send(FrameType::kAsk, Encode(Talk{question, about}));
    return;
  }
  Lock lock(mutex_);
  questions_.push_back(question);
  asked_.notify_all();
}

void Engine::SendAnswers() {
  std::vector<Talk> answers;
  {
    Lock lock(mutex_);
    answers.swap(answers_);
  }
  for (const Talk& answer : answers) {
    if (coordinator_) {
      if (open_questions_.erase(answer.number) > 0) TellAnswer(config_.rank, answer.text);
    } else {
      peers_[0].control->Send(FrameType::kAnswer, Encode(answer));
    }
  }
}

void Engine::TellAnswer(int rank, const std::string& text) {
  std::fprintf(stderr, "[spark_estimator] meanwhile %s is here:\n%s\n", NameOf(rank).c_str(), text.c_str());
}

void Engine::ReportMissingAnswers() {
  const Time now = Clock::now();
  for (auto entry = open_questions_.begin(); entry != open_questions_.end();) {
    if (now < entry->second.deadline) {
      ++entry;
      continue;
    }
    std::fprintf(
        stderr,
        "[spark_estimator] %s did not say within %.0f s where it is: its Python does not run (native code holds "
        "the interpreter's lock?)\n",
        NameOf(entry->second.rank).c_str(), kAnswerTime.count());
    entry = open_questions_.erase(entry);
  }
}

}  // namespace spark_estimator
