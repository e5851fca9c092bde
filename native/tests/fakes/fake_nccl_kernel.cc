// The kernels of the fake NCCL: the calls of one group exchange their messages through mailboxes, all at once, and
// compare what the ranks think they are doing.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/kernels/halves.h"
#include "fake_cuda.h"
#include "fake_nccl_comm.h"

namespace fake_nccl {

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

namespace {

// The header of a message; a rank compares it with its own call.
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
  double* factor = nullptr;  // for the sender's
};

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

// All calls of one group, as one task on the stream: their messages are sent at once.
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

  // Until every message is transferred. False if that is impossible: aborted, or ranks contradict each other.
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

}  // namespace

void Launch(const std::shared_ptr<Comm>& comm, std::vector<Call> calls) {
  void* stream = calls.front().stream;
  ++comm->running;
  fake_cuda_enqueue(stream, Kernel::Run, new Kernel(comm, std::move(calls)));
}

}  // namespace fake_nccl
