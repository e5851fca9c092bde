// Released memory is reused if it fits, and no more of it is kept than the limit.
#include "base/kept_memory.h"

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"

namespace spark_estimator {
namespace {

constexpr size_t kMega = size_t{1} << 20;

void LargeMemoryIsUsedAgain() {
  FreeKeptMemory();
  void* first = AllocateMemory(32 * kMega);
  CHECK_EQ(reinterpret_cast<uintptr_t>(first) % (2 * kMega), 0u);
  std::memset(first, 1, 32 * kMega);
  FreeMemory(first);
  CHECK(KeptMemoryBytes() >= 32 * kMega);
  CHECK_EQ(AllocateMemory(31 * kMega), first);
  CHECK_EQ(KeptMemoryBytes(), 0u);
  std::memset(first, 2, 32 * kMega);
  FreeMemory(first);
}

void SmallMemoryIsNotKept() {
  FreeKeptMemory();
  for (const size_t bytes : {size_t{0}, size_t{1}, kMega, kLargeMemoryBytes - 1}) {
    void* memory = AllocateMemory(bytes);
    CHECK(memory != nullptr);
    FreeMemory(memory);
  }
  FreeMemory(nullptr);
  CHECK_EQ(KeptMemoryBytes(), 0u);
}

void TheSmallestThatFitsIsTaken() {
  FreeKeptMemory();
  void* large = AllocateMemory(20 * kMega);
  void* fitting = AllocateMemory(12 * kMega);
  void* small = AllocateMemory(8 * kMega);
  for (void* memory : {large, fitting, small}) FreeMemory(memory);
  CHECK_EQ(AllocateMemory(11 * kMega), fitting);
  // It would hold twice the requested size: not reused.
  void* other = AllocateMemory(4 * kMega);
  CHECK(other != large && other != fitting);
  FreeMemory(fitting);
  FreeMemory(other);
}

void NoMoreIsKeptThanPromised() {
  FreeKeptMemory();
  std::vector<void*> memory;
  for (int i = 0; i < 12; ++i) memory.push_back(AllocateMemory(9 * kMega));
  for (void* each : memory) {
    FreeMemory(each);
    CHECK(KeptMemoryBytes() <= kKeptMemoryBytes);
  }
  CHECK(KeptMemoryBytes() > kKeptMemoryBytes / 2);
  CHECK_EQ(AllocateMemory(9 * kMega), memory[6]);  // those released last are kept
  FreeMemory(memory[6]);
  FreeMemory(AllocateMemory(kKeptMemoryBytes + 2 * kMega));
  CHECK(KeptMemoryBytes() <= kKeptMemoryBytes);
  FreeKeptMemory();
  CHECK_EQ(KeptMemoryBytes(), 0u);
}

void ThreadsShareIt() {
  FreeKeptMemory();
  std::vector<std::thread> threads;
  for (uint8_t number = 0; number < 4; ++number) {
    threads.emplace_back([number] {
      for (int turn = 0; turn < 50; ++turn) {
        const size_t bytes = (4 + number) * kMega;
        auto* memory = static_cast<uint8_t*>(AllocateMemory(bytes));
        memory[0] = memory[bytes - 1] = number;
        std::this_thread::yield();
        CHECK_EQ(memory[0], number);
        CHECK_EQ(memory[bytes - 1], number);
        FreeMemory(memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(KeptMemoryBytes() <= kKeptMemoryBytes);
  FreeKeptMemory();
}

void TooMuchIsRefusedInWords() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose allocators end the program
  Memory memory;
  const Status status = AllocateMemory(SIZE_MAX / 4, &memory);
  CHECK_EQ(status.code(), SE_NO_MEMORY);
  CHECK_CONTAINS(status.message(), std::to_string(SIZE_MAX / 4));
#endif
}

}  // namespace
}  // namespace spark_estimator

int main() {
  using namespace spark_estimator;
  return testing::RunTests({
      {"large memory is used again", LargeMemoryIsUsedAgain},
      {"small memory is not kept", SmallMemoryIsNotKept},
      {"the smallest that fits is taken", TheSmallestThatFitsIsTaken},
      {"no more is kept than promised", NoMoreIsKeptThanPromised},
      {"threads share it", ThreadsShareIt},
      {"too much is refused in words", TooMuchIsRefusedInWords},
  });
}
