// An allreduce over streams whose values are sent as int8, with a scale for each block of 256.
//
// The rounding error stays in the residues and is added the next time, on the rank that has made it: nothing is lost,
// only delayed (Seide et al. 2014; Tang et al. 2019, "DoubleSqueeze", for what the owner of a sum leaves out).
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAM_INT8_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAM_INT8_H_

#include <memory>
#include <span>
#include <vector>

#include "algorithms/int8/parts.h"
#include "algorithms/streams/operation.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// Every output becomes finish(sum over ranks of input * prescale + residue), up to the part that is stored in the
// residues; the same bits on all ranks and in every run. Two ranks exchange what they have; more of them reduce a share
// each and hand it back. Exact parts are summed in float32. `parts` are alike on all ranks, but for their memory.
Status Int8Allreduce(StreamGroup& group, std::span<const Int8Part> parts, float prescale, Finish finish);
// The same, to be advanced by the caller. It uses the group's scratch memory from its first step on.
std::unique_ptr<StreamOperation> BeginInt8Allreduce(StreamGroup& group, std::vector<Int8Part> parts, float prescale,
                                                    Finish finish);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAM_INT8_H_
