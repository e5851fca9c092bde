// An NCCL without a GPU, for tests: its kernels are tasks on the fake CUDA runtime's streams, and ranks, which may be
// threads or processes, meet in a file under TMPDIR that the unique id names.
//
// It is stricter than NCCL where a mistake would otherwise show on some machines only: calls are launched when the
// communicator has been polled often enough, never before; a communicator that is busy takes no further call; one that
// was aborted or destroyed must not be touched again, and one that is destroyed must have been finalized.
#include "fake_nccl.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fake_nccl_comm.h"

namespace fake_nccl {
namespace {

// ---- communicators -------------------------------------------------------------------------------------------------

struct Library {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Comm>> comms;
  std::map<int, std::string> calls;  // by rank
  std::map<int, int> refusals;
  std::atomic<int> ids{0};
  std::atomic<int> id_refusal{kSuccess};
  std::atomic<int> version{22703};
  std::atomic<int> hanging_rank{-1};
  std::atomic<int> slowness{2};
};

// Never destroyed: tasks may outlive main.
Library& TheLibrary() {
  static Library* const library = [] {
    auto* made = new Library;
    if (const char* version = std::getenv("FAKE_NCCL_VERSION")) made->version = std::atoi(version);
    if (const char* rank = std::getenv("FAKE_NCCL_HANG_INIT")) made->hanging_rank = std::atoi(rank);
    return made;
  }();
  return *library;
}

std::shared_ptr<Comm> CommOf(void* handle, const char* function) {
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  const auto found = library.comms.find(handle);
  if (found != library.comms.end()) return found->second;
  std::fprintf(stderr, "fake NCCL: %s of a communicator that does not exist, or no longer\n", function);
  std::abort();
}

std::shared_ptr<Comm> TakeComm(void* handle, const char* function) {
  auto comm = CommOf(handle, function);
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  library.comms.erase(handle);
  return comm;
}

// ---- calls and groups of them --------------------------------------------------------------------------------------

struct Group {
  int depth = 0;
  int result = kSuccess;
  std::vector<std::pair<std::shared_ptr<Comm>, Call>> calls;
};
thread_local Group group;

void Record(int rank, const std::string& text) {
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  std::string& calls = library.calls[rank];
  calls += (calls.empty() ? "" : " ") + text;
}

// Calls of one group run at once: what one of them writes, no other one may read or write.
void CheckApart(const std::vector<std::pair<std::shared_ptr<Comm>, Call>>& calls) {
  struct Range {
    const uint8_t* begin = nullptr;
    const uint8_t* end = nullptr;
    bool Meets(const Range& other) const { return begin < other.end && other.begin < end; }
  };
  std::vector<std::pair<Range, Range>> memory;  // read and written
  for (const auto& [comm, call] : calls) {
    const auto all = static_cast<size_t>(comm->size) * call.bytes();
    const bool root = call.root == comm->rank;
    const bool reads = call.kind != Kind::kRecv && (call.kind != Kind::kBroadcast || root);
    const bool writes = call.kind != Kind::kSend && (call.kind != Kind::kReduce || root);
    const size_t read = call.kind == Kind::kReduceScatter ? all : call.bytes();
    const size_t written = call.kind == Kind::kAllGather ? all : call.bytes();
    memory.emplace_back(reads ? Range{call.input, call.input + read} : Range(),
                        writes ? Range{call.output, call.output + written} : Range());
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    for (size_t j = 0; j < memory.size(); ++j) {
      if (i == j || !(memory[i].second.Meets(memory[j].first) || memory[i].second.Meets(memory[j].second))) continue;
      std::fputs("fake NCCL: two calls of one group share memory that one of them writes\n", stderr);
      std::abort();
    }
  }
}

// The thread's calls become its communicators': they are launched once these were looked at.
int Hand(bool as_group) {
  std::vector<std::pair<std::shared_ptr<Comm>, Call>> calls = std::exchange(group.calls, {});
  const int result = std::exchange(group.result, kSuccess);
  if (result != kSuccess) return result;
  if (calls.empty()) return kSuccess;
  CheckApart(calls);
  std::map<Comm*, std::string> texts;
  for (const auto& [comm, call] : calls) {
    std::string& text = texts[comm.get()];
    text += (text.empty() ? "" : " ") + call.Text();
    const std::lock_guard<std::mutex> lock(comm->mutex);
    comm->taken.push_back(call);
    comm->looks = TheLibrary().slowness;
  }
  for (const auto& [comm, text] : texts) Record(comm->rank, as_group ? "GroupStart " + text + " GroupEnd" : text);
  return kInProgress;
}

int Refusal(int rank) {
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  const auto found = library.refusals.find(rank);
  if (found == library.refusals.end()) return kSuccess;
  const int result = found->second;
  library.refusals.erase(found);
  return result;
}

int Take(void* handle, Call call) {
  const auto comm = CommOf(handle, kKindNames[static_cast<int>(call.kind)]);
  int result = call.type < 0 || call.type >= kTypes ? kInvalidArgument : Refusal(comm->rank);
  if (call.root < 0 || call.root >= comm->size) result = kInvalidArgument;
  {
    const std::lock_guard<std::mutex> lock(comm->mutex);
    if (result == kSuccess && comm->error != kSuccess) result = comm->error;
    if (result == kSuccess && (!comm->connected || !comm->taken.empty() || comm->finalizing)) result = kInvalidUsage;
    if (result == kSuccess && call.op >= kFirstOwnOp) {
      const auto index = static_cast<size_t>(call.op - kFirstOwnOp);
      const bool known =
          index < comm->operators.size() && comm->operators[index].alive && comm->operators[index].type == call.type;
      if (known) call.factor = comm->operators[index].factor;
      if (!known) result = kInvalidArgument;
    }
    if (result != kSuccess) comm->words = "the fake refuses " + call.Text();
  }
  if (result != kSuccess) {
    if (group.depth > 0) group.result = result;
    return result;
  }
  group.calls.emplace_back(comm, call);
  return group.depth > 0 ? kInProgress : Hand(false);
}

int StateOf(const std::shared_ptr<Comm>& comm) {
  const std::lock_guard<std::mutex> lock(comm->mutex);
  if (comm->error != kSuccess) return comm->error;
  Meeting& meeting = comm->place.meeting();
  if (!comm->connected) {
    comm->connected = !comm->hangs && meeting.joined == comm->size;
    return comm->connected ? kSuccess : kInProgress;
  }
  if (!comm->taken.empty()) {
    if (--comm->looks > 0) return kInProgress;
    Launch(comm, std::exchange(comm->taken, {}));
  }
  if (comm->finalizing && !comm->finalized) {
    if (comm->running > 0) return kInProgress;
    ++meeting.finalized;
    comm->finalized = true;
  }
  return comm->finalizing && meeting.finalized < comm->size ? kInProgress : kSuccess;
}

}  // namespace
}  // namespace fake_nccl

