// Changes stacks: by a few instructions on x86-64, where ucontext's two system calls cost more than a small collective;
// else by ucontext, also under the sanitizers, to which each change is reported.
#include "engine/side_stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#define SE_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
#define SE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SE_ADDRESS_SANITIZER 1
#elif __has_feature(thread_sanitizer)
#define SE_THREAD_SANITIZER 1
#endif
#endif
#if defined(SE_ADDRESS_SANITIZER)
#include <sanitizer/common_interface_defs.h>
#elif defined(SE_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__x86_64__) && !defined(SE_ADDRESS_SANITIZER) && !defined(SE_THREAD_SANITIZER)
#define SE_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace spark_estimator {
namespace {

// The size of threads' stacks, since GPU libraries run on it as well. Pages that are never touched cost nothing; an
// overflow hits the page at the low end and stops.
constexpr size_t kStackBytes = size_t{8} << 20;

}  // namespace

#if defined(SE_OWN_SWITCH)

// Puts the registers that a function must keep on the stack and its top to *top, and takes another stack's from there.
// A new stack begins with a call of %r13 with %r12.
extern "C" void se_change_stacks(void** top, void* other_top);
extern "C" void se_begin_stack();
asm(R"(
  .text
  .hidden se_change_stacks
  .globl se_change_stacks
  .type se_change_stacks, @function
  .p2align 4
se_change_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size se_change_stacks, . - se_change_stacks

  .hidden se_begin_stack
  .globl se_begin_stack
  .type se_begin_stack, @function
  .p2align 4
se_begin_stack:
  .cfi_startproc
  .cfi_undefined %rip
  movq %r12, %rdi
  callq *%r13
  ud2
  .cfi_endproc
  .size se_begin_stack, . - se_begin_stack
)");

struct SideStack::Switch {
  void* memory = nullptr;
  void* inside = nullptr;
  void* outside = nullptr;

  void Prepare(void (*enter)(SideStack*), SideStack* self) {
    auto* top = reinterpret_cast<uintptr_t*>(static_cast<char*>(memory) + kStackBytes);
    // From the top down: the caller's return address, of which there is none; the entry point; %rbp, %rbx, %r12 to
    // %r15.
    *--top = 0;
    *--top = 0;
    *--top = reinterpret_cast<uintptr_t>(&se_begin_stack);
    *--top = 0;
    *--top = 0;
    *--top = reinterpret_cast<uintptr_t>(self);
    *--top = reinterpret_cast<uintptr_t>(enter);
    *--top = 0;
    *--top = 0;
    inside = top;
  }
  void Begun() {}
  void GoInside() { se_change_stacks(&outside, inside); }
  void GoOutside() { se_change_stacks(&inside, outside); }
  ~Switch() {
    if (memory != nullptr) munmap(memory, kStackBytes);
  }
};

#else

struct SideStack::Switch {
  void* memory = nullptr;
  ucontext_t inside{};
  ucontext_t outside{};
#if defined(SE_ADDRESS_SANITIZER)
  void* fake_inside = nullptr;
  void* fake_outside = nullptr;
  const void* outside_bottom = nullptr;
  size_t outside_bytes = 0;
#elif defined(SE_THREAD_SANITIZER)
  void* fiber_inside = nullptr;
  void* fiber_outside = nullptr;
#endif

  static void Begin(unsigned enter_low, unsigned enter_high, unsigned self_low, unsigned self_high) {
    const auto joined = [](unsigned low, unsigned high) {
      return static_cast<uintptr_t>(low) | static_cast<uintptr_t>(static_cast<uint64_t>(high) << 32);
    };
    const auto enter = reinterpret_cast<void (*)(SideStack*)>(joined(enter_low, enter_high));
    enter(reinterpret_cast<SideStack*>(joined(self_low, self_high)));
  }
  void Prepare(void (*enter)(SideStack*), SideStack* self) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = memory;
    inside.uc_stack.ss_size = kStackBytes;
    inside.uc_link = nullptr;
    const auto function = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(enter));
    const auto argument = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(self));
    makecontext(&inside, reinterpret_cast<void (*)()>(&Begin), 4, static_cast<unsigned>(function),
                static_cast<unsigned>(function >> 32), static_cast<unsigned>(argument),
                static_cast<unsigned>(argument >> 32));
#if defined(SE_THREAD_SANITIZER)
    fiber_inside = __tsan_create_fiber(0);
#endif
  }
  void Begun() {
#if defined(SE_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(nullptr, &outside_bottom, &outside_bytes);
#endif
  }
  void GoInside() {
#if defined(SE_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(&fake_outside, memory, kStackBytes);
#elif defined(SE_THREAD_SANITIZER)
    fiber_outside = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(fiber_inside, 0);
#endif
    swapcontext(&outside, &inside);
#if defined(SE_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake_outside, nullptr, nullptr);
#endif
  }
  void GoOutside() {
#if defined(SE_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(&fake_inside, outside_bottom, outside_bytes);
#elif defined(SE_THREAD_SANITIZER)
    __tsan_switch_to_fiber(fiber_outside, 0);
#endif
    swapcontext(&inside, &outside);
#if defined(SE_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake_inside, &outside_bottom, &outside_bytes);
#endif
  }
  ~Switch() {
#if defined(SE_THREAD_SANITIZER)
    if (fiber_inside != nullptr) __tsan_destroy_fiber(fiber_inside);
#endif
    if (memory != nullptr) munmap(memory, kStackBytes);
  }
};

#endif

SideStack::SideStack(std::function<void()> body) : body_(std::move(body)) {}

SideStack::~SideStack() = default;

Status SideStack::Open() {
  switch_ = std::make_unique<Switch>();
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return Status(SE_NO_MEMORY, "could not allocate memory for a stack");
  switch_->memory = memory;
  if (mprotect(memory, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE) != 0) {
    return Status::System("protecting the end of a stack failed (mprotect)", errno);
  }
  switch_->Prepare(&Enter, this);
  return Status::Ok();
}

// Where the new stack begins. It serves one run after the other.
void SideStack::Enter(SideStack* self) {
  self->switch_->Begun();
  while (true) {
    self->body_();
    self->state_ = State::kIdle;
    self->switch_->GoOutside();
  }
}

bool SideStack::Run() {
  if (state_ != State::kIdle) return false;
  state_ = State::kInside;
  switch_->GoInside();
  return true;
}

bool SideStack::GoOn() {
  if (state_ != State::kLeft) return false;
  state_ = State::kInside;
  switch_->GoInside();
  return true;
}

bool SideStack::Leave() {
  if (state_ != State::kInside) return false;
  state_ = State::kLeft;
  switch_->GoOutside();
  return true;
}

}  // namespace spark_estimator
