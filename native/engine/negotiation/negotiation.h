// This rank's part of full negotiation: its requests that the coordinator knows, and the responses to be obeyed.
//
// The states of a request (transitions that are not listed are refused):
//
//   event         from                 to
//   Add           (not negotiated)     negotiated; refused while another one of that full name is
//   Match         negotiated           run: its response is kRun
//   TakeFailed    negotiated           failed: its response is kFail
//   TakeJoin      join                 done: all ranks have joined
//   TakeAll       negotiated, join     unanswered: the rounds continue, it is proposed again
//
// A response that names a request that was never added is an error, unless this rank has joined: then it takes part
// with zeros. It does no input or output. Threads: used by the driving thread.
#ifndef SPARK_ESTIMATOR_ENGINE_NEGOTIATION_H_
#define SPARK_ESTIMATOR_ENGINE_NEGOTIATION_H_

#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/kept_memory.h"
#include "base/status.h"
#include "engine/requests/request.h"
#include "engine/wire/message.h"

namespace spark_estimator {

class Negotiation {
 public:
  // The requests of one operation, and the memory of the zeros that a joined rank takes part with.
  struct Operation {
    std::vector<RequestPtr> requests;
    std::vector<Memory> zeros;
  };

  // --- requests

  // False when an older request of that full name is still negotiated: its turn is after that one.
  bool Add(const RequestPtr& request);
  // The requests that a kRun response names. SE_INTERNAL for one that was never added, SE_NO_MEMORY for zeros.
  Status Match(const Response& response, Operation* operation);
  // The request of that full name; null for none.
  RequestPtr TakeFailed(const std::string& name);
  // This rank's join; null for none.
  RequestPtr TakeJoin();
  // All, in the order of their submission.
  std::vector<RequestPtr> TakeAll();

  // --- responses, in the order in which the coordinator gave them

  void Receive(std::vector<Response> responses);
  bool has_responses() const { return !responses_.empty(); }
  // Whether the last response ends this epoch.
  bool ends_with_resume() const { return !responses_.empty() && responses_.back().kind == Response::Kind::kResume; }
  // There must be one.
  Response TakeResponse();

  // Forgets the requests, where no memory may be taken.
  void Clear() noexcept;

 private:
  Status AddZeros(const Signature& signature, Operation* operation) const;

  std::unordered_map<std::string, RequestPtr> negotiated_;  // by full name
  RequestPtr join_;
  std::deque<Response> responses_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_NEGOTIATION_H_
