// A communicator of the fake NCCL and what it is asked for: common to its API and to its kernels.
#ifndef SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_COMM_H_
#define SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_COMM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fake_nccl_place.h"

namespace fake_nccl {

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

// A kernel of all calls of one group, enqueued on their stream.
void Launch(const std::shared_ptr<Comm>& comm, std::vector<Call> calls);
// The value of an element of floating point.
double Load(const uint8_t* data, size_t index, int type);

}  // namespace fake_nccl

#endif  // SPARK_ESTIMATOR_TESTS_FAKES_FAKE_NCCL_COMM_H_
