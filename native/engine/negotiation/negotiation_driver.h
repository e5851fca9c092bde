// Full negotiation on each rank: sends this rank's requests to the coordinator, obeys its responses, and returns the
// rank to the rounds.
//
// It connects the parts that hold the state: Negotiation (this rank's requests), NegotiationLeader and StallReporter
// (on rank 0), RoundDriver (whether the rank is in the rounds). Obeying a response:
//
//   response   what happens
//   kRun       its requests run as one operation, and the cache remembers what was agreed on
//   kFail      its requests fail, and the cache forgets their name
//   kJoined    this rank's join is done, and unnamed requests are numbered from 0 again
//   kResume    the rank is in the rounds again; unanswered requests are proposed again. Later responses stay
//
// Threads: used by the driving thread.
#ifndef SPARK_ESTIMATOR_ENGINE_NEGOTIATION_DRIVER_H_
#define SPARK_ESTIMATOR_ENGINE_NEGOTIATION_DRIVER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/membership/membership.h"
#include "engine/membership/peer_links.h"
#include "engine/negotiation/negotiation.h"
#include "engine/negotiation/negotiation_leader.h"
#include "engine/negotiation/stall_reporter.h"
#include "engine/operation_runner.h"
#include "engine/parameters.h"
#include "engine/requests/pending_requests.h"
#include "engine/requests/question_queue.h"
#include "engine/requests/request_table.h"
#include "engine/requests/response_cache.h"
#include "engine/rounds/round_driver.h"

namespace spark_estimator {

class NegotiationDriver {
 public:
  // What it uses; all outlive it.
  struct Parts {
    RoundDriver* rounds = nullptr;
    PendingRequests* pending = nullptr;
    ResponseCache* cache = nullptr;
    OperationRunner* runner = nullptr;
    RequestTable* requests = nullptr;
    DriveTurn* turn = nullptr;
    const Parameters* parameters = nullptr;
    Membership* membership = nullptr;
    PeerLinks* links = nullptr;
    QuestionQueue* questions = nullptr;
    Counters* counters = nullptr;
  };

  explicit NegotiationDriver(Parts parts) : parts_(parts) {}
  // On rank 0, before anything else.
  void Lead(NegotiationLeader leader, StallReporter stalls);

  // What is pending is negotiated from here on; the rank has just left the rounds.
  void Begin();
  // Sends what was submitted, and obeys the responses that are there, up to a return to the rounds.
  Status Advance();
  // When to call Advance() again though no frame has arrived.
  Time NextWake() const;
  bool has_responses() const { return negotiation_.has_responses(); }

  // --- frames; false for a payload that cannot be read, or that this rank cannot send

  bool ReceiveRequests(int rank, const std::string& payload);
  bool ReceiveResponses(int rank, const std::string& payload);
  bool ReceiveStall(const std::string& payload);
  bool ReceiveAnswer(int rank, const std::string& payload);

  // --- stalls

  // Sends this process's answers, and reports answers that are overdue.
  void TendQuestions();
  void RankLeft(int rank);

  // Forgets the requests, where no memory may be taken.
  void Clear() noexcept { negotiation_.Clear(); }

 private:
  bool leads() const { return leader_.has_value(); }
  void TakeIn(int rank, Requests requests);
  void Send(const std::vector<RequestPtr>& requests);
  void MakeResponses();
  void ReportStalls();
  Status Obey(const Response& response);
  Status Run(const Response& response);
  void Fail(const Response& response);
  void Resume(uint32_t position);
  void PrintAnswer(int rank, const std::string& text) const;

  const Parts parts_;
  Negotiation negotiation_;
  std::optional<NegotiationLeader> leader_;  // on rank 0
  std::optional<StallReporter> stalls_;      // on rank 0
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_NEGOTIATION_DRIVER_H_
