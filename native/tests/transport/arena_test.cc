// Segments and the arenas in them: one rank's allocations are visible to others; pages are allocated and freed; foreign
// files are refused.
#include "transport/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "transport/segment.h"
#include "transport/shared_group.h"

namespace {

// How many of the next calls of posix_fallocate a signal interrupts, and the bytes that one call allocates at most: a
// timer interrupts each larger one. Not every kernel interrupts it, so no signal is sent.
std::atomic<int> interruptions{0};
std::atomic<off_t> most_at_once{0};

}  // namespace

// The system's own function, which this one replaces in this program, would emulate it if a file system cannot.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  const bool is_undone = most_at_once > 0 && bytes > most_at_once;
  if (is_undone || interruptions.fetch_sub(1) > 0) return EINTR;
  return syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

struct Own {
  UniqueFd fd;  // as a peer would hold it
  Segment segment;
  std::unique_ptr<Arena> arena;
};

Own MakeOwn(int local_size) {
  Own own;
  CHECK(Segment::Create(local_size, &own.fd).ok());
  CHECK(own.segment.Map(own.fd.get(), local_size).ok());
  own.arena = std::make_unique<Arena>(UniqueFd(fcntl(own.fd.get(), F_DUPFD_CLOEXEC, 3)), own.segment.arena_offset(),
                                      own.segment.arena(), own.segment.arena_bytes());
  return own;
}

size_t PagesBytes(const Own& own) {
  struct stat facts{};
  CHECK_EQ(fstat(own.fd.get(), &facts), 0);
  return static_cast<size_t>(facts.st_blocks) * 512;
}

uint8_t* Allocate(Arena& arena, size_t bytes) {
  void* data = nullptr;
  const Status status = arena.Allocate(bytes, &data);
  if (!status.ok()) testing::Fail(__FILE__, __LINE__, status.message());
  CHECK_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
  return static_cast<uint8_t*>(data);
}

bool IsZero(const uint8_t* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](uint8_t byte) { return byte == 0; });
}

void Layout() {
  for (const int local_size : {1, 2, 3, 16, 64}) {
    const SegmentLayout layout(local_size);
    CHECK_EQ(layout.chunk_bytes % 64, 0u);
    CHECK(layout.output_offset >= layout.input_offset + layout.input_ring_bytes);
    CHECK(layout.small_offset >= layout.output_offset + layout.output_ring_bytes);
    CHECK(layout.round_offset >= layout.small_offset + 2 * SegmentLayout::kSmallBytes);
    CHECK(layout.arena_offset >= layout.round_offset + 2 * SegmentLayout::kRoundBytes);
    CHECK_EQ(layout.arena_offset % 4096, 0u);
  }
  CHECK(SegmentLayout(8).arena_offset <= size_t{8} << 20);
}

// For all sizes, the slots of kSlots blocks in a row are disjoint and inside the ring.
void SlotsInFlightAreApart() {
  std::mt19937 random(7);
  for (const int local_size : {1, 2, 8, 64}) {
    const SegmentLayout layout(local_size);
    const size_t largest = static_cast<size_t>(local_size) * layout.chunk_bytes;
    SlotRing ring;
    std::vector<std::pair<size_t, size_t>> placed;  // start and end
    uint32_t number = 0xfffffff0;                   // wraps in between
    size_t bytes = largest;
    for (int i = 0; i < 20000; ++i, ++number) {
      if (random() % 4 == 0) bytes = random() % 3 == 0 ? largest : random() % largest / 64 * 64;
      ring.Place(number, bytes, layout.input_ring_bytes);
      CHECK(ring.offset(number) + bytes <= layout.input_ring_bytes);
      placed.emplace_back(ring.offset(number), ring.offset(number) + bytes);
      if (placed.size() > SegmentLayout::kSlots) placed.erase(placed.begin());
      for (size_t other = 0; other + 1 < placed.size(); ++other) {
        CHECK(placed[other].second <= placed.back().first || placed.back().second <= placed[other].first);
        CHECK_EQ(ring.offset(number - static_cast<uint32_t>(placed.size() - 1 - other)), placed[other].first);
      }
    }
  }
}

