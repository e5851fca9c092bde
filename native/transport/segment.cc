#include "transport/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "transport/pages.h"

namespace spark_estimator {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLargestArena = size_t{64} << 30;

size_t RoundUp(size_t value, size_t step) { return (value + step - 1) / step * step; }

size_t Limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<size_t>::max();
  }
  return static_cast<size_t>(limit.rlim_cur);
}

// All ranks of the host map the arenas of all.
size_t ArenaBytes(int local_size, size_t rest) {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  size_t bytes = kLargestArena;
  if (pages > 0 && page_bytes > 0)
    bytes = std::min(bytes, static_cast<size_t>(pages) * static_cast<size_t>(page_bytes));
  const size_t file = Limit(RLIMIT_FSIZE);  // going beyond it would raise SIGXFSZ
  bytes = std::min(bytes, file > rest ? file - rest : 0);
  const auto ranks = static_cast<size_t>(std::max(local_size, 1));
  if (const size_t space = Limit(RLIMIT_AS); space != std::numeric_limits<size_t>::max()) {
    bytes = std::min(bytes, space / 4 / ranks);
  }
  return bytes / kPage * kPage;
}

}  // namespace

SegmentLayout::SegmentLayout(int local_size) {
  const auto ranks = static_cast<size_t>(std::max(local_size, 1));
  // About a mebibyte of input slot keeps a pair's working set inside the last-level cache; measured best at 256 KiB for
  // few ranks.
  chunk_bytes = std::clamp(RoundUp((size_t{1} << 20) / ranks, kPage), size_t{16} << 10, size_t{256} << 10);
  input_offset = kPage;
  // One slot more than are in flight, since a slot does not wrap around: the rest at the end stays unused.
  input_ring_bytes = std::max((kSlots + 1) * ranks * chunk_bytes, kLeastRingBytes);
  output_ring_bytes = std::max((kSlots + 1) * chunk_bytes, kLeastRingBytes);
  output_offset = input_offset + input_ring_bytes;
  small_offset = output_offset + output_ring_bytes;
  round_offset = small_offset + 2 * kSmallBytes;
  arena_offset = RoundUp(round_offset + 2 * kRoundBytes, kPage);
}

Status Segment::Create(int local_size, UniqueFd* fd) {
  const SegmentLayout layout(local_size);
  UniqueFd made(memfd_create("spark_estimator", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.valid()) return Status::System("cannot make a shared segment (memfd_create)", errno);
  const size_t total_bytes = layout.arena_offset + ArenaBytes(local_size, layout.arena_offset);
  if (ftruncate(made.get(), static_cast<off_t>(total_bytes)) != 0) {
    return Status::System("cannot make a shared segment of " + std::to_string(total_bytes) + " bytes", errno);
  }
  // Allocating now turns "no memory" into an error here instead of a SIGBUS in the middle of a collective.
  const int failed = PopulatePages(made.get(), 0, layout.arena_offset);
  if (failed != 0) {
    return Status::System("cannot allocate a shared segment of " + std::to_string(layout.arena_offset) + " bytes",
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
  header->local_size = local_size;
  munmap(memory, kPage);
  *fd = std::move(made);
  return Status::Ok();
}

Status Segment::LocalSizeOf(int fd, int* local_size) {
  Header header{};
  const ssize_t got = pread(fd, static_cast<void*>(&header), offsetof(Header, input_posted), 0);
  if (got != static_cast<ssize_t>(offsetof(Header, input_posted)) || header.magic != kMagic || header.local_size < 1) {
    return Status(SE_INVALID_ARGUMENT, "this is not a shared segment");
  }
  *local_size = header.local_size;
  return Status::Ok();
}

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    Unmap();
    base_ = std::exchange(other.base_, nullptr);
    local_size_ = other.local_size_;
    arena_bytes_ = std::exchange(other.arena_bytes_, 0);
    layout_ = other.layout_;
  }
  return *this;
}

Segment::~Segment() { Unmap(); }

void Segment::Unmap() {
  if (base_ != nullptr) munmap(base_, layout_.arena_offset + arena_bytes_);
  base_ = nullptr;
  arena_bytes_ = 0;
}

Status Segment::Map(int fd, int local_size) {
  const SegmentLayout layout(local_size);
  struct stat facts{};
  if (fstat(fd, &facts) != 0) return Status::System("cannot look at a shared segment", errno);
  const auto total_bytes = static_cast<size_t>(facts.st_size);
  if (facts.st_size < 0 || total_bytes < layout.arena_offset || total_bytes > layout.arena_offset + kLargestArena) {
    return Status(SE_INVALID_ARGUMENT, "a shared segment has " + std::to_string(facts.st_size) + " bytes where " +
                                           std::to_string(local_size) + " ranks of a host need " +
                                           std::to_string(layout.arena_offset) + " and an arena of at most " +
                                           std::to_string(kLargestArena));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(SE_INVALID_ARGUMENT, "a shared segment is not sealed against shrinking");
  }
  size_t mapped_bytes = total_bytes;
  const auto map = [&] {
    return mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  };
  void* memory = map();
  if (memory == MAP_FAILED && mapped_bytes > layout.arena_offset) {
    mapped_bytes = layout.arena_offset;
    memory = map();
  }
  if (memory == MAP_FAILED) return Status::System("cannot map a shared segment", errno);
  // A core dump would read the whole arena, and so allocate pages for all of it.
  madvise(memory, mapped_bytes, MADV_DONTDUMP);
  const auto* header = static_cast<const Header*>(memory);
  if (header->magic != kMagic || header->version != SE_ABI_VERSION || header->local_size != local_size) {
    munmap(memory, mapped_bytes);
    return Status(SE_INVALID_ARGUMENT, "a shared segment was made by another version or for another number of ranks");
  }
  Unmap();
  base_ = static_cast<uint8_t*>(memory);
  local_size_ = local_size;
  layout_ = layout;
  arena_bytes_ = mapped_bytes - layout.arena_offset;
  return Status::Ok();
}

}  // namespace spark_estimator
