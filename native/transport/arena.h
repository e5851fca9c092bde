// The memory of one rank that all ranks of its host see: tensors that live here are reduced where they are.
#ifndef SPARK_ESTIMATOR_TRANSPORT_ARENA_H_
#define SPARK_ESTIMATOR_TRANSPORT_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/status.h"
#include "base/unique_fd.h"

namespace spark_estimator {

// Hands out ranges of a segment's sparse tail. A range's pages are allocated when it is handed out (no SIGBUS later:
// "no memory" is an error of Allocate) and returned to the system when it is freed. First fit, whole pages,
// neighbouring free ranges are joined. All functions may be called from any thread.
class Arena {
 public:
  // None: Allocate fails, Find finds nothing.
  Arena() = default;
  // The range of `bytes` bytes that begins at `file_offset` of the memory file `fd` and is mapped at `base`; both are
  // multiples of the page size. The mapping must outlive the arena; the descriptor is owned by it.
  Arena(UniqueFd fd, size_t file_offset, uint8_t* base, size_t bytes);
  // In a forked child: closes the descriptor and changes nothing else.
  void AbandonAfterFork();

  // Allocates `bytes` zeroed bytes, page-aligned. SE_NO_MEMORY if the arena or the machine lacks them.
  Status Allocate(size_t bytes, void** data);
  // Frees memory from Allocate; nullptr does nothing. Any other pointer is SE_INVALID_ARGUMENT.
  Status Free(void* data);
  // Whether [data, data + bytes) is in one allocated range, and at which offset of the arena, so that
  // peer_segment.arena() + offset is the same memory as another rank sees it.
  bool Find(const void* data, size_t bytes, uint64_t* offset) const;
  size_t allocated_bytes() const;
  // Whether Allocate was ever called: while not, Find finds nothing.
  bool used() const { return used_.load(std::memory_order_relaxed); }

 private:
  UniqueFd fd_;
  size_t file_offset_ = 0;
  uint8_t* base_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<bool> used_{false};
  mutable std::mutex mutex_;
  std::map<size_t, size_t> taken_;  // offset -> bytes
  std::map<size_t, size_t> free_;
  size_t allocated_bytes_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_ARENA_H_
