// How fast the collectives inside one host are: ranks are processes, every buffer is rewritten before every op outside
// the clock, numbers are checked first, and the bound that memory sets is measured in the same run.
//
//   shared_bench [--ranks 2,4] [--ops allreduce,...] [--sizes 4,65536,...] [--dtypes float32,...] [--seconds 1]
//                [--cores n] [--spin us] [--parts n] [--pin 0|1]
//
// One line a case: median, 10th percentile, bytes a rank per second, and for allreduces the bound and the share of it
// that was reached. The bound is the two-source kernel's: on every rank at once a = b = a + b over two vectors of half
// the size, which reads and writes as many bytes as an allreduce has to.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "algorithms/shared.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "transport/arena.h"

namespace {

using namespace spark_estimator;

constexpr int kMostRanks = 64;
constexpr size_t kMostSamples = 1 << 14;
constexpr size_t kBatchedBytes = size_t{64} << 10;  // ops up to here are timed in batches: one takes less than a clock
constexpr size_t kBatchBytes = size_t{2} << 20;
constexpr size_t kLargestBatch = 512;

struct Options {
  std::vector<int> ranks = {2, 4};
  std::vector<std::string> ops = {"allreduce", "apart",         "list",     "arena",  "broadcast",
                                  "allgather", "reducescatter", "alltoall", "barrier"};
  std::vector<size_t> sizes = {4, 1024, 8192, 65536, 1 << 20, 16 << 20, 102400000};
  std::vector<std::string> dtypes = {"float32"};
  double seconds = 1;
  cpu_set_t allowed;
  int cores = 0;
  int spin = -1;
  int parts = 161;
  bool pin = true;  // rank r to the (r modulo cores)-th core: the scheduler may put two ranks on one for seconds
};

// What the ranks share beside their segments: samples, and a barrier of the benchmark's own.
struct Board {
  std::atomic<int> arrived[2];
  std::atomic<int> sense;
  std::atomic<bool> stop;
  size_t count[kMostRanks];
  double seconds[kMostRanks][kMostSamples];
};

class ParentLives : public Liveness {
 public:
  explicit ParentLives(pid_t parent) : parent_(parent) {}
  Status Check() override {
    return parent_ == 0 || getppid() == parent_ ? Status::Ok() : Status(SE_PEER_LOST, "rank 0 is gone");
  }

 private:
  pid_t parent_;
};

[[noreturn]] void Die(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  _exit(1);
}

void Must(const Status& status) {
  if (!status.ok()) Die(status.message());
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

int32_t DtypeOf(const std::string& name) {
  for (int32_t dtype = SE_UINT8; dtype <= SE_BOOL; ++dtype) {
    if (DtypeName(dtype) == name) return dtype;
  }
  Die("no dtype is called " + name);
}

uint8_t* PrivateMemory(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) Die("no memory for " + std::to_string(bytes) + " bytes");
  return static_cast<uint8_t*>(data);
}

// Values that every dtype holds exactly, their sums too: 0, 1 or 2, a pattern that differs by rank and place.
int ValueAt(int rank, size_t i) { return static_cast<int>((i + static_cast<size_t>(rank)) % 3); }

void Fill(uint8_t* data, size_t bytes, int32_t dtype, int rank) {
  const size_t count = bytes / DtypeBytes(dtype);
  for (size_t i = 0; i < count; ++i) {
    const int value = ValueAt(rank, i);
    switch (dtype) {
      case SE_FLOAT32:
        reinterpret_cast<float*>(data)[i] = static_cast<float>(value);
        break;
      case SE_FLOAT64:
        reinterpret_cast<double*>(data)[i] = value;
        break;
      case SE_FLOAT16:
        reinterpret_cast<uint16_t*>(data)[i] = value == 0 ? 0 : value == 1 ? 0x3c00 : 0x4000;
        break;
      case SE_BFLOAT16:
        reinterpret_cast<uint16_t*>(data)[i] = value == 0 ? 0 : value == 1 ? 0x3f80 : 0x4000;
        break;
      case SE_INT64:
        reinterpret_cast<int64_t*>(data)[i] = value;
        break;
      case SE_INT32:
        reinterpret_cast<int32_t*>(data)[i] = value;
        break;
      default:
        data[i] = static_cast<uint8_t>(value);
    }
  }
}

double Element(const uint8_t* data, size_t i, int32_t dtype) {
  switch (dtype) {
    case SE_FLOAT32:
      return static_cast<double>(reinterpret_cast<const float*>(data)[i]);
    case SE_FLOAT64:
      return reinterpret_cast<const double*>(data)[i];
    case SE_FLOAT16: {
      const uint16_t bits = reinterpret_cast<const uint16_t*>(data)[i];
      return bits == 0 ? 0 : std::ldexp(1.0 + (bits & 0x3ff) / 1024.0, (bits >> 10) - 15);
    }
    case SE_BFLOAT16: {
      const uint32_t bits = static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(data)[i]) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      return static_cast<double>(value);
    }
    case SE_INT64:
      return static_cast<double>(reinterpret_cast<const int64_t*>(data)[i]);
    case SE_INT32:
      return reinterpret_cast<const int32_t*>(data)[i];
    default:
      return data[i];
  }
}

