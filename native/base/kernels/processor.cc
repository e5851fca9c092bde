// Asks the processor itself: __builtin_cpu_supports() is always 0 in what `zig c++` links. The bits are those of
// Intel's Software Developer's Manual, volume 2 (CPUID) and volume 1, 13.2 (XCR0).
#include "base/kernels/processor.h"

#include <cpuid.h>

#include <cstdint>

namespace spark_estimator {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero if the processor lacks this leaf.
Registers Leaf(uint32_t leaf, uint32_t subleaf) {
  Registers registers;
  if (__get_cpuid_count(leaf, subleaf, &registers.eax, &registers.ebx, &registers.ecx, &registers.edx) == 0) return {};
  return registers;
}

constexpr bool Bit(uint64_t word, int bit) { return (word >> bit & 1U) != 0; }

// The registers that the kernel saves when it switches threads; 0 where it saves none.
uint64_t SavedState() {
  if (!Bit(Leaf(1, 0).ecx, 27)) return 0;  // OSXSAVE
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

constexpr uint64_t kAvxState = 0x6;      // XMM, YMM
constexpr uint64_t kAvx512State = 0xe6;  // and the mask registers and both parts of ZMM

}  // namespace

bool HasAvx2() {
  const Registers first = Leaf(1, 0);
  const bool fma = Bit(first.ecx, 12), avx = Bit(first.ecx, 28), f16c = Bit(first.ecx, 29);
  return fma && avx && f16c && Bit(Leaf(7, 0).ebx, 5) && (SavedState() & kAvxState) == kAvxState;
}

bool HasAvx512() {
  const uint32_t extended = Leaf(7, 0).ebx;
  const bool all = Bit(extended, 16) && Bit(extended, 17) && Bit(extended, 30) && Bit(extended, 31);  // F, DQ, BW, VL
  return all && HasAvx2() && (SavedState() & kAvx512State) == kAvx512State;
}

}  // namespace spark_estimator
