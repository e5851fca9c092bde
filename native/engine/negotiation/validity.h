// What cannot be: requests that no group could carry out, and messages that can be read, but that no honest peer sends.
//
// Whatever passes can be carried out without an overflow and without a byte read or written beyond its memory.
#ifndef SPARK_ESTIMATOR_ENGINE_VALIDITY_H_
#define SPARK_ESTIMATOR_ENGINE_VALIDITY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/negotiation/message.h"

namespace spark_estimator {

// Why a group of `size` could not carry this out though all its ranks agree; empty when it can. Of a request that the
// C ABI has read.
std::string WhyImpossible(const Signature& signature, int size);
// Whether the C ABI would have let a rank of a group of `size` submit this.
bool IsPossible(const Signature& signature, int size);
// Whether the coordinator of a group of `size` could have said this. Its rows are told by RowsFit.
bool IsPossible(const Response& response, int size);
// Whether a rank that has joined can take part in it without a request of its own.
bool TakesZeros(const Signature& signature);
// Whether a coordinator could have fused these, the requests that a response names, into one operation.
bool MayBeOne(const std::vector<const Signature*>& signatures, int64_t fusion_threshold_bytes);
// Whether `rows`, as in Response, can be those of a group in which `rank` gave `own`.
bool RowsFit(const std::vector<int64_t>& rows, const Signature& signature, int rank, int size);
// Bytes that `rank` brings along with a proposal of this request, all of it agreed on before; `rows` as in Response.
size_t BytesBroughtBy(int rank, const Signature& signature, const std::vector<int64_t>& rows);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_VALIDITY_H_
