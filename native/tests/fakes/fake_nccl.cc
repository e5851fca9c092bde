// An NCCL without a GPU, for tests: its kernels are tasks on the fake CUDA runtime's streams, and ranks, which may be
// threads or processes, meet in a file under TMPDIR that the unique id names.
//
// It is stricter than NCCL where a mistake would otherwise show on some machines only: calls are launched when somebody
// has looked at the communicator often enough, never before; a communicator that is busy takes no further call; one
// that was aborted or destroyed must not be touched again, and one that is destroyed must have been finalized.
#include "fake_nccl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/halves.h"
#include "fake_cuda.h"

namespace {

enum Result : int {
  kSuccess = 0,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7
};
enum Op : int {
  kSum = 0,
  kProduct = 1,
  kMax = 2,
  kMin = 3,
  kFirstOwnOp = 5
};
enum class Kind : int {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kSend,
  kRecv
};
constexpr const char* kKindNames[] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "Send", "Recv"};
// int8, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16
constexpr const char* kTypeNames[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                      "uint64", "float16", "float32", "float64", "bfloat16"};
constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
constexpr const char* kOpNames[] = {"sum", "prod", "max", "min", "avg"};
constexpr int kTypes = 10;

// ---- the file where the ranks meet ---------------------------------------------------------------------------------

constexpr int kMostRanks = 64;
constexpr size_t kPartBytes = size_t{32} << 10;
constexpr size_t kPage = 4096;

struct Meeting {
  std::atomic<int> size;  // what the first rank said
  std::atomic<uint64_t> ranks;
  std::atomic<int> joined;
  std::atomic<int> finalized;
  std::atomic<int> left;
  std::atomic<int> broken;  // a rank has found a contradiction
};

// From one rank to another, one part after the other.
struct Mailbox {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) uint8_t part[kPartBytes];
};

class Place {
 public:
  ~Place() {
    if (memory_ != nullptr) munmap(memory_, bytes_);
  }
  bool Open(const std::string& path, int size) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    path_ = path;
    size_ = static_cast<size_t>(size);
    bytes_ = kPage + size_ * size_ * sizeof(Mailbox);
    void* mapped = MAP_FAILED;
    if (ftruncate(fd, static_cast<off_t>(bytes_)) == 0) {
      mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (mapped == MAP_FAILED) return false;
    memory_ = mapped;
    return true;
  }
  Meeting& meeting() const { return *static_cast<Meeting*>(memory_); }
  Mailbox& Between(int from, int to) const {
    auto* boxes = reinterpret_cast<Mailbox*>(static_cast<uint8_t*>(memory_) + kPage);
    return boxes[static_cast<size_t>(from) * size_ + static_cast<size_t>(to)];
  }
  // The last one to go takes the file away.
  void Leave() {
    if (meeting().left.fetch_add(1) + 1 == meeting().joined.load()) unlink(path_.c_str());
  }

 private:
  std::string path_;
  size_t size_ = 0;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
};

// ---- communicators -------------------------------------------------------------------------------------------------

struct Call {
  Kind kind = Kind::kAllReduce;
  const uint8_t* input = nullptr;
  uint8_t* output = nullptr;
  size_t count = 0;
  int type = 0;
  int op = kSum;
  double factor = 1;
  int root = 0;  // or the other rank of a message
  void* stream = nullptr;

  size_t bytes() const { return count * kTypeBytes[type]; }
  std::string Text() const {
    std::string text =
        std::string(kKindNames[static_cast<int>(kind)]) + "(" + kTypeNames[type] + "," + std::to_string(count);
    if (kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter) {
      char factor_text[32];
      std::snprintf(factor_text, sizeof(factor_text), "premulsum(%g)", factor);
      text += std::string(",") + (op >= kFirstOwnOp ? factor_text : kOpNames[op]);
    }
    if (kind == Kind::kReduce || kind == Kind::kBroadcast) text += ",root " + std::to_string(root);
    if (kind == Kind::kSend) text += ",to " + std::to_string(root);
    if (kind == Kind::kRecv) text += ",from " + std::to_string(root);
    return text + ")";
  }
};

struct Operator {
  int type = 0;
  double factor = 1;
  bool alive = true;
};

