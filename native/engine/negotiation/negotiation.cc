#include "engine/negotiation/negotiation.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "engine/wire/validity.h"

namespace spark_estimator {

bool Negotiation::Add(const RequestPtr& request) {
  if (request->signature->op == SE_JOIN) {
    join_ = request;
    return true;
  }
  return negotiated_.emplace(FullName(*request), request).second;
}

Status Negotiation::Match(const Response& response, Operation* operation) {
  for (size_t i = 0; i < response.names.size(); ++i) {
    const auto entry = negotiated_.find(response.names[i]);
    if (entry != negotiated_.end()) {
      operation->requests.push_back(entry->second);
      negotiated_.erase(entry);
      continue;
    }
    if (!join_ || i >= response.signatures.size() || !TakesZeros(response.signatures[i])) {
      return Status(SE_INTERNAL,
                    "the coordinator calls for '" + response.names[i] + "', which this rank never submitted");
    }
    SE_RETURN_IF_ERROR(AddZeros(response.signatures[i], operation));
  }
  return Status::Ok();
}

// This rank has joined: it takes part with zeros.
Status Negotiation::AddZeros(const Signature& signature, Operation* operation) const {
  auto request = std::make_shared<Request>();
  request->signature = std::make_shared<const Signature>(signature);
  request->number = signature.number;
  request->bytes = signature.Bytes();
  for (const Part& part : signature.parts) {
    if (signature.place == SE_GPU) {
      request->memory.push_back({});
      continue;
    }
    Memory zeros(std::calloc(static_cast<size_t>(part.Bytes()) + 1, 1));
    if (!zeros) {
      return Status(SE_NO_MEMORY, "could not allocate " + std::to_string(part.Bytes()) +
                                      " bytes of memory for the zeros of '" + FullName(signature) + "' after join");
    }
    request->memory.push_back({zeros.get(), zeros.get(), 0});
    operation->zeros.push_back(std::move(zeros));
  }
  operation->requests.push_back(std::move(request));
  return Status::Ok();
}

RequestPtr Negotiation::TakeFailed(const std::string& name) {
  const auto entry = negotiated_.find(name);
  if (entry == negotiated_.end()) return nullptr;
  RequestPtr request = std::move(entry->second);
  negotiated_.erase(entry);
  return request;
}

RequestPtr Negotiation::TakeJoin() { return std::exchange(join_, nullptr); }

std::vector<RequestPtr> Negotiation::TakeAll() {
  std::vector<RequestPtr> requests;
  for (auto& [name, request] : negotiated_) requests.push_back(std::move(request));
  negotiated_.clear();
  if (join_) requests.push_back(TakeJoin());
  std::ranges::sort(requests, {}, &Request::order);
  return requests;
}

void Negotiation::Receive(std::vector<Response> responses) {
  for (Response& response : responses) responses_.push_back(std::move(response));
}

Response Negotiation::TakeResponse() {
  Response response = std::move(responses_.front());
  responses_.pop_front();
  return response;
}

void Negotiation::Clear() noexcept {
  negotiated_.clear();
  join_.reset();
}

}  // namespace spark_estimator
