// Where exceptions end: what a function threw becomes a status.
#ifndef SPARK_ESTIMATOR_BASE_CONTAIN_H_
#define SPARK_ESTIMATOR_BASE_CONTAIN_H_

#include <string>
#include <utility>

#include "base/status.h"

namespace spark_estimator {

// To be called while an exception is being handled: returns its text as a status. A failed allocation gives
// `no_memory`, which exists already, since an allocation may fail here, too.
Status StatusOfException(const Status& no_memory) noexcept;

// The status that `function` returns, or that of the exception which it threw.
template <typename Function>
Status Contain(const Status& no_memory, Function&& function) noexcept {
  try {
    return std::forward<Function>(function)();
  } catch (...) {
    return StatusOfException(no_memory);
  }
}

// Status::Within where an allocation may fail: without it then, rather than with an exception.
template <typename Step>
Status WithinIfPossible(const Status& status, Step&& step) noexcept {
  try {
    return status.Within(std::forward<Step>(step)());
  } catch (...) {
    return status;
  }
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_CONTAIN_H_