struct Comm {
  int rank = 0;
  int size = 0;
  bool hangs = false;
  Place place;
  std::atomic<bool> aborted{false};
  std::atomic<int> running{0};  // tasks on streams
  std::mutex mutex;             // of what follows
  std::vector<Call> taken;      // and not launched yet
  int looks = 0;
  bool connected = false;
  bool finalizing = false;
  bool finalized = false;
  int error = kSuccess;
  std::string words;
  std::vector<Operator> operators;

  void Break(int result, const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (error != kSuccess) return;
    error = result;
    words = why;
  }
};

struct Library {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Comm>> comms;
  std::map<int, std::string> calls;  // by rank
  std::map<int, int> refusals;
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

// ---- kernels -------------------------------------------------------------------------------------------------------

// What goes before the elements of a message; a rank compares it with its own call.
struct Header {
  int kind = 0;
  int type = 0;
  int op = 0;  // all operators with a factor are one
  int root = 0;
  uint64_t count = 0;
  double factor = 1;  // each rank's own
};

Header HeaderOf(const Call& call) {
  Header header;
  const bool message = call.kind == Kind::kSend || call.kind == Kind::kRecv;
  header.kind = static_cast<int>(message ? Kind::kSend : call.kind);
  header.type = call.type;
  header.op = std::min(call.op, static_cast<int>(kFirstOwnOp));
  header.root = message ? 0 : call.root;
  header.count = call.count;
  header.factor = call.factor;
  return header;
}

// One direction between two ranks: messages one behind the other, each a header and then parts.
struct Message {
  Header header;
  const Call* call = nullptr;
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;
  size_t bytes = 0;
  size_t done = 0;
  bool begun = false;
  double* factor = nullptr;  // where the sender's goes
};

double Load(const uint8_t* data, size_t index, int type) {
  const auto as = [&](auto value) {
    std::memcpy(&value, data + index * sizeof(value), sizeof(value));
    return static_cast<double>(value);
  };
  const auto half = [&](int32_t dtype) {
    float value = 0;
    spark_estimator::HalvesToFloat32(dtype, &value, data + index * 2, 1);
    return static_cast<double>(value);
  };
  switch (type) {
    case 6:
      return half(SE_FLOAT16);
    case 7:
      return as(float{});
    case 8:
      return as(double{});
    default:
      return half(SE_BFLOAT16);
  }
}

void Store(uint8_t* data, size_t index, int type, double value) {
  const auto as = [&](auto typed) { std::memcpy(data + index * sizeof(typed), &typed, sizeof(typed)); };
  const auto narrow = static_cast<float>(value);
  switch (type) {
    case 6:
      return spark_estimator::HalvesFromFloat32(SE_FLOAT16, data + index * 2, &narrow, 1);
    case 7:
      return as(narrow);
    case 8:
      return as(value);
    default:
      return spark_estimator::HalvesFromFloat32(SE_BFLOAT16, data + index * 2, &narrow, 1);
  }
}

uint64_t LoadInteger(const uint8_t* data, size_t index, int type) {
  const auto as = [&](auto value) {
    std::memcpy(&value, data + index * sizeof(value), sizeof(value));
    return static_cast<uint64_t>(static_cast<int64_t>(value));
  };
  switch (type) {
    case 0:
      return as(int8_t{});
    case 1:
      return as(uint8_t{});
    case 2:
      return as(int32_t{});
    case 3:
      return as(uint32_t{});
    default:
      return as(int64_t{});
  }
}

void StoreInteger(uint8_t* data, size_t index, int type, uint64_t value) {
  std::memcpy(data + index * kTypeBytes[type], &value, kTypeBytes[type]);  // little-endian: the low bytes
}

template <typename Value>
Value Combine(int op, Value a, Value b) {
  switch (op) {
    case kProduct:
      return a * b;
    case kMax:
    case kMin:
      if constexpr (std::is_same_v<Value, double>) {
        return op == kMax ? std::fmax(a, b) : std::fmin(a, b);
      } else {
        const bool less = static_cast<int64_t>(a) < static_cast<int64_t>(b);
        return less == (op == kMax) ? b : a;
      }
    default:
      return a + b;
  }
}

// In rank order, in double or 64 bits.
void ReduceInto(uint8_t* output, const std::vector<const uint8_t*>& inputs, const std::vector<double>& factors,
                const Call& call) {
  for (size_t i = 0; i < call.count; ++i) {
    if (call.type >= 6) {
      double value = Load(inputs[0], i, call.type) * factors[0];
      for (size_t rank = 1; rank < inputs.size(); ++rank) {
        value = Combine(call.op, value, Load(inputs[rank], i, call.type) * factors[rank]);
      }
      Store(output, i, call.type, value);
    } else {
      uint64_t value = LoadInteger(inputs[0], i, call.type);
      for (size_t rank = 1; rank < inputs.size(); ++rank) {
        value = Combine(call.op, value, LoadInteger(inputs[rank], i, call.type));
      }
      StoreInteger(output, i, call.type, value);
    }
  }
}

// All calls of one group, as one task on the stream: their messages travel at once.
class Kernel {
 public:
  Kernel(std::shared_ptr<Comm> comm, std::vector<Call> calls) : comm_(std::move(comm)), calls_(std::move(calls)) {}

