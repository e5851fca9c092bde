// A function with a separate stack that can be left in the middle and resumed, in one thread.
#ifndef SPARK_ESTIMATOR_TESTS_FIBER_H_
#define SPARK_ESTIMATOR_TESTS_FIBER_H_

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace spark_estimator::testing {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();  // only when it has not begun or is done
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void Resume();  // from outside: runs until Pause, or to the end
  void Pause();   // from inside
  bool done() const { return done_; }

 private:
  static constexpr size_t kStackBytes = 256 << 10;
  static void Enter(unsigned low, unsigned high);
  void Run();

  std::function<void()> body_;
  void* stack_;
  ucontext_t inside_{};
  ucontext_t outside_{};
  bool done_ = false;
  // Arguments for AddressSanitizer; unused without it.
  void* fake_stack_inside_ = nullptr;
  void* fake_stack_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_bytes_ = 0;
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_FIBER_H_
