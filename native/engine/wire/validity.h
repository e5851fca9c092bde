// Finds impossible requests, which no group could run, and readable messages that no correct peer sends.
//
// A request that passes can be run without an overflow and without a byte read or written beyond its memory.
#ifndef SPARK_ESTIMATOR_ENGINE_VALIDITY_H_
#define SPARK_ESTIMATOR_ENGINE_VALIDITY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/wire/message.h"

namespace spark_estimator {

// Why a group of `size` could not carry this out though all its ranks agree; empty when it can. Of a request that the
// C ABI has read.
std::string WhyImpossible(const Signature& signature, int size);
// Whether the C ABI would have let a rank of a group of `size` submit this.
bool IsPossible(const Signature& signature, int size);
// Whether the coordinator of a group of `size` could have sent this. RowsFit checks its rows.
bool IsPossible(const Response& response, int size);
// Whether a rank that has joined can take part in it without its own request.
bool TakesZeros(const Signature& signature);
// Whether two requests may run as one operation.
bool CanFuse(const Signature& a, const Signature& b);
// Whether a coordinator could have fused these, the requests that a response names, into one operation.
bool MayBeOne(const std::vector<const Signature*>& signatures, int64_t fusion_threshold_bytes);
// Whether `rows`, as in Response, can be those of a group in which `rank` gave `own`.
bool RowsFit(const std::vector<int64_t>& rows, const Signature& signature, int rank, int size);
// Bytes that `rank` sends with a proposal of this request, whose size was agreed on before; `rows` as in Response.
size_t BytesBroughtBy(int rank, const Signature& signature, const std::vector<int64_t>& rows);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_VALIDITY_H_
