// Requests as the engine's classes hold them, for tests of those classes.
#ifndef SPARK_ESTIMATOR_TESTS_REQUESTS_H_
#define SPARK_ESTIMATOR_TESTS_REQUESTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/requests/request.h"
#include "spark_estimator/engine.h"

namespace spark_estimator::testing {

// An allreduce of float32 by default; `number`: of an unnamed request.
inline Signature SignatureOf(const std::string& name, std::vector<int64_t> dims = {4}, int32_t op = SE_ALLREDUCE,
                             int64_t number = Signature::kNamed) {
  Signature signature;
  signature.name = name;
  signature.number = number;
  signature.op = op;
  signature.reduce_op = SE_SUM;
  if (op != SE_JOIN && op != SE_BARRIER) signature.parts = {Part{SE_FLOAT32, std::move(dims)}};
  return signature;
}

inline RequestPtr RequestOf(Signature signature, uint64_t order = 0) {
  auto request = std::make_shared<Request>();
  request->bytes = signature.Bytes();
  request->number = signature.number;
  request->order = order;
  request->signature = std::make_shared<const Signature>(std::move(signature));
  request->memory.resize(request->signature->parts.size());
  return request;
}

inline RequestPtr Named(const std::string& name, uint64_t order = 0) { return RequestOf(SignatureOf(name), order); }

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_REQUESTS_H_
