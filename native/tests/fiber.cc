// ucontext, with every change of stacks reported to AddressSanitizer.
#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace spark_estimator::testing {

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  // Pages that are never touched cost nothing; an overflow hits the page at the low end and stops.
  stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(stack_ != MAP_FAILED);
  CHECK_EQ(mprotect(stack_, 4096, PROT_NONE), 0);
  CHECK_EQ(getcontext(&inside_), 0);
  inside_.uc_stack.ss_sp = stack_;
  inside_.uc_stack.ss_size = kStackBytes;
  inside_.uc_link = nullptr;
  const auto self = reinterpret_cast<uintptr_t>(this);
  makecontext(&inside_, reinterpret_cast<void (*)()>(&Fiber::Enter), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::Enter(unsigned low, unsigned high) {
  reinterpret_cast<Fiber*>(static_cast<uintptr_t>(low) | (static_cast<uintptr_t>(high) << 32))->Run();
}

void Fiber::Run() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &outside_bottom_, &outside_bytes_);
#endif
  body_();
  done_ = true;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, outside_bottom_, outside_bytes_);  // this stack is not used any more
#endif
  setcontext(&outside_);
}

void Fiber::Resume() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_outside_, stack_, kStackBytes);
#endif
  swapcontext(&outside_, &inside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_outside_, nullptr, nullptr);
#endif
}

void Fiber::Pause() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_inside_, outside_bottom_, outside_bytes_);
#endif
  swapcontext(&inside_, &outside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_inside_, &outside_bottom_, &outside_bytes_);
#endif
}

}  // namespace spark_estimator::testing
