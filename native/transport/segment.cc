#include "transport/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <string>
#include <utility>

namespace spark_estimator {
namespace {

constexpr size_t kPage = 4096;
constexpr int kYields = 4;

size_t RoundUp(size_t value, size_t step) { return (value + step - 1) / step * step; }

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

bool Reached(const Flag& flag, uint32_t value) {
  return static_cast<int32_t>(flag.value.load(std::memory_order_acquire) - value) >= 0;
}

// The word is shared between processes, so these are not the "private" futex calls.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, std::chrono::milliseconds timeout) {
  timespec limit{};
  limit.tv_sec = timeout.count() / 1000;
  limit.tv_nsec = timeout.count() % 1000 * 1000000;
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

}  // namespace

void Post(Flag& flag, uint32_t value) {
  // Sequentially consistent on both sides: a sleeper announces itself and looks once more, we store and then look for
  // sleepers, so one of the two sees the other.
  flag.value.store(value, std::memory_order_seq_cst);
  if (flag.sleepers.load(std::memory_order_seq_cst) > 0) FutexWakeAll(flag.value);
}

Status Await(Flag& flag, uint32_t value, int spin_pauses, Liveness& liveness) {
  if (Reached(flag, value)) return Status::Ok();
  for (int i = 0; i < spin_pauses; ++i) {
    Pause();
    if (Reached(flag, value)) return Status::Ok();
  }
  for (int i = 0; i < kYields; ++i) {
    sched_yield();
    if (Reached(flag, value)) return Status::Ok();
  }
  while (true) {
    flag.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = flag.value.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - value) < 0) FutexWait(flag.value, seen, kLivenessInterval);
    flag.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (Reached(flag, value)) return Status::Ok();
    SE_RETURN_IF_ERROR(liveness.Check());
  }
}

SegmentLayout::SegmentLayout(int size) {
  const auto ranks = static_cast<size_t>(std::max(size, 1));
  // About a mebibyte of input slot keeps a pair's working set inside the last-level cache; measured best at 128 KiB for
  // few ranks.
  chunk_bytes = std::clamp(RoundUp((size_t{1} << 20) / ranks, kPage), size_t{16} << 10, size_t{128} << 10);
  input_offset = kPage;
  output_offset = input_offset + kSlots * ranks * chunk_bytes;
  small_offset = output_offset + kSlots * chunk_bytes;
  total_bytes = small_offset + 2 * kSmallBytes;
}

Status Segment::Create(int size, UniqueFd* fd) {
  const SegmentLayout layout(size);
  UniqueFd made(memfd_create("spark_estimator", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.valid()) return Status::System("cannot make a shared segment (memfd_create)", errno);
  // Allocating now turns "no memory" into an error here instead of a SIGBUS in the middle of a collective.
  const int failed = posix_fallocate(made.get(), 0, static_cast<off_t>(layout.total_bytes));
  if (failed != 0) {
    return Status::System("cannot allocate a shared segment of " + std::to_string(layout.total_bytes) + " bytes",
                          failed);
  }
  if (fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status::System("cannot seal a shared segment", errno);
  }
  void* memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, made.get(), 0);
  if (memory == MAP_FAILED) return Status::System("cannot map a shared segment", errno);
  static_assert(sizeof(Header) <= kPage);
  auto* header = new (memory) Header();
  header->magic = kMagic;
  header->version = SE_ABI_VERSION;
  header->size = size;
  munmap(memory, kPage);
  *fd = std::move(made);
  return Status::Ok();
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    Unmap();
    base_ = std::exchange(other.base_, nullptr);
    size_ = other.size_;
    layout_ = other.layout_;
  }
  return *this;
}

Segment::~Segment() { Unmap(); }

void Segment::Unmap() {
  if (base_ != nullptr) munmap(base_, layout_.total_bytes);
  base_ = nullptr;
}

Status Segment::Map(int fd, int size) {
  const SegmentLayout layout(size);
  struct stat facts{};
  if (fstat(fd, &facts) != 0) return Status::System("cannot look at a shared segment", errno);
  if (static_cast<size_t>(facts.st_size) != layout.total_bytes) {
    return Status(SE_INVALID_ARGUMENT, "a shared segment has " + std::to_string(facts.st_size) +
                                           " bytes where a job of " + std::to_string(size) + " ranks needs " +
                                           std::to_string(layout.total_bytes));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(SE_INVALID_ARGUMENT, "a shared segment is not sealed against shrinking");
  }
  void* memory = mmap(nullptr, layout.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return Status::System("cannot map a shared segment", errno);
  const auto* header = static_cast<const Header*>(memory);
  if (header->magic != kMagic || header->version != SE_ABI_VERSION || header->size != size) {
    munmap(memory, layout.total_bytes);
    return Status(SE_INVALID_ARGUMENT, "a shared segment was made by another version or for another number of ranks");
  }
  Unmap();
  base_ = static_cast<uint8_t*>(memory);
  size_ = size;
  layout_ = layout;
  return Status::Ok();
}

}  // namespace spark_estimator