// One rank of the benchmark.
class Runner {
 public:
  Runner(const Options& options, Board& board, SharedGroup& group, Arena& arena)
      : options_(options), board_(board), group_(group), arena_(arena) {}

  void RunAll() {
    for (const std::string& dtype : options_.dtypes) {
      dtype_ = DtypeOf(dtype);
      for (const std::string& op : options_.ops) {
        for (const size_t bytes : options_.sizes) {
          op_ = op;
          bytes_ = std::max(bytes / DtypeBytes(dtype_), size_t{1}) * DtypeBytes(dtype_);
          if (op == "barrier" && bytes != options_.sizes.front()) continue;
          Case();
        }
      }
    }
  }

 private:
  size_t ranks() const { return static_cast<size_t>(group_.size); }

  void Meet() {  // of the benchmark; spins where it may, for the collectives to begin together
    const int sense = board_.sense.load();
    if (board_.arrived[sense & 1].fetch_add(1) + 1 == group_.size) {
      board_.arrived[sense & 1] = 0;
      board_.sense = sense + 1;
      return;
    }
    while (board_.sense.load() == sense) {
      if (options_.cores < group_.size) {
        sched_yield();
      } else {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
      if (group_.rank != 0 && getppid() == 1) _exit(1);
    }
  }

  void Prepare() {
    batch_ = bytes_ <= kBatchedBytes ? std::clamp(kBatchBytes / bytes_, size_t{1}, kLargestBatch) : 1;
    shares_ = SharesOf(bytes_, DtypeBytes(dtype_), group_.size);
    in_bytes_ = (bytes_ + 63) / 64 * 64;
    out_bytes_ = op_ == "allgather" ? in_bytes_ * ranks() : in_bytes_ + 64 * ranks();
    in_place_ = op_ == "allreduce" || op_ == "list" || op_ == "arena" || op_ == "broadcast";
    if (op_ == "arena") {
      void* data = nullptr;
      Must(arena_.Allocate(in_bytes_ * batch_, &data));
      in_ = static_cast<uint8_t*>(data);
      uint64_t offset = 0;
      if (!arena_.Find(data, in_bytes_ * batch_, &offset)) Die("the arena does not know its own memory");
      data_of_.clear();
      for (size_t turn = 0; turn < batch_; ++turn) {
        // The offset is the same on all ranks, since all allocate alike.
        for (Segment& segment : group_.segments) data_of_.push_back(segment.arena() + offset + turn * in_bytes_);
      }
    } else {
      in_ = PrivateMemory(in_bytes_ * batch_);
    }
    out_ = in_place_ ? in_ : PrivateMemory(out_bytes_ * batch_);
    std::memset(out_, 1, (in_place_ ? in_bytes_ : out_bytes_) * batch_);
  }

  void CleanUp() {
    if (!in_place_) munmap(out_, out_bytes_ * batch_);
    if (op_ == "arena") {
      Must(arena_.Free(in_));
    } else {
      munmap(in_, in_bytes_ * batch_);
    }
  }

  void Op(size_t turn) {
    uint8_t* in = in_ + turn * in_bytes_;
    uint8_t* out = in_place_ ? in : out_ + turn * out_bytes_;
    if (op_ == "allreduce" || op_ == "apart") {
      BufferList list;
      list.Add(in, out, bytes_);
      Must(SharedAllreduce(group_, list, dtype_, SE_SUM, Finish{}));
    } else if (op_ == "list") {
      // Tensors of very different sizes, as a model's are.
      BufferList list;
      const size_t count = bytes_ / DtypeBytes(dtype_);
      const auto parts = static_cast<size_t>(options_.parts);
      size_t start = 0;
      for (size_t k = 0; k < parts; ++k) {
        const double upto = std::pow(static_cast<double>(k + 1) / static_cast<double>(parts), 3);
        const size_t end = k + 1 == parts ? count : static_cast<size_t>(upto * static_cast<double>(count));
        list.Add(in + start * DtypeBytes(dtype_), out + start * DtypeBytes(dtype_), (end - start) * DtypeBytes(dtype_));
        start = end;
      }
      Must(SharedAllreduce(group_, list, dtype_, SE_SUM, Finish{}));
    } else if (op_ == "broadcast") {
      Must(SharedBroadcast(group_, 0, in, out, bytes_));
    } else if (op_ == "allgather") {
      Must(SharedAllgather(group_, in, std::vector<size_t>(ranks(), bytes_), out));
    } else if (op_ == "arena") {
      Must(SymmetricAllreduce(group_, std::span(data_of_).subspan(turn * ranks(), ranks()), bytes_, dtype_, SE_SUM,
                              Finish{}));
    } else if (op_ == "reducescatter") {
      Must(SharedReducescatter(group_, in, shares_, out, dtype_, SE_SUM, Finish{}));
    } else if (op_ == "alltoall") {
      Must(SharedAlltoall(group_, in, shares_, std::vector<size_t>(ranks(), shares_[static_cast<size_t>(group_.rank)]),
                          shares_[0], out));
    } else if (op_ == "barrier") {
      Must(SharedBarrier(group_));
    } else {
      Die("no op is called " + op_);
    }
  }

  void Refill() {
    for (size_t turn = 0; turn < batch_; ++turn) Fill(in_ + turn * in_bytes_, bytes_, dtype_, group_.rank);
  }

  double Expected(size_t i) const {
    const size_t count = bytes_ / DtypeBytes(dtype_);
    if (op_ == "broadcast") return ValueAt(0, i);
    if (op_ == "allgather") return ValueAt(static_cast<int>(i / count), i % count);
    size_t start = 0;
    for (size_t rank = 0; rank < static_cast<size_t>(group_.rank); ++rank) start += shares_[rank] / DtypeBytes(dtype_);
    if (op_ == "alltoall") {  // what rank r sends to me begins at my share of its input
      const size_t share = shares_[static_cast<size_t>(group_.rank)] / DtypeBytes(dtype_);
      return ValueAt(static_cast<int>(i / share), start + i % share);
    }
    double sum = 0;
    for (int rank = 0; rank < group_.size; ++rank) sum += ValueAt(rank, op_ == "reducescatter" ? start + i : i);
    return sum;
  }

  size_t Results() const {
    const size_t element = DtypeBytes(dtype_);
    if (op_ == "barrier") return 0;
    if (op_ == "allgather") return bytes_ * ranks() / element;
    if (op_ == "reducescatter") return shares_[static_cast<size_t>(group_.rank)] / element;
    if (op_ == "alltoall") return shares_[static_cast<size_t>(group_.rank)] * ranks() / element;
    return bytes_ / element;
  }

  void CheckNumbers() {
    for (int round = 0; round < 3; ++round) {
      Refill();
      Meet();
      for (size_t turn = 0; turn < batch_; ++turn) Op(turn);
      for (size_t turn = 0; turn < batch_; ++turn) {
        const uint8_t* out = in_place_ ? in_ + turn * in_bytes_ : out_ + turn * out_bytes_;
        for (size_t i = 0; i < Results(); ++i) {
          if (Element(out, i, dtype_) == Expected(i)) continue;
          Die(op_ + " of " + std::to_string(bytes_) + " bytes is wrong on rank " + std::to_string(group_.rank) +
              " at " + std::to_string(i) + ": " + std::to_string(Element(out, i, dtype_)) + " instead of " +
              std::to_string(Expected(i)));
        }
      }
      Meet();
    }
  }

  template <typename Work>
  double Median(size_t batch, const std::function<void()>& rewrite, Work work, double* low) {
    const auto me = static_cast<size_t>(group_.rank);
    const Time begin = Clock::now();
    size_t n = 0;
    while (true) {
      rewrite();
      if (group_.rank == 0) board_.stop = n >= kMostSamples || (n >= 9 && SecondsSince(begin) > options_.seconds);
      Meet();
      if (board_.stop) break;
      const Time start = Clock::now();
      for (size_t turn = 0; turn < batch; ++turn) work(turn);
      board_.seconds[me][n++] = SecondsSince(start) / static_cast<double>(batch);
      Meet();
    }
    double median = 0;
    if (group_.rank == 0) {
      std::vector<double> slowest(n);
      for (size_t i = 0; i < n; ++i) {
        for (size_t rank = 0; rank < ranks(); ++rank) slowest[i] = std::max(slowest[i], board_.seconds[rank][i]);
      }
      std::sort(slowest.begin(), slowest.end());
      median = slowest[n / 2];
      if (low != nullptr) *low = slowest[n / 10];
    }
    Meet();
    return median;
  }

  double Bound() {
    const size_t half = std::max(bytes_ / 8, size_t{1}) * 4;
    uint8_t* a = PrivateMemory(half);
    uint8_t* b = PrivateMemory(half);
    const auto rewrite = [&] {
      Fill(a, half, SE_FLOAT32, 0);
      Fill(b, half, SE_FLOAT32, 1);
    };
    const double median = Median(
        1, rewrite,
        [&](size_t) {
          void* const to[2] = {a, b};
          const void* const from[2] = {a, b};
          GetKernels().combine_into(SE_FLOAT32, SE_SUM, to, 2, from, 2, half / 4, Finish{});
        },
        nullptr);
    munmap(a, half);
    munmap(b, half);
    return median;
  }

  void Case() {
    Prepare();
    CheckNumbers();
    double low = 0;
    const double median = Median(batch_, [&] { Refill(); }, [&](size_t turn) { Op(turn); }, &low);
    const bool bounded =
        bytes_ > kBatchedBytes && (op_ == "allreduce" || op_ == "apart" || op_ == "list" || op_ == "arena");
    double bound = 0;
    if (bounded) {
      if (!bounds_.contains(bytes_)) bounds_[bytes_] = Bound();  // by all ranks; rank 0 gets the figure
      bound = bounds_[bytes_];
    }
    CleanUp();
    if (group_.rank != 0) return;
    std::printf("%-13s %-8s %2d ranks %11zu bytes %12.2f us (p10 %12.2f) %8.2f GB/s", op_.c_str(),
                DtypeName(dtype_).c_str(), group_.size, bytes_, median * 1e6, low * 1e6,
                static_cast<double>(bytes_) / median * 1e-9);
    if (bounded) std::printf("  bound %10.2f us: %3.0f %%", bound * 1e6, bound / median * 100);
    std::printf("\n");
    std::fflush(stdout);
  }

  const Options& options_;
  Board& board_;
  SharedGroup& group_;
  Arena& arena_;
  std::map<size_t, double> bounds_;
  std::string op_;
  int32_t dtype_ = SE_FLOAT32;
  size_t bytes_ = 0;
  size_t batch_ = 1;
  std::vector<size_t> shares_;
  size_t in_bytes_ = 0;
  size_t out_bytes_ = 0;
  bool in_place_ = true;
  uint8_t* in_ = nullptr;
  uint8_t* out_ = nullptr;
  std::vector<uint8_t*> data_of_;
};

void Pin(const cpu_set_t& allowed, int rank) {
  const int wanted = rank % CPU_COUNT(&allowed);
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || seen++ != wanted) continue;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(core, &only);
    sched_setaffinity(0, sizeof(only), &only);
    return;
  }
}

