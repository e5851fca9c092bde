// The engine's thread: drain, take in, agree, execute; and what it does when a peer is gone or this rank leaves.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/dtype.h"
#include "engine/engine.h"

namespace spark_estimator {
namespace {

// How long leaving waits for the peers to take in what was sent.
constexpr Seconds kGoodbyeFlush{1.0};
constexpr Seconds kGoodbyeDrain{0.1};
// How long a broken data link waits for the control link's account of it.
constexpr Seconds kExplanation{0.2};

}  // namespace

void Engine::Run() {
  Status status;
  while (status.ok() && !stopping_) {
    AwaitWork();
    status = RunCycle();
  }
  if (status.ok()) status = Status(SE_SHUT_DOWN, "this rank has shut down");
  status = Explain(status);
  FailEverything(status);
  coordinator_.reset();
  if (status.code() != SE_SHUT_DOWN) TellPeers(status);
  // A broken engine keeps its links until it is shut down: peers that have not seen the culprit yet would take our end
  // of file for another death.
  while (!stopping_) {
    FlushControl();
    AwaitWork();
    for (int rank = 0; rank < config_.size; ++rank) {
      Peer& peer = peers_[static_cast<size_t>(rank)];
      if (peer.control) peer.control->Receive(&peer.inbox);
      peer.inbox.clear();
    }
  }
  // After an abort the peers know already; the goodbye spares those that have left in order from being taken for dead.
  if (status.code() == SE_SHUT_DOWN) SayGoodbye();
}

Status Engine::RunCycle() {
  SendRequests(DrainSubmissions());
  SE_RETURN_IF_ERROR(Check());
  SE_RETURN_IF_ERROR(Agree());
  while (!agreed_.empty()) SE_RETURN_IF_ERROR(ExecuteNext());
  // What a peer had executed when it left may still be under way to us; what comes after that never will be.
  return CheckDepartures(executed_ + 1);
}

void Engine::AwaitWork() {
  std::vector<pollfd> waits = {{wake_fd_.get(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    if (!peer.control || !peer.control->open()) continue;
    waits.push_back({peer.control->fd(), static_cast<short>(POLLIN | (peer.control->has_unsent() ? POLLOUT : 0)), 0});
  }
  poll(waits.data(), waits.size(), wake_pending_ ? 0 : PollTimeoutMilliseconds());
  counters_.wakeups += 1;
  // Cleared before the queue is drained: what is submitted from here on wakes us again.
  wake_pending_ = false;
  if (waits[0].revents & POLLIN) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(wake_fd_.get(), &count, sizeof(count));
  }
}

int Engine::PollTimeoutMilliseconds() const {
  const bool watches_stalls = coordinator_ && coordinator_->has_waiting() &&
                              (config_.stall_warning_seconds > 0 || config_.stall_shutdown_seconds > 0);
  if (!watches_stalls) return -1;
  return std::max(0, static_cast<int>(Seconds(next_stall_check_ - Clock::now()).count() * 1000) + 1);
}

std::vector<RequestPtr> Engine::DrainSubmissions() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(submitted_, {});
}

void Engine::SendRequests(const std::vector<RequestPtr>& submitted) {
  if (submitted.empty()) return;
  if (coordinator_) {
    for (const RequestPtr& request : submitted) coordinator_->Add(config_.rank, request->signature, Clock::now());
    return;
  }
  std::vector<Signature> signatures;
  signatures.reserve(submitted.size());
  for (const RequestPtr& request : submitted) signatures.push_back(request->signature);
  peers_[0].control->Send(FrameType::kRequests, Encode(signatures));
}

void Engine::FlushControl() {
  int64_t sent = 0;
  for (Peer& peer : peers_) {
    if (!peer.control) continue;
    peer.control->Flush();
    sent += peer.control->bytes_sent();
  }
  counters_.control_bytes_sent = sent;
}

Status Engine::Check() {
  FlushControl();
  for (int rank = 0; rank < config_.size; ++rank) SE_RETURN_IF_ERROR(ReadPeer(rank));
  if (executing_ == 0) return Status::Ok();
  // Inside a collective: nobody comes back for it once this rank, or a peer that has not finished it, leaves.
  if (stopping_) return Status(SE_SHUT_DOWN, "this rank has shut down");
  return CheckDepartures(executing_);
}

Status Engine::ReadPeer(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!peer.control) return Status::Ok();
  if (peer.control->open()) peer.control->Receive(&peer.inbox);
  while (!peer.inbox.empty()) {
    const Frame frame = std::move(peer.inbox.front());
    peer.inbox.pop_front();
    SE_RETURN_IF_ERROR(HandleFrame(rank, frame));
  }
  return peer.control->open() || peer.goodbye ? Status::Ok() : PeerGone(rank);
}

