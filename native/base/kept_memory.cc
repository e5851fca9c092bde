#include "base/kept_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace spark_estimator {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t InHugePages(size_t bytes) { return bytes / kHugePageBytes * kHugePageBytes; }

struct Kept {
  void* memory;
  size_t bytes;
};

// Never destroyed: a result may be let go while the process ends.
struct Store {
  std::mutex lock;
  std::vector<Kept> kept;  // in the order they were let go
  size_t bytes = 0;

  void Drop(size_t index) {
    bytes -= kept[index].bytes;
    std::free(kept[index].memory);
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(index));
  }
};

Store& TheStore() {
  static Store* const store = new Store;
  return *store;
}

// What is kept and large enough for `bytes`, but not twice as large; the smallest such.
void* TakeKept(size_t bytes) {
  Store& store = TheStore();
  // Only ever tried: a child forked while somebody held the lock would wait for ever.
  const std::unique_lock<std::mutex> lock(store.lock, std::try_to_lock);
  if (!lock) return nullptr;
  size_t best = store.kept.size();
  for (size_t i = 0; i < store.kept.size(); ++i) {
    if (store.kept[i].bytes < bytes || store.kept[i].bytes / 2 >= bytes) continue;
    if (best == store.kept.size() || store.kept[i].bytes < store.kept[best].bytes) best = i;
  }
  if (best == store.kept.size()) return nullptr;
  void* memory = store.kept[best].memory;
  store.bytes -= store.kept[best].bytes;
  store.kept.erase(store.kept.begin() + static_cast<std::ptrdiff_t>(best));
  return memory;
}

bool Keep(void* memory, size_t bytes) {
  Store& store = TheStore();
  const std::unique_lock<std::mutex> lock(store.lock, std::try_to_lock);
  if (!lock) return false;
  // An old kernel does not know this advice: then nothing is kept that the system could not have back.
  if (madvise(memory, InHugePages(bytes), MADV_FREE) != 0) return false;
  store.kept.push_back({memory, bytes});
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
  return Status(SE_NO_MEMORY, "could not allocate " + std::to_string(bytes) + " bytes");
}

void FreeKeptMemory() {
  Store& store = TheStore();
  const std::unique_lock<std::mutex> lock(store.lock, std::try_to_lock);
  if (!lock) return;
  while (!store.kept.empty()) store.Drop(0);
}

size_t KeptMemoryBytes() {
  Store& store = TheStore();
  const std::lock_guard<std::mutex> lock(store.lock);
  return store.bytes;
}

}  // namespace spark_estimator