using namespace fake_nccl;

extern "C" {

struct ncclUniqueId {
  char internal[128];
};

struct ncclConfig {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
};

FAKE_API int ncclGetVersion(int* version) {
  *version = TheLibrary().version;
  return kSuccess;
}

FAKE_API int ncclGetUniqueId(ncclUniqueId* id) {
  const int refusal = TheLibrary().id_refusal.exchange(kSuccess);
  if (refusal != kSuccess) return refusal;
  const char* folder = std::getenv("TMPDIR");
  std::string path = std::string(folder != nullptr && *folder != '\0' ? folder : "/tmp") + "/fake_nccl.XXXXXX";
  if (path.size() >= sizeof(id->internal)) return kSystemError;
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return kSystemError;
  const int failed = ftruncate(fd, kPage);
  close(fd);
  if (failed != 0) return kSystemError;
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, path.data(), path.size());
  ++TheLibrary().ids;
  return kSuccess;
}

FAKE_API int ncclCommInitRankConfig(void** handle, int size, ncclUniqueId id, int rank, ncclConfig* config) {
  *handle = nullptr;
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) return kInvalidArgument;
  // As NCCL checks it, and non-blocking only.
  if (config == nullptr || config->size < sizeof(ncclConfig) || config->magic != 0xcafebeef ||
      config->version < 21400 || config->blocking != 0) {
    return kInvalidArgument;
  }
  auto comm = std::make_shared<Comm>();
  comm->rank = rank;
  comm->size = size;
  comm->hangs = rank == TheLibrary().hanging_rank;
  if (!comm->place.Open(std::string(id.internal, strnlen(id.internal, sizeof(id.internal))), size)) return kSystemError;
  Meeting& meeting = comm->place.meeting();
  int said = 0;
  if (!meeting.size.compare_exchange_strong(said, size) && said != size) return kInvalidArgument;
  const uint64_t bit = uint64_t{1} << rank;
  const uint64_t here = meeting.ranks.fetch_or(bit);
  if (here & bit) return kInvalidUsage;
  if (std::popcount(here | bit) == size) comm->place.TakeNameAway();
  // A hanging rank has not arrived as far as the others can see; but for leaving it counts as arrived.
  if (!comm->hangs) ++meeting.joined;
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  *handle = comm.get();
  library.comms[comm.get()] = std::move(comm);
  return kInProgress;
}

