// What no honest peer says: messages that can be read, but ask for what no rank could have asked or agreed to.
//
// Whatever passes can be carried out without an overflow and without a byte read or written beyond its memory.
#ifndef SPARK_ESTIMATOR_ENGINE_VALIDITY_H_
#define SPARK_ESTIMATOR_ENGINE_VALIDITY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/message.h"

namespace spark_estimator {

// Whether the C ABI would have let a rank of a group of `size` submit this.
bool IsPossible(const Signature& signature, int size);
// Whether the coordinator of a group of `size` could have said this. Its rows are told by RowsFit.
bool IsPossible(const Response& response, int size);
// Whether `rows`, as in Response, can be those of a group in which `rank` gave `own`.
bool RowsFit(const std::vector<int64_t>& rows, const Signature& own, int rank, int size);
// Bytes that `rank` brings along with a proposal of this request, all of it agreed on before; `rows` as in Response.
size_t BytesBroughtBy(int rank, const Signature& signature, const std::vector<int64_t>& rows);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_VALIDITY_H_