  static void Run(void* argument) {
    const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
    kernel->Work();
    --kernel->comm_->running;
  }

 private:
  struct Contributions {
    const Call* call = nullptr;
    uint8_t* output = nullptr;
    std::vector<const uint8_t*> inputs;
    std::vector<double> factors;
  };

  void Work() {
    outgoing_.resize(static_cast<size_t>(comm_->size));
    incoming_.resize(static_cast<size_t>(comm_->size));
    for (const Call& call : calls_) Plan(call);
    if (!Exchange()) return;
    for (const Contributions& part : reductions_) ReduceInto(part.output, part.inputs, part.factors, *part.call);
  }

  void Send(int to, const Call& call, const uint8_t* data) {
    Message message;
    message.header = HeaderOf(call);
    message.from = data;
    message.bytes = call.bytes();
    message.call = &call;
    outgoing_[static_cast<size_t>(to)].push_back(message);
  }
  void Receive(int from, const Call& call, uint8_t* data, double* factor = nullptr) {
    Message message;
    message.header = HeaderOf(call);
    message.to = data;
    message.bytes = call.bytes();
    message.call = &call;
    message.factor = factor;
    incoming_[static_cast<size_t>(from)].push_back(message);
  }

  void Contribute(const Call& call, const uint8_t* own, uint8_t* output) {
    reductions_.push_back({&call, output, {}, std::vector<double>(static_cast<size_t>(comm_->size), call.factor)});
    Contributions& part = reductions_.back();
    for (int rank = 0; rank < comm_->size; ++rank) {
      if (rank == comm_->rank) {
        part.inputs.push_back(own);
        continue;
      }
      memory_.emplace_back(call.bytes());
      part.inputs.push_back(memory_.back().data());
      Receive(rank, call, memory_.back().data(), &part.factors[static_cast<size_t>(rank)]);
    }
  }

  void Plan(const Call& call) {
    const auto others = [&](const auto& visit) {
      for (int rank = 0; rank < comm_->size; ++rank) {
        if (rank != comm_->rank) visit(rank, static_cast<size_t>(rank) * call.bytes());
      }
    };
    const size_t own = static_cast<size_t>(comm_->rank) * call.bytes();
    switch (call.kind) {
      case Kind::kAllReduce:
        others([&](int rank, size_t) { Send(rank, call, call.input); });
        return Contribute(call, call.input, call.output);
      case Kind::kReduce:
        if (call.root != comm_->rank) return Send(call.root, call, call.input);
        return Contribute(call, call.input, call.output);
      case Kind::kReduceScatter:
        others([&](int rank, size_t offset) { Send(rank, call, call.input + offset); });
        return Contribute(call, call.input + own, call.output);
      case Kind::kBroadcast:
        if (call.root != comm_->rank) return Receive(call.root, call, call.output);
        others([&](int rank, size_t) { Send(rank, call, call.input); });
        if (call.output != call.input) std::memcpy(call.output, call.input, call.bytes());
        return;
      case Kind::kAllGather:
        others([&](int rank, size_t offset) {
          Send(rank, call, call.input);
          Receive(rank, call, call.output + offset);
        });
        if (call.output + own != call.input) std::memcpy(call.output + own, call.input, call.bytes());
        return;
      case Kind::kSend:
        return Send(call.root, call, call.input);
      case Kind::kRecv:
        return Receive(call.root, call, call.output);
    }
  }

