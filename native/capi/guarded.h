// What every function of the C ABI does with its outcome: a code for the caller, a sentence for se_last_error. No
// exception crosses the C ABI; this is where they end.
//
// An exception that ends here has changed nothing: the functions of Engine guarantee that, and break the engine
// themselves for any exception inside a collective (Engine::Contained).
#ifndef SPARK_ESTIMATOR_CAPI_GUARDED_H_
#define SPARK_ESTIMATOR_CAPI_GUARDED_H_

#include <cstdint>

#include "base/contain.h"
#include "base/status.h"

namespace spark_estimator {

// The calling thread's last failure.
inline Status& LastFailure() noexcept {
  thread_local Status failure;
  return failure;
}

inline int32_t Report(const Status& status) noexcept {
  if (!status.ok() && status.code() != SE_IN_PROGRESS) LastFailure() = status;
  return status.code();
}

template <typename Function>
int32_t Guarded(Function&& function) noexcept {
  return Report(Contain(Status::OutOfMemory(), function));
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_CAPI_GUARDED_H_
