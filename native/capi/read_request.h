// From a request of the C ABI to the engine's own form of it; whatever can be known to be wrong without asking other
// ranks is refused here, before anything is sent.
#ifndef SPARK_ESTIMATOR_CAPI_READ_REQUEST_H_
#define SPARK_ESTIMATOR_CAPI_READ_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/negotiation/message.h"
#include "engine/requests/request.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {

// Everything of `request` but where its tensors lie. `size`: ranks of the group. SE_INVALID_ARGUMENT names the request
// and what cannot be.
Status ReadSignature(const se_request* request, int size, Signature* signature);

// As ReadSignature, and where its tensors lie; the latter must be somewhere if they have elements.
Status ReadRequest(const Engine& engine, const se_request* request, Signature* signature,
                   std::vector<TensorMemory>* memory);

// Whether the op writes its result to memory that the caller gives.
bool NeedsOutput(int32_t op);

// Whether tensor `index` of `signature` can be read and written where it is said to lie.
Status CheckMemory(const Engine& engine, const Signature& signature, size_t index, const void* input,
                   const void* output);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_CAPI_READ_REQUEST_H_