FAKE_API int ncclCommGetAsyncError(void* handle, int* state) {
  *state = StateOf(CommOf(handle, "ncclCommGetAsyncError"));
  return kSuccess;
}

FAKE_API int ncclCommFinalize(void* handle) {
  const auto comm = CommOf(handle, "ncclCommFinalize");
  const std::lock_guard<std::mutex> lock(comm->mutex);
  if (comm->error != kSuccess) return comm->error;
  if (!comm->connected || !comm->taken.empty() || comm->finalizing) return kInvalidUsage;
  comm->finalizing = true;
  return kInProgress;
}

FAKE_API int ncclCommDestroy(void* handle) {
  const auto comm = TakeComm(handle, "ncclCommDestroy");
  if (!comm->finalized) {
    std::fputs("fake NCCL: a communicator is destroyed that was not finalized\n", stderr);
    std::abort();
  }
  comm->place.Leave();
  return kSuccess;
}

FAKE_API int ncclCommAbort(void* handle) {
  const auto comm = TakeComm(handle, "ncclCommAbort");
  comm->aborted = true;
  if (!comm->hangs) comm->place.Leave();
  return kSuccess;
}

FAKE_API const char* ncclGetErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case kInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
    default:
      return "internal error";
  }
}

FAKE_API const char* ncclGetLastError(void* handle) {
  static thread_local std::string text;
  text.clear();
  if (handle != nullptr) {
    const auto comm = CommOf(handle, "ncclGetLastError");
    const std::lock_guard<std::mutex> lock(comm->mutex);
    text = comm->words;
  }
  return text.c_str();
}

FAKE_API int ncclAllReduce(const void* input, void* output, size_t count, int type, int op, void* comm, void* stream) {
  return Take(comm, {Kind::kAllReduce, static_cast<const uint8_t*>(input), static_cast<uint8_t*>(output), count, type,
                     op, 1, 0, stream});
}

FAKE_API int ncclReduce(const void* input, void* output, size_t count, int type, int op, int root, void* comm,
                        void* stream) {
  return Take(comm, {Kind::kReduce, static_cast<const uint8_t*>(input), static_cast<uint8_t*>(output), count, type, op,
                     1, root, stream});
}

FAKE_API int ncclBroadcast(const void* input, void* output, size_t count, int type, int root, void* comm,
                           void* stream) {
  return Take(comm, {Kind::kBroadcast, static_cast<const uint8_t*>(input), static_cast<uint8_t*>(output), count, type,
                     kSum, 1, root, stream});
}

