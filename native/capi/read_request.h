// Converts a request of the C ABI to the engine's form; errors that can be found without other ranks are refused here,
// before anything is sent.
#ifndef SPARK_ESTIMATOR_CAPI_READ_REQUEST_H_
#define SPARK_ESTIMATOR_CAPI_READ_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/requests/request.h"
#include "engine/wire/message.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {

// Everything of `request` except the addresses of its tensors. `size`: ranks of the group. SE_INVALID_ARGUMENT names
// the request and the invalid value.
Status ReadSignature(const se_request* request, int size, Signature* signature);

// As ReadSignature, with the addresses of its tensors; these must not be null if the tensors have elements.
Status ReadRequest(const Engine& engine, const se_request* request, Signature* signature,
                   std::vector<TensorMemory>* memory);

// Whether the op writes its result to memory that the caller gives.
bool NeedsOutput(int32_t op);

// Whether tensor `index` of `signature` can be read and written at its address.
Status CheckMemory(const Engine& engine, const Signature& signature, size_t index, const void* input,
                   const void* output);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_CAPI_READ_REQUEST_H_