// The machine decides how to store; the received data is the same.
void StoresArriveEitherWay() {
  SlotStores stores;
  std::vector<uint8_t> from(40000), to(40000);
  for (uint32_t block = 0; block < 3 * SlotStores::kPeriod; ++block) {
    const size_t bytes = block % 2 == 0 ? 5000 : from.size();
    std::fill(from.begin(), from.end(), static_cast<uint8_t>(block));
    stores.BeginBlock(bytes, block % 3 == 0);
    stores.Copy(to.data(), from.data(), bytes);
    CHECK(std::equal(from.begin(), from.begin() + static_cast<ptrdiff_t>(bytes), to.begin()));
  }
}

void RoundSlotsTakeTurns() {
  Own own = MakeOwn(2);
  uint8_t* even = own.segment.round_slot(6);
  uint8_t* odd = own.segment.round_slot(7);
  CHECK_EQ(own.segment.round_slot(8), even);
  CHECK(even + SegmentLayout::kRoundBytes <= odd || odd + SegmentLayout::kRoundBytes <= even);
  CHECK_EQ(reinterpret_cast<uintptr_t>(even) % 64, 0u);
  CHECK_EQ(reinterpret_cast<uintptr_t>(odd) % 64, 0u);
  std::memset(even, 1, SegmentLayout::kRoundBytes);
  std::memset(odd, 2, SegmentLayout::kRoundBytes);
  CHECK_EQ(+even[SegmentLayout::kRoundBytes - 1], 1);
  CHECK_EQ(own.segment.round_posted().value.load(), 0u);
}

// Another mapping of the same segment, as a peer has it, shows the same bytes at the same offset.
void PeersSeeIt() {
  Own own = MakeOwn(2);
  Segment peer;
  CHECK(peer.Map(own.fd.get(), 2).ok());
  CHECK(peer.arena() != own.segment.arena());
  CHECK_EQ(peer.arena_bytes(), own.segment.arena_bytes());
  Allocate(*own.arena, 100);
  uint8_t* data = Allocate(*own.arena, 1 << 20);
  uint64_t offset = 0;
  CHECK(own.arena->Find(data, 1 << 20, &offset));
  std::memset(data, 7, 1 << 20);
  CHECK_EQ(+peer.arena()[offset], 7);
  CHECK_EQ(+peer.arena()[offset + (1 << 20) - 1], 7);
  peer.arena()[offset + 5] = 9;
  CHECK_EQ(+data[5], 9);
}

// A dump would allocate all pages of the arena.
void NoCoreDumpHasIt() {
  const Own own = MakeOwn(2);
  std::ifstream maps("/proc/self/smaps");
  bool is_segment = false;
  int segments = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("-") < line.find(" ")) is_segment = line.find("/memfd:spark_estimator") != std::string::npos;
    if (!is_segment || line.rfind("VmFlags:", 0) != 0) continue;
    segments += 1;
    CHECK(line.find(" dd") != std::string::npos);
  }
  CHECK_EQ(segments, 1);
}

