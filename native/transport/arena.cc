#include "transport/arena.h"

#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "transport/pages.h"

namespace spark_estimator {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

Arena::Arena(UniqueFd fd, size_t file_offset, uint8_t* base, size_t bytes)
    : fd_(std::move(fd)), file_offset_(file_offset), base_(base), bytes_(bytes) {
  if (bytes > 0) free_[0] = bytes;
}

void Arena::AbandonAfterFork() {
  if (fd_.valid()) ::close(fd_.get());
}

Status Arena::Allocate(size_t bytes, void** data) {
  *data = nullptr;
  used_.store(true, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  if (bytes > bytes_) {
    return Status(
        SE_NO_MEMORY,
        "cannot allocate " + std::to_string(bytes) + " bytes of shared memory: " +
            (bytes_ == 0
                 ? std::string("this rank has no shared arena (it is alone on its host, or shared memory is off)")
                 : "the arena has " + std::to_string(bytes_) + " bytes"));
  }
  const size_t wanted = bytes == 0 ? kPage : (bytes + kPage - 1) / kPage * kPage;
  auto range = free_.begin();
  while (range != free_.end() && range->second < wanted) ++range;
  if (range == free_.end()) {
    return Status(SE_NO_MEMORY, "cannot allocate " + std::to_string(bytes) + " bytes of shared memory: " +
                                    std::to_string(allocated_bytes_) + " of the arena's " + std::to_string(bytes_) +
                                    " bytes are in use and no free range is large enough");
  }
  const auto [offset, available] = *range;
  // Calls that may throw are first: nothing has changed then.
  const auto taken = taken_.emplace(offset, wanted).first;
  if (const int failed = PopulatePages(fd_.get(), file_offset_ + offset, wanted); failed != 0) {
    taken_.erase(taken);
    Status status = Status::System("cannot allocate " + std::to_string(bytes) + " bytes of shared memory", failed);
    return failed == ENOSPC || failed == ENOMEM ? Status(SE_NO_MEMORY, status.message()) : status;
  }
  auto rest = free_.extract(range);
  if (available > wanted) {
    rest.key() = offset + wanted;
    rest.mapped() = available - wanted;
    free_.insert(std::move(rest));
  }
  allocated_bytes_ += wanted;
  *data = base_ + offset;
  return Status::Ok();
}

Status Arena::Free(void* data) {
  if (data == nullptr) return Status::Ok();
  const std::lock_guard lock(mutex_);
  const auto offset = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(base_);
  const auto range = taken_.find(offset);
  if (range == taken_.end()) {
    return Status(SE_INVALID_ARGUMENT, "what is to be freed was not allocated in this rank's shared memory");
  }
  auto [start, bytes] = *range;
  auto freed = taken_.extract(range);  // used again: nothing is allocated here
  allocated_bytes_ -= bytes;
  if (const int failed = GiveBackPages(fd_.get(), file_offset_ + start, bytes); failed != 0) {
    // The range is not handed out again, since it is not zero.
    return Status::System("cannot give back " + std::to_string(bytes) + " bytes of shared memory", failed);
  }
  if (const auto next = free_.find(start + bytes); next != free_.end()) {
    bytes += next->second;
    free_.erase(next);
  }
  if (const auto after = free_.lower_bound(start); after != free_.begin()) {
    if (const auto before = std::prev(after); before->first + before->second == start) {
      before->second += bytes;
      return Status::Ok();
    }
  }
  freed.mapped() = bytes;
  free_.insert(std::move(freed));
  return Status::Ok();
}

bool Arena::Find(const void* data, size_t bytes, uint64_t* offset) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto base = reinterpret_cast<uintptr_t>(base_);
  if (base_ == nullptr || address < base || address - base > bytes_ || bytes > bytes_ - (address - base)) return false;
  const size_t start = address - base;
  const std::lock_guard lock(mutex_);
  auto range = taken_.upper_bound(start);
  if (range == taken_.begin()) return false;
  --range;
  if (start + bytes > range->first + range->second) return false;
  *offset = start;
  return true;
}

size_t Arena::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  return allocated_bytes_;
}

}  // namespace spark_estimator
