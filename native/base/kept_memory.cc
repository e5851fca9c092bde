#include "base/kept_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <type_traits>

namespace spark_estimator {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t InHugePages(size_t bytes) { return bytes / kHugePageBytes * kHugePageBytes; }

struct Kept {
  void* memory;
  size_t bytes;
};

// Nothing here allocates, since memory is released where nothing may be thrown.
struct Store {
  std::mutex lock;
  // In the order of their release; one more than are kept.
  std::array<Kept, kKeptMemoryBytes / kLargeMemoryBytes + 1> kept{};
  size_t count = 0;
  size_t bytes = 0;

  Kept Take(size_t index) {
    const Kept taken = kept[index];
    std::copy(kept.begin() + static_cast<std::ptrdiff_t>(index) + 1, kept.begin() + static_cast<std::ptrdiff_t>(count),
              kept.begin() + static_cast<std::ptrdiff_t>(index));
    count -= 1;
    bytes -= taken.bytes;
    return taken;
  }
  void Drop(size_t index) { std::free(Take(index).memory); }
};

// Not destroyed when the process ends: a result may be released then.
static_assert(std::is_trivially_destructible_v<Store>);
constinit Store the_store;

Store& TheStore() { return the_store; }

// What is kept and large enough for `bytes`, but not twice as large; the smallest such.
void* TakeKept(size_t bytes) {
  Store& store = TheStore();
  // Only locked with try_lock: a child that was forked while a thread held the lock would wait for ever.
  const std::unique_lock<std::mutex> lock(store.lock, std::try_to_lock);
  if (!lock) return nullptr;
  size_t best = store.count;
  for (size_t i = 0; i < store.count; ++i) {
    if (store.kept[i].bytes < bytes || store.kept[i].bytes / 2 >= bytes) continue;
    if (best == store.count || store.kept[i].bytes < store.kept[best].bytes) best = i;
  }
  return best == store.count ? nullptr : store.Take(best).memory;
}

bool Keep(void* memory, size_t bytes) {
  Store& store = TheStore();
  const std::unique_lock<std::mutex> lock(store.lock, std::try_to_lock);
  if (!lock) return false;
  // An old kernel does not know this advice: then nothing is kept that the system could not have back.
  if (madvise(memory, InHugePages(bytes), MADV_FREE) != 0) return false;
  store.kept[store.count++] = {memory, bytes};
  store.bytes += bytes;
  while (store.bytes > kKeptMemoryBytes) store.Drop(0);
  return true;
}

}  // namespace

void* AllocateMemory(size_t bytes) {
  if (bytes < kLargeMemoryBytes) return std::malloc(std::max<size_t>(bytes, 1));
  if (void* memory = TakeKept(bytes)) return memory;
  void* memory = std::aligned_alloc(kHugePageBytes, InHugePages(bytes + kHugePageBytes - 1));
  // Advice: a system without such pages gives small ones.
  if (memory != nullptr) madvise(memory, InHugePages(bytes), MADV_HUGEPAGE);
  return memory;
}

void FreeMemory(void* memory) {
  if (memory == nullptr) return;
  const size_t bytes = malloc_usable_size(memory);
  const bool may_be_kept = bytes >= kLargeMemoryBytes && bytes <= kKeptMemoryBytes &&
                           reinterpret_cast<uintptr_t>(memory) % kHugePageBytes == 0;
  if (may_be_kept && Keep(memory, bytes)) return;
  std::free(memory);
}

Status AllocateMemory(size_t bytes, Memory* memory) {
  memory->reset(AllocateMemory(bytes));
  if (*memory) return Status::Ok();
  return Status(SE_NO_MEMORY, "could not allocate " + std::to_string(bytes) + " bytes of memory");
}

void FreeKeptMemory() {
  Store& store = TheStore();
  const std::unique_lock<std::mutex> lock(store.lock, std::try_to_lock);
  if (!lock) return;
  while (store.count > 0) store.Drop(0);
}

size_t KeptMemoryBytes() {
  Store& store = TheStore();
  const std::lock_guard<std::mutex> lock(store.lock);
  return store.bytes;
}

}  // namespace spark_estimator