void AcrossProcesses() {
  Own own = MakeOwn(2);
  uint8_t* data = Allocate(*own.arena, 1 << 16);
  const pid_t child = fork();
  if (child == 0) {
    std::memset(data, 42, 1 << 16);
    _exit(0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  CHECK_EQ(+data[65535], 42);
}

void PagesComeAndGo() {
  Own own = MakeOwn(2);
  const size_t before = PagesBytes(own);
  constexpr size_t kBytes = size_t{40} << 20;  // several pieces
  uint8_t* data = Allocate(*own.arena, kBytes);
  CHECK(PagesBytes(own) >= before + kBytes);  // before anything is touched
  CHECK(IsZero(data, kBytes));
  std::memset(data, 1, kBytes);
  CHECK_EQ(own.arena->allocated_bytes(), kBytes);
  CHECK(own.arena->Free(data).ok());
  CHECK_EQ(own.arena->allocated_bytes(), 0u);
  CHECK_EQ(PagesBytes(own), before);
  uint8_t* again = Allocate(*own.arena, kBytes);
  CHECK_EQ(again, data);  // the free range is used again
  CHECK(IsZero(again, kBytes));
}

void Finding() {
  Own own = MakeOwn(2);
  uint8_t* first = Allocate(*own.arena, 4096);
  uint8_t* second = Allocate(*own.arena, 8192);
  uint64_t first_offset = 0;
  uint64_t offset = 0;
  CHECK(own.arena->Find(first, 4096, &first_offset));
  CHECK(own.arena->Find(second + 100, 8092, &offset));
  CHECK_EQ(offset, first_offset + static_cast<uint64_t>(second + 100 - first));
  CHECK(!own.arena->Find(second + 100, 8093, &offset));  // beyond its end
  CHECK(!own.arena->Find(first, 4097, &offset));         // runs into the neighbour
  CHECK(!own.arena->Find(first - 1, 2, &offset));        // before the arena
  CHECK(!own.arena->Find(second + 8192, 1, &offset));    // nothing is allocated there
  CHECK(!own.arena->Find(second, ~size_t{0}, &offset));
  int elsewhere = 0;
  CHECK(!own.arena->Find(&elsewhere, sizeof(elsewhere), &offset));
  CHECK(own.arena->Free(first).ok());
  CHECK(!own.arena->Find(first, 1, &offset));
  CHECK(own.arena->Find(second, 1, &offset));
}

void Refusals() {
  Own own = MakeOwn(2);
  void* data = &own;
  const Status too_large = own.arena->Allocate(own.segment.arena_bytes() + 1, &data);
  CHECK_EQ(too_large.code(), SE_NO_MEMORY);
  CHECK_CONTAINS(too_large.message(), std::to_string(own.segment.arena_bytes() + 1));
  CHECK(data == nullptr);
  CHECK(own.arena->Allocate(~size_t{0}, &data).code() == SE_NO_MEMORY);
  CHECK(own.arena->Free(nullptr).ok());
  uint8_t* good = Allocate(*own.arena, 5000);
  CHECK_EQ(own.arena->Free(good + 4096).code(), SE_INVALID_ARGUMENT);
  CHECK(own.arena->Free(good).ok());
  CHECK_EQ(own.arena->Free(good).code(), SE_INVALID_ARGUMENT);
  Arena none;
  CHECK_EQ(none.Allocate(1, &data).code(), SE_NO_MEMORY);
  uint64_t offset = 0;
  CHECK(!none.Find(good, 1, &offset));
}

// The error contains the requested size, and nothing of the attempt stays allocated.
void TheSystemRefuses() {
  Own own = MakeOwn(1);
  const size_t before = PagesBytes(own);
  UniqueFd read_only(open(("/proc/self/fd/" + std::to_string(own.fd.get())).c_str(), O_RDONLY | O_CLOEXEC));
  CHECK(read_only.valid());
  Arena arena(std::move(read_only), own.segment.arena_offset(), own.segment.arena(), own.segment.arena_bytes());
  void* data = &own;
  const Status status = arena.Allocate(1 << 20, &data);
  CHECK_EQ(status.code(), SE_SYSTEM_ERROR);
  CHECK_CONTAINS(status.message(), "1048576");
  CHECK(data == nullptr);
  CHECK_EQ(PagesBytes(own), before);
  CHECK_EQ(arena.allocated_bytes(), 0u);
}

// Random sizes, random order: ranges never overlap, are zero when allocated, and all are freed into one range.
void ManyOfThem() {
  Own own = MakeOwn(2);
  std::mt19937 random(3);
  struct Range {
    uint8_t* data;
    size_t bytes;
    uint8_t mark;
  };
  std::vector<Range> ranges;
  const auto check = [](const Range& range) {
    CHECK(std::all_of(range.data, range.data + range.bytes, [&](uint8_t byte) { return byte == range.mark; }));
  };
  for (int turn = 0; turn < 400; ++turn) {
    if (ranges.size() < 20 || random() % 2 == 0) {
      const size_t bytes = 1 + random() % 60000;
      uint8_t* data = Allocate(*own.arena, bytes);
      CHECK(IsZero(data, bytes));
      const auto mark = static_cast<uint8_t>(1 + random() % 255);
      std::memset(data, mark, bytes);
      ranges.push_back({data, bytes, mark});
    } else {
      const size_t which = random() % ranges.size();
      check(ranges[which]);
      CHECK(own.arena->Free(ranges[which].data).ok());
      ranges.erase(ranges.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  for (const Range& range : ranges) {
    check(range);
    CHECK(own.arena->Free(range.data).ok());
  }
  CHECK_EQ(own.arena->allocated_bytes(), 0u);
  CHECK_EQ(Allocate(*own.arena, size_t{32} << 20), own.segment.arena());
}

void FromManyThreads() {
  Own own = MakeOwn(2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&own, t] {
      for (int turn = 0; turn < 50; ++turn) {
        const size_t bytes = 1000 + static_cast<size_t>(turn) * 100;
        uint8_t* data = Allocate(*own.arena, bytes);
        std::memset(data, t + 1, bytes);
        uint64_t offset = 0;
        CHECK(own.arena->Find(data, bytes, &offset));
        CHECK(std::all_of(data, data + bytes, [t](uint8_t byte) { return byte == t + 1; }));
        CHECK(own.arena->Free(data).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(own.arena->allocated_bytes(), 0u);
}

void ForeignFilesAreRefused() {
  Own own = MakeOwn(2);
  Segment segment;
  CHECK_EQ(segment.Map(own.fd.get(), 3).code(), SE_INVALID_ARGUMENT);  // made for two
  UniqueFd empty(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK_EQ(segment.Map(empty.get(), 2).code(), SE_INVALID_ARGUMENT);
  CHECK_EQ(ftruncate(empty.get(), static_cast<off_t>(SegmentLayout(2).arena_offset)), 0);
  CHECK_CONTAINS(segment.Map(empty.get(), 2).message(), "not sealed");
  CHECK_EQ(fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  CHECK_CONTAINS(segment.Map(empty.get(), 2).message(), "another version");
  CHECK(!segment.mapped());
  CHECK_EQ(segment.Map(-1, 2).code(), SE_SYSTEM_ERROR);
}

// If limits leave no room, the arena shrinks or is omitted, and the segment still works.
void UnderLimits() {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit file{size_t{64} << 20, size_t{64} << 20};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &file), 0);
    Own own = MakeOwn(2);
    CHECK(own.segment.arena_bytes() > 0);
    CHECK(own.segment.arena_offset() + own.segment.arena_bytes() <= size_t{64} << 20);
    std::memset(Allocate(*own.arena, 1 << 20), 1, 1 << 20);
    _exit(0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need the address space for themselves
  Own large = MakeOwn(2);
  const size_t arena_bytes = large.segment.arena_bytes();
  const pid_t confined = fork();
  if (confined == 0) {
    large.arena.reset();
    large.segment = Segment();
    const rlimit space{size_t{2} << 30, size_t{2} << 30};
    CHECK_EQ(setrlimit(RLIMIT_AS, &space), 0);
    Segment peer;  // one that another process made for itself before
    CHECK(peer.Map(large.fd.get(), 2).ok());
    CHECK_EQ(peer.arena() == nullptr, arena_bytes > size_t{2} << 30);
    Post(peer.small_posted(), 3);
    _exit(0);
  }
  CHECK_EQ(waitpid(confined, &status, 0), confined);
  CHECK_EQ(status, 0);
  CHECK_EQ(large.segment.small_posted().value.load(), 3u);
#endif
}

void SignalsInterrupt() {
  interruptions = 3;
  Own own = MakeOwn(16);
  CHECK(interruptions < 0);
  CHECK(PagesBytes(own) >= own.segment.arena_offset());
  interruptions = 3;
  uint8_t* data = Allocate(*own.arena, size_t{5} << 20);
  CHECK(interruptions < 0);
  CHECK(IsZero(data, size_t{5} << 20));
  CHECK(PagesBytes(own) >= own.segment.arena_offset() + (size_t{5} << 20));
  most_at_once = off_t{4} << 20;
  Allocate(*own.arena, size_t{40} << 20);
  MakeOwn(16);
  most_at_once = 0;
}

}  // namespace

int main() {
  return RunTests({{"layout", Layout},
                   {"slots in flight are apart", SlotsInFlightAreApart},
                   {"stores arrive either way", StoresArriveEitherWay},
                   {"round slots take turns", RoundSlotsTakeTurns},
                   {"peers see it", PeersSeeIt},
                   {"no core dump has it", NoCoreDumpHasIt},
                   {"across processes", AcrossProcesses},
                   {"pages come and go", PagesComeAndGo},
                   {"finding", Finding},
                   {"refusals", Refusals},
                   {"the system refuses", TheSystemRefuses},
                   {"signals interrupt", SignalsInterrupt},
                   {"many of them", ManyOfThem},
                   {"from many threads", FromManyThreads},
                   {"foreign files are refused", ForeignFilesAreRefused},
                   {"under limits", UnderLimits}});
}