  // Until every message is through. False when that will not be: aborted, or ranks contradict each other.
  bool Exchange() {
    for (int idle = 0;;) {
      if (comm_->aborted) return false;
      bool moved = false;
      bool left = false;
      for (int peer = 0; peer < comm_->size; ++peer) {
        auto& out = outgoing_[static_cast<size_t>(peer)];
        auto& in = incoming_[static_cast<size_t>(peer)];
        if (!out.empty()) moved = Write(out, comm_->place.Between(comm_->rank, peer)) || moved;
        if (!in.empty()) {
          bool contradiction = false;
          moved = Read(in, comm_->place.Between(peer, comm_->rank), peer, &contradiction) || moved;
          if (contradiction) return false;
        }
        left = left || !out.empty() || !in.empty();
      }
      if (!left) return true;
      if (comm_->place.meeting().broken != 0) {
        comm_->Break(kRemoteError, "another rank has found that the calls contradict each other");
        return false;
      }
      idle = moved ? 0 : idle + 1;
      if (idle > 50) std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (idle > 0) std::this_thread::yield();
    }
  }

  static bool Write(std::deque<Message>& queue, Mailbox& box) {
    const uint64_t written = box.written.load(std::memory_order_relaxed);
    if (written != box.read.load(std::memory_order_acquire)) return false;
    Message& message = queue.front();
    if (!message.begun) {
      std::memcpy(box.part, &message.header, sizeof(Header));
      message.begun = true;
    } else {
      const size_t bytes = std::min(kPartBytes, message.bytes - message.done);
      std::memcpy(box.part, message.from + message.done, bytes);
      message.done += bytes;
    }
    box.written.store(written + 1, std::memory_order_release);
    if (message.done == message.bytes) queue.pop_front();
    return true;
  }

  bool Read(std::deque<Message>& queue, Mailbox& box, int peer, bool* contradiction) {
    const uint64_t read = box.read.load(std::memory_order_relaxed);
    if (read == box.written.load(std::memory_order_acquire)) return false;
    Message& message = queue.front();
    if (!message.begun) {
      Header theirs;
      std::memcpy(&theirs, box.part, sizeof(Header));
      const Header& ours = message.header;
      if (theirs.kind != ours.kind || theirs.type != ours.type || theirs.op != ours.op || theirs.root != ours.root ||
          theirs.count != ours.count) {
        *contradiction = true;
        comm_->Break(kInvalidUsage, "rank " + std::to_string(peer) + " calls another collective than " +
                                        message.call->Text() + ", with " + std::to_string(theirs.count) + " elements");
        comm_->place.meeting().broken = 1;
        return true;
      }
      if (message.factor != nullptr) *message.factor = theirs.factor;
      message.begun = true;
    } else {
      const size_t bytes = std::min(kPartBytes, message.bytes - message.done);
      std::memcpy(message.to + message.done, box.part, bytes);
      message.done += bytes;
    }
    box.read.store(read + 1, std::memory_order_release);
    if (message.done == message.bytes) queue.pop_front();
    return true;
  }

  const std::shared_ptr<Comm> comm_;
  const std::vector<Call> calls_;
  std::vector<std::deque<Message>> outgoing_;  // by rank
  std::vector<std::deque<Message>> incoming_;
  std::deque<std::vector<uint8_t>> memory_;
  std::deque<Contributions> reductions_;
};

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

// Under the communicator's mutex.
void Launch(const std::shared_ptr<Comm>& comm) {
  void* stream = comm->taken.front().stream;
  ++comm->running;
  fake_cuda_enqueue(stream, Kernel::Run, new Kernel(comm, std::exchange(comm->taken, {})));
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
    Launch(comm);
  }
  if (comm->finalizing && !comm->finalized) {
    if (comm->running > 0) return kInProgress;
    ++meeting.finalized;
    comm->finalized = true;
  }
  return comm->finalizing && meeting.finalized < comm->size ? kInProgress : kSuccess;
}

double ScalarOf(const void* scalar, int type) { return Load(static_cast<const uint8_t*>(scalar), 0, type); }

}  // namespace

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
  if (meeting.ranks.fetch_or(bit) & bit) return kInvalidUsage;
  // Who hangs has not come as far as the others can see; but it has been here when it comes to leaving.
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
  comm->operators.push_back({type, ScalarOf(scalar, type), true});
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