FAKE_API int ncclAllGather(const void* input, void* output, size_t count, int type, void* comm, void* stream) {
  return Take(comm, {Kind::kAllGather, static_cast<const uint8_t*>(input), static_cast<uint8_t*>(output), count, type,
                     kSum, 1, 0, stream});
}

FAKE_API int ncclReduceScatter(const void* input, void* output, size_t count, int type, int op, void* comm,
                               void* stream) {
  return Take(comm, {Kind::kReduceScatter, static_cast<const uint8_t*>(input), static_cast<uint8_t*>(output), count,
                     type, op, 1, 0, stream});
}

FAKE_API int ncclSend(const void* input, size_t count, int type, int peer, void* comm, void* stream) {
  return Take(comm, {Kind::kSend, static_cast<const uint8_t*>(input), nullptr, count, type, kSum, 1, peer, stream});
}

FAKE_API int ncclRecv(void* output, size_t count, int type, int peer, void* comm, void* stream) {
  return Take(comm, {Kind::kRecv, nullptr, static_cast<uint8_t*>(output), count, type, kSum, 1, peer, stream});
}

FAKE_API int ncclGroupStart() {
  ++group.depth;
  return kSuccess;
}

FAKE_API int ncclGroupEnd() {
  if (group.depth == 0) return kInvalidUsage;
  return --group.depth == 0 ? Hand(true) : kSuccess;
}

FAKE_API int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, void* handle) {
  const auto comm = CommOf(handle, "ncclRedOpCreatePreMulSum");
  const std::lock_guard<std::mutex> lock(comm->mutex);
  if (comm->error != kSuccess) return comm->error;
  if (type < 6 || type >= kTypes || residence != 1) return kInvalidArgument;
  if (!comm->connected || !comm->taken.empty()) return kInvalidUsage;
  comm->operators.push_back({type, Load(static_cast<const uint8_t*>(scalar), 0, type), true});
  *op = kFirstOwnOp + static_cast<int>(comm->operators.size()) - 1;
  return kSuccess;
}

FAKE_API int ncclRedOpDestroy(int op, void* handle) {
  const auto comm = CommOf(handle, "ncclRedOpDestroy");
  const std::lock_guard<std::mutex> lock(comm->mutex);
  const auto index = static_cast<size_t>(op - kFirstOwnOp);
  if (op < kFirstOwnOp || index >= comm->operators.size() || !comm->operators[index].alive) return kInvalidArgument;
  comm->operators[index].alive = false;
  return kSuccess;
}

void fake_nccl_version(int version) { TheLibrary().version = version; }
void fake_nccl_hang_init(int rank) { TheLibrary().hanging_rank = rank; }
void fake_nccl_slowness(int looks) { TheLibrary().slowness = looks; }

void fake_nccl_fail_async(int rank, int result) {
  std::vector<std::shared_ptr<Comm>> found;
  {
    Library& library = TheLibrary();
    const std::lock_guard<std::mutex> lock(library.mutex);
    for (const auto& [handle, comm] : library.comms) {
      if (comm->rank == rank) found.push_back(comm);
    }
  }
  for (const auto& comm : found) comm->Break(result, "the fake was told to fail");
}

void fake_nccl_refuse(int rank, int result) {
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  library.refusals[rank] = result;
}

void fake_nccl_refuse_id(int result) { TheLibrary().id_refusal = result; }
int fake_nccl_ids_made() { return TheLibrary().ids; }

const char* fake_nccl_calls(int rank) {
  static thread_local std::string text;
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  text = library.calls[rank];
  return text.c_str();
}

void fake_nccl_forget() {
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  library.calls.clear();
}

int fake_nccl_live_comms() {
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  return static_cast<int>(library.comms.size());
}

int fake_nccl_live_operators() {
  Library& library = TheLibrary();
  const std::lock_guard<std::mutex> lock(library.mutex);
  int alive = 0;
  for (const auto& [handle, comm] : library.comms) {
    const std::lock_guard<std::mutex> comm_lock(comm->mutex);
    for (const Operator& op : comm->operators) alive += op.alive;
  }
  return alive;
}

}  // extern "C"