void RunRank(const Options& options, Board& board, const std::vector<UniqueFd>& fds, int rank, pid_t parent) {
  if (options.pin) Pin(options.allowed, rank);
  const int size = static_cast<int>(fds.size());
  ParentLives liveness(parent);
  SharedGroup group;
  group.rank = rank;
  group.size = size;
  group.segments.resize(fds.size());
  for (size_t i = 0; i < fds.size(); ++i) Must(group.segments[i].Map(fds[i].get(), size));
  group.waiting = Waiting(size, options.cores, options.spin);
  group.liveness = &liveness;
  Arena arena(UniqueFd(dup(fds[static_cast<size_t>(rank)].get())), group.mine().arena_offset(), group.mine().arena(),
              group.mine().arena_bytes());
  Runner(options, board, group, arena).RunAll();
}

void RunJob(const Options& options, int size) {
  std::vector<UniqueFd> fds(static_cast<size_t>(size));
  for (UniqueFd& fd : fds) Must(Segment::Create(size, &fd));
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("no memory for the samples");
  auto* board = new (memory) Board();
  std::vector<pid_t> children;
  const pid_t parent = getpid();
  for (int rank = 1; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      RunRank(options, *board, fds, rank, parent);
      _exit(0);
    }
    children.push_back(child);
  }
  RunRank(options, *board, fds, 0, 0);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  munmap(memory, sizeof(Board));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CPU_ZERO(&options.allowed);
  if (sched_getaffinity(0, sizeof(options.allowed), &options.allowed) != 0) Die("cannot read the CPU affinity");
  options.cores = CPU_COUNT(&options.allowed);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--ranks") {
      options.ranks.clear();
      for (const std::string& item : Split(value)) options.ranks.push_back(std::atoi(item.c_str()));
    } else if (name == "--ops") {
      options.ops = Split(value);
    } else if (name == "--sizes") {
      options.sizes.clear();
      for (const std::string& item : Split(value)) options.sizes.push_back(std::strtoull(item.c_str(), nullptr, 10));
    } else if (name == "--dtypes") {
      options.dtypes = Split(value);
    } else if (name == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else if (name == "--cores") {
      options.cores = std::atoi(value.c_str());
    } else if (name == "--spin") {
      options.spin = std::atoi(value.c_str());
    } else if (name == "--pin") {
      options.pin = std::atoi(value.c_str()) != 0;
    } else if (name == "--parts") {
      options.parts = std::max(std::atoi(value.c_str()), 1);
    } else {
      Die("no option is called " + name);
    }
  }
  std::printf("%s kernels, %d cores\n", GetKernels().instruction_set, options.cores);
  for (const int size : options.ranks) {
    if (size < 1 || size > kMostRanks) Die("from 1 to 64 ranks");
    RunJob(options, size);
  }
  return 0;
}
