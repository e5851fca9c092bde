// Small tensors whose data is sent with the round's proposal: how many bytes, how they are written and reduced.
//
// Threads: used by the driving thread. No function keeps anything.
#ifndef SPARK_ESTIMATOR_ENGINE_INLINE_DATA_H_
#define SPARK_ESTIMATOR_ENGINE_INLINE_DATA_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/executor.h"
#include "engine/requests/request.h"
#include "engine/requests/response_cache.h"
#include "engine/rounds/rounds.h"

namespace spark_estimator {

// The rank and the size of its group.
struct GroupRank {
  int rank = 0;
  int size = 1;
};

// Bytes of the largest share that any rank sends; the same on all ranks. SIZE_MAX for what is never sent inline.
// `cache`: has the rows that the ranks agreed on for this request.
size_t InlineBytes(const Request& request, const ResponseCache& cache, GroupRank self);
// Bytes that this rank sends.
inline size_t OwnInlineBytes(const Request& request, GroupRank self) {
  const Signature& signature = *request.signature;
  const bool sends = signature.op != SE_BROADCAST || signature.root_rank == self.rank;
  return sends ? static_cast<size_t>(request.bytes) : 0;
}
void WriteInline(const Request& request, uint8_t* target);
// The first rank whose data is not as long as agreed; -1 for none. Memory is read by the agreed length, not by a peer's
// present one: the two must be equal. `agreed`: that length, for -1 unchanged.
int FindWrongInlineBytes(const Request& request, const std::vector<int64_t>& rows, const Rounds& rounds, GroupRank self,
                         size_t* agreed);
// Runs the request on the data that all ranks sent.
Status RunInline(Request& request, const std::vector<int64_t>& rows, const Rounds& rounds, Executor& executor,
                 GroupRank self);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_INLINE_DATA_H_
