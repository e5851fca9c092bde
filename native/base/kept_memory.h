// Memory for results and scratch: large ones in huge pages, and kept for the next when they are let go.
#ifndef SPARK_ESTIMATOR_BASE_KEPT_MEMORY_H_
#define SPARK_ESTIMATOR_BASE_KEPT_MEMORY_H_

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace spark_estimator {

// From so many bytes on memory lies in pages of two megabytes, where the system has such, and is kept when it is let
// go. Memory that the system gives anew it has to clear first: 16 MB gathered from 2 ranks took 3.2 ms, and to be given
// the 32 MB for it another 3.5 (in small pages four times as much).
constexpr size_t kLargeMemoryBytes = size_t{4} << 20;

// What is kept of memory that was let go: so much, the latest. The system may take it whenever it is short of memory
// (MADV_FREE), but until then it counts as the process's.
constexpr size_t kKeptMemoryBytes = size_t{64} << 20;

// Memory from malloc or aligned_alloc, so that whoever has no more use for it may always call free().
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
