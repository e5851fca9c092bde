// How rows are dealt out to ranks: as evenly as can be, the lower ranks getting one more.
#ifndef SPARK_ESTIMATOR_BASE_ROWS_H_
#define SPARK_ESTIMATOR_BASE_ROWS_H_

#include <cstdint>

namespace spark_estimator {

inline int64_t RowsOf(int64_t rows, int rank, int size) { return rows / size + (rank < rows % size ? 1 : 0); }

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_ROWS_H_