Status Engine::PeerGone(int rank) {
  lost_rank_ = rank;
  const std::string& reason = peers_[static_cast<size_t>(rank)].control->closed_reason();
  return Status(SE_PEER_LOST, NameOf(rank) + " is lost: it " + reason + " without leaving the job (its process died)");
}

Status Engine::HandleFrame(int rank, const Frame& frame) {
  const auto garbled = [&] {
    lost_rank_ = rank;
    return Status(SE_PEER_LOST, NameOf(rank) + " sent a control message that cannot be read (type " +
                                    std::to_string(static_cast<int>(frame.type)) + ", " +
                                    std::to_string(frame.payload.size()) + " bytes)");
  };
  switch (frame.type) {
    case FrameType::kRequests: {
      std::vector<Signature> requests;
      if (!coordinator_ || !Decode(frame.payload, &requests)) return garbled();
      for (Signature& request : requests) coordinator_->Add(rank, std::move(request), Clock::now());
      return Status::Ok();
    }
    case FrameType::kResponses: {
      std::vector<Response> responses;
      if (rank != 0 || !Decode(frame.payload, &responses)) return garbled();
      for (Response& response : responses) agreed_.push_back(std::move(response));
      return Status::Ok();
    }
    case FrameType::kGoodbye: {
      Goodbye goodbye;
      if (!Decode(frame.payload, &goodbye) || goodbye.first_leaver < 0 || goodbye.first_leaver >= config_.size) {
        return garbled();
      }
      peers_[static_cast<size_t>(rank)].goodbye = goodbye;
      return Status::Ok();
    }
    case FrameType::kAbort: {
      Abort abort;
      if (!Decode(frame.payload, &abort)) return garbled();
      lost_rank_ = abort.lost_rank;
      return Status(SE_PEER_LOST, abort.reason + " (told by rank " + std::to_string(rank) + ")");
    }
    case FrameType::kNotice:
      std::fprintf(stderr, "[spark_estimator] rank %d: %s\n", config_.rank, frame.payload.c_str());
      return Status::Ok();
    default:
      return garbled();
  }
}

Status Engine::Agree() {
  if (!coordinator_) return Status::Ok();
  if (coordinator_->has_waiting() && Clock::now() >= next_stall_check_) {
    ReportStalls();
    next_stall_check_ = After(kStallCheckInterval);
  }
  std::vector<Response> responses = coordinator_->TakeReady();
  if (responses.empty()) return Status::Ok();
  const std::string payload = Encode(responses);
  for (Peer& peer : peers_) {
    if (peer.control) peer.control->Send(FrameType::kResponses, payload);
  }
  for (Response& response : responses) agreed_.push_back(std::move(response));
  return Status::Ok();
}

void Engine::ReportStalls() {
  const Time now = Clock::now();
  if (config_.stall_warning_seconds > 0) {
    for (const Stall& stall : coordinator_->TakeStalled(config_.stall_warning_seconds, now)) {
      const std::string text = stall.Describe();
      std::fprintf(stderr, "[spark_estimator] rank %d: %s\n", config_.rank, text.c_str());
      // The ranks that are waited for should read it in their own logs, too.
      for (const int rank : stall.missing_ranks) {
        if (Peer& peer = peers_[static_cast<size_t>(rank)]; peer.control) peer.control->Send(FrameType::kNotice, text);
      }
    }
  }
  if (config_.stall_shutdown_seconds > 0) coordinator_->FailStalled(config_.stall_shutdown_seconds, now);
}

