// Allreduces in steps with one partner each.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_RECURSIVE_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_RECURSIVE_H_

#include <cstddef>
#include <cstdint>

#include "base/kernels/kernels.h"
#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// After Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005. Numbers
// of ranks between powers of two are folded: the first ranks give their vectors to neighbours, which act for them, in
// one step more before and one after. `data` is read and written in place; `scratch` has the same size. Partial sums
// are sent, so not for the 16-bit floating-point types.

// The whole vector in each of log2 n steps; all ranks compute the same tree of the same neighbours.
Status DoublingAllreduce(StreamGroup& group, uint8_t* data, uint8_t* scratch, size_t count, int32_t dtype,
                         int32_t reduce_op, Finish finish);
// Half of the remaining data in each of log2 n steps, until each rank has a part to finish, then the same steps back:
// about 2 b bytes in 2 log2 n steps.
Status HalvingAllreduce(StreamGroup& group, uint8_t* data, uint8_t* scratch, size_t count, int32_t dtype,
                        int32_t reduce_op, Finish finish);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_RECURSIVE_H_
