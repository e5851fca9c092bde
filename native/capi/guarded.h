// What every function of the C ABI does with its outcome: a code for the caller, a sentence for se_last_error.
#ifndef SPARK_ESTIMATOR_CAPI_GUARDED_H_
#define SPARK_ESTIMATOR_CAPI_GUARDED_H_

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "base/status.h"

namespace spark_estimator {

// The calling thread's.
inline std::string& LastError() {
  thread_local std::string text;
  return text;
}

inline int32_t Report(const Status& status) {
  if (!status.ok() && status.code() != SE_IN_PROGRESS) LastError() = status.message();
  return status.code();
}

// No exception may cross the C ABI; the only one to be expected is a failed allocation.
template <typename Function>
int32_t Guarded(Function function) {
  try {
    return Report(function());
  } catch (const std::bad_alloc&) {
    return Report(Status(SE_NO_MEMORY, "the engine could not allocate memory"));
  } catch (const std::exception& error) {
    return Report(Status(SE_INTERNAL, error.what()));
  }
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_CAPI_GUARDED_H_