Status Engine::ExecuteNext() {
  const Response response = std::move(agreed_.front());
  agreed_.pop_front();
  std::vector<RequestPtr> requests;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& name : response.names) {
      const auto entry = in_flight_.find(name);
      if (entry != in_flight_.end()) requests.push_back(entry->second);
    }
  }
  if (!response.error.empty()) {
    for (const RequestPtr& request : requests) {
      Finish(request, Status(SE_MISMATCH, response.error + " (request '" + request->signature.name + "')"));
    }
    executed_ = response.sequence;
    return Status::Ok();
  }
  if (requests.size() != response.names.size()) {
    return Status(SE_INTERNAL,
                  "the coordinator calls for '" + response.names[0] + "', which this rank never submitted");
  }
  executing_ = response.sequence;
  SE_RETURN_IF_ERROR(executor_->Run(response, requests));
  executing_ = 0;
  executed_ = response.sequence;
  for (const RequestPtr& request : requests) Finish(request, Status::Ok());
  return Status::Ok();
}

Status Engine::CheckDepartures(int64_t sequence) {
  for (const Peer& peer : peers_) {
    if (!peer.goodbye || peer.goodbye->executed_sequence >= sequence) continue;
    first_leaver_ = peer.goodbye->first_leaver;
    return Status(SE_SHUT_DOWN,
                  NameOf(first_leaver_) + " has left the job: it shut down, or its function returned or raised");
  }
  return Status::Ok();
}

void Engine::Finish(const RequestPtr& request, const Status& outcome) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    request->outcome = outcome;
    request->done = true;
    in_flight_.erase(request->signature.name);
  }
  finished_.notify_all();
}

void Engine::FailEverything(const Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    broken_ = why;
    for (auto& [name, request] : in_flight_) {
      request->outcome = why.Within(OpName(request->signature.op) + " '" + name + "' failed");
      request->done = true;
    }
    in_flight_.clear();
    submitted_.clear();
  }
  finished_.notify_all();
}

Status Engine::Explain(Status status) {
  if (status.code() != SE_PEER_LOST || lost_rank_ >= 0) return status;
  const Time deadline = After(kExplanation);
  while (Clock::now() < deadline) {
    Status better = Check();
    if (!better.ok()) return better;
    std::vector<pollfd> waits;
    for (const Peer& peer : peers_) {
      if (peer.control && peer.control->open()) waits.push_back({peer.control->fd(), POLLIN, 0});
    }
    poll(waits.data(), waits.size(), 10);
  }
  return status;
}

void Engine::TellPeers(const Status& why) {
  Abort abort;
  abort.lost_rank = lost_rank_ >= 0 ? lost_rank_ : config_.rank;
  abort.reason = lost_rank_ >= 0 ? why.message() : NameOf(config_.rank) + " failed: " + why.message();
  const std::string payload = Encode(abort);
  for (Peer& peer : peers_) {
    if (peer.control) peer.control->Send(FrameType::kAbort, payload);
  }
}

void Engine::SayGoodbye() {
  const std::string payload = Encode(Goodbye{executed_, first_leaver_ >= 0 ? first_leaver_ : config_.rank});
  for (Peer& peer : peers_) {
    if (peer.control) peer.control->Send(FrameType::kGoodbye, payload);
  }
  const Time flush_until = After(kGoodbyeFlush);
  const auto unsent = [&] {
    return std::any_of(peers_.begin(), peers_.end(),
                       [](const Peer& p) { return p.control && p.control->has_unsent(); });
  };
  while (unsent() && Clock::now() < flush_until) {
    FlushControl();
    poll(nullptr, 0, 1);
  }
  for (Peer& peer : peers_) {
    if (peer.control) peer.control->FinishSending();
  }
  // Closing a socket with unread bytes resets it, and a reset may overtake what was sent: read on for a moment.
  const Time drain_until = After(kGoodbyeDrain);
  while (Clock::now() < drain_until) {
    std::vector<pollfd> waits;
    for (Peer& peer : peers_) {
      if (!peer.control || !peer.control->open() || peer.goodbye) continue;
      peer.control->Receive(&peer.inbox);
      for (const Frame& frame : peer.inbox) {
        if (frame.type == FrameType::kGoodbye) peer.goodbye = Goodbye{};
      }
      peer.inbox.clear();
      if (peer.control->open() && !peer.goodbye) waits.push_back({peer.control->fd(), POLLIN, 0});
    }
    if (waits.empty()) return;
    poll(waits.data(), waits.size(), 10);
  }
}

}  // namespace spark_estimator
