#include "fake_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace fake_memory {
namespace {

constexpr size_t kLarge = size_t{1} << 20;
constexpr size_t kMost = size_t{1} << 40;
// Behind a large piece: how many have it mapped.
constexpr size_t kTail = 4096;

struct Ticket {
  pid_t process;
  int file;
  int serial;
  size_t bytes;
};
static_assert(sizeof(Ticket) <= sizeof(Handle));

struct Piece {
  size_t bytes = 0;
  int file = -1;  // of a large one
  int serial = 0;
};

struct Mapping {
  size_t bytes = 0;
  int users = 0;
  bool own = false;
};

struct Memory {
  std::mutex mutex;
  int last_serial = 0;
  std::map<void*, Piece> pieces;
  std::map<void*, Mapping> mappings;
};

// Never destroyed: streams' threads may outlive main.
Memory& TheMemory() {
  static Memory* const memory = new Memory;
  return *memory;
}

std::string NameOf(pid_t process, int serial) {
  return "fake_cuda_" + std::to_string(process) + "_" + std::to_string(serial);
}

std::atomic<int>& UsersOf(void* data, size_t bytes) {
  return *reinterpret_cast<std::atomic<int>*>(static_cast<uint8_t*>(data) + bytes);
}

size_t WholePages(size_t bytes) { return (bytes + kTail - 1) / kTail * kTail; }

void* Map(int file, size_t bytes) {
  void* data = mmap(nullptr, bytes + kTail, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return data == MAP_FAILED ? nullptr : data;
}

}  // namespace

void* Allocate(size_t bytes) {
  if (bytes >= kMost) return nullptr;
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  Piece piece;
  void* data = nullptr;
  if (bytes < kLarge) {
    piece.bytes = bytes;
    data = std::malloc(bytes);
  } else {
    piece.bytes = WholePages(bytes);
    piece.serial = ++memory.last_serial;
    piece.file = memfd_create(NameOf(getpid(), piece.serial).c_str(), MFD_CLOEXEC);
    if (piece.file < 0) return nullptr;
    if (ftruncate(piece.file, static_cast<off_t>(piece.bytes + kTail)) == 0) data = Map(piece.file, piece.bytes);
    if (data == nullptr) close(piece.file);
  }
  if (data == nullptr) return nullptr;
  std::memset(data, 0xCD, bytes);
  memory.pieces[data] = piece;
  return data;
}

bool Owns(void* data) {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  return memory.pieces.count(data) == 1;
}

void Free(void* data) {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto found = memory.pieces.find(data);
  const Piece piece = found->second;
  memory.pieces.erase(found);
  if (piece.file < 0) return std::free(data);
  if (UsersOf(data, piece.bytes) != 0) {
    std::fputs("fake CUDA: memory is freed while another rank has it mapped\n", stderr);
    std::abort();
  }
  munmap(data, piece.bytes + kTail);
  close(piece.file);
}

void Set(void* data, int value, size_t bytes) {
  const bool words = reinterpret_cast<uintptr_t>(data) % 8 == 0 && bytes % 8 == 0 && bytes <= 4096;
  if (!words) {
    std::memset(data, value, bytes);
    return;
  }
  uint64_t word = 0;
  std::memset(&word, value, sizeof(word));
  for (size_t i = 0; i < bytes / 8; ++i) __atomic_store_n(static_cast<uint64_t*>(data) + i, word, __ATOMIC_RELEASE);
}

bool Export(void* data, Handle* handle) {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto found = memory.pieces.find(data);
  if (found == memory.pieces.end() || found->second.file < 0) return false;
  const Ticket ticket{getpid(), found->second.file, found->second.serial, found->second.bytes};
  handle->bytes.fill(0);
  std::memcpy(handle->bytes.data(), &ticket, sizeof(ticket));
  return true;
}

void* Open(const Handle& handle) {
  Ticket ticket;
  std::memcpy(&ticket, handle.bytes.data(), sizeof(ticket));
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  void* data = nullptr;
  if (ticket.process == getpid()) {
    for (const auto& [address, piece] : memory.pieces) {
      if (piece.file == ticket.file && piece.serial == ticket.serial) data = address;
    }
  } else {
    const std::string path = "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return nullptr;
    char name[256] = {};
    // Whether the number means what it meant when it was offered.
    const bool same = readlink(path.c_str(), name, sizeof(name) - 1) > 0 &&
                      std::string(name).find(NameOf(ticket.process, ticket.serial)) != std::string::npos;
    if (same) data = Map(file, ticket.bytes);
    close(file);
  }
  if (data == nullptr) return nullptr;
  ++UsersOf(data, ticket.bytes);
  Mapping& mapping = memory.mappings[data];
  mapping.bytes = ticket.bytes;
  mapping.own = ticket.process == getpid();
  ++mapping.users;
  return data;
}

bool Close(void* data) {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  const auto found = memory.mappings.find(data);
  if (found == memory.mappings.end()) return false;
  const Mapping mapping = found->second;
  --UsersOf(data, mapping.bytes);
  if (--found->second.users == 0) memory.mappings.erase(found);
  if (!mapping.own) munmap(data, mapping.bytes + kTail);
  return true;
}

int LiveAllocations() {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  return static_cast<int>(memory.pieces.size());
}

int LiveMappings() {
  Memory& memory = TheMemory();
  const std::lock_guard<std::mutex> lock(memory.mutex);
  int count = 0;
  for (const auto& [data, mapping] : memory.mappings) count += mapping.users;
  return count;
}

}  // namespace fake_memory
