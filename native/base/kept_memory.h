// Memory for results and scratch: large ones in huge pages, and kept for reuse when they are released.
#ifndef SPARK_ESTIMATOR_BASE_KEPT_MEMORY_H_
#define SPARK_ESTIMATOR_BASE_KEPT_MEMORY_H_

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace spark_estimator {

// From this number of bytes on memory is in pages of two megabytes, if the system has them, and is kept when it is
// released. The system has to clear new memory first: 16 MB gathered from 2 ranks took 3.2 ms, and allocating the 32 MB
// for it another 3.5 (in small pages four times as much).
constexpr size_t kLargeMemoryBytes = size_t{4} << 20;

// The limit of kept memory; the latest is kept. The system may reclaim it whenever it is short of memory (MADV_FREE),
// but until then it counts as the process's.
constexpr size_t kKeptMemoryBytes = size_t{64} << 20;

// Memory from malloc or aligned_alloc, so that its owner may always call free().
void* AllocateMemory(size_t bytes);  // null: there is none
void FreeMemory(void* memory);       // null does nothing

struct MemoryDeleter {
  void operator()(void* memory) const { FreeMemory(memory); }
};
using Memory = std::unique_ptr<void, MemoryDeleter>;

Status AllocateMemory(size_t bytes, Memory* memory);

// Gives back what is kept.
void FreeKeptMemory();

// How much is kept now.
size_t KeptMemoryBytes();

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_KEPT_MEMORY_H_
