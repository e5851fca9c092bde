// Values that hold for a scope, however it is left.
#ifndef SPARK_ESTIMATOR_BASE_SCOPED_H_
#define SPARK_ESTIMATOR_BASE_SCOPED_H_

#include <utility>

namespace spark_estimator {

// Sets a variable, and sets it back at the end of the scope.
template <typename T>
class ScopedValue {
 public:
  ScopedValue(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(before_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& variable_;
  T before_;
};

// Counts one more in a variable for the scope.
class ScopedCount {
 public:
  explicit ScopedCount(int& variable) : variable_(variable) { ++variable_; }
  ~ScopedCount() { --variable_; }
  ScopedCount(const ScopedCount&) = delete;
  ScopedCount& operator=(const ScopedCount&) = delete;

 private:
  int& variable_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_SCOPED_H_
