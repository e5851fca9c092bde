// Several ranks of one job as threads of one process, joined by socket pairs and segments, through the C ABI.
#ifndef SPARK_ESTIMATOR_TESTS_RANKS_H_
#define SPARK_ESTIMATOR_TESTS_RANKS_H_

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/membership/overlay.h"
#include "spark_estimator/engine.h"
#include "switchboard.h"

namespace spark_estimator::testing {

enum class Channel {
  kShared,
  kStream
};

inline const char* Name(Channel channel) { return channel == Channel::kShared ? "shared" : "stream"; }

struct JobOptions {
  Channel channel = Channel::kShared;
  int64_t fusion_threshold_bytes = 1 << 20;
  double stall_warning_seconds = 0;
  double stall_shutdown_seconds = 0;
  int data_connections = 1;     // of each pair
  bool overlay = false;         // of control connections
  bool late_data = false;       // data connections are made on first use; with an overlay
  int socket_buffer_bytes = 0;  // small ones force short writes; 0: the system's
  bool last_rank_cannot_share = false;
  int ranks_per_host = 0;  // with shared memory: ranks per host; 0: one host
  int32_t cache_capacity = 1024;
  int32_t overlap = 0;
  double heartbeat_seconds = 1;
  double silence_seconds = 6;
  double start_timeout_seconds = 20;
  int32_t gpu_operations = SE_GPU_AUTO;
  const char* cuda_library = nullptr;
  const char* nccl_library = nullptr;
  int32_t cipher = 0;  // of all connections; 0: they are in clear
  const char* crypto_library = nullptr;
};

struct Submitted {
  int32_t status;
  int64_t handle;
};

// A request and the memory that it points into.
struct Asked {
  std::string name;
  se_request request{};
  std::vector<se_tensor> tensors;
  std::deque<std::vector<int64_t>> shapes;
  std::vector<int64_t> splits;

  Asked(std::string name_in, int32_t op, int32_t reduce_op = SE_SUM, int root = 0, double prescale = 1,
        double postscale = 1)
      : name(std::move(name_in)) {
    request.struct_bytes = sizeof(se_request);
    request.op = op;
    request.reduce_op = reduce_op;
    request.root_rank = root;
    request.prescale = prescale;
    request.postscale = postscale;
  }
  Asked& With(const void* input, void* output, std::vector<int64_t> dims, int32_t dtype = SE_FLOAT32) {
    shapes.push_back(std::move(dims));
    tensors.push_back(
        {input, output, 0, dtype, static_cast<int32_t>(shapes.back().size()), shapes.back().data(), nullptr});
    return *this;
  }
  // The last tensor may be sent as int8.
  Asked& Owing(float* residue) {
    tensors.back().residue = residue;
    return *this;
  }
  // Its name is a kind.
  Asked& Unnamed() {
    request.unnamed = 1;
    return *this;
  }
  Asked& Split(std::vector<int64_t> rows) {
    splits = std::move(rows);
    return *this;
  }
  const se_request* get() {
    request.name = name.c_str();
    request.num_tensors = static_cast<int32_t>(tensors.size());
    request.tensors = tensors.data();
    request.splits = splits.empty() ? nullptr : splits.data();
    return &request;
  }
};

// One rank's view of the job.
class Rank {
 public:
  Rank(int rank, int size, se_engine* engine) : rank(rank), size(size), engine(engine) {}

  const int rank;
  const int size;
  se_engine* engine;

  Submitted Submit(Asked& asked) const {
    Submitted result{0, 0};
    result.status = se_submit(engine, asked.get(), &result.handle);
    return result;
  }
  Submitted Submit(Asked&& asked) const { return Submit(asked); }
  Submitted Allreduce(const std::string& name, const void* input, void* output, std::vector<int64_t> dims,
                      int32_t dtype = SE_FLOAT32, int32_t reduce_op = SE_SUM, double prescale = 1,
                      double postscale = 1) const {
    return Submit(Asked(name, SE_ALLREDUCE, reduce_op, 0, prescale, postscale).With(input, output, dims, dtype));
  }
  Submitted Broadcast(const std::string& name, int root, const void* input, void* output, std::vector<int64_t> dims,
                      int32_t dtype = SE_FLOAT32) const {
    return Submit(Asked(name, SE_BROADCAST, SE_SUM, root).With(input, output, dims, dtype));
  }
  Submitted Allgather(const std::string& name, const void* input, std::vector<int64_t> dims,
                      int32_t dtype = SE_FLOAT32) const {
    return Submit(Asked(name, SE_ALLGATHER).With(input, nullptr, dims, dtype));
  }
  Submitted Alltoall(const std::string& name, const void* input, std::vector<int64_t> dims,
                     std::vector<int64_t> splits = {}, int32_t dtype = SE_FLOAT32) const {
    Asked asked(name, SE_ALLTOALL);
    asked.With(input, nullptr, dims, dtype).Split(std::move(splits));
    return Submit(asked);
  }
  Submitted Reducescatter(const std::string& name, const void* input, void* output, std::vector<int64_t> dims,
                          int32_t dtype = SE_FLOAT32, int32_t reduce_op = SE_SUM) const {
    return Submit(Asked(name, SE_REDUCESCATTER, reduce_op).With(input, output, dims, dtype));
  }
  Submitted Barrier(const std::string& name) const { return Submit(Asked(name, SE_BARRIER)); }
  Submitted Join(const std::string& name) const { return Submit(Asked(name, SE_JOIN)); }
  // se_run with a limit that only a hang reaches.
  int32_t Run(Asked asked, int64_t* handle = nullptr) const {
    int64_t own = 0;
    const int32_t status = se_run(engine, asked.get(), 60, handle != nullptr ? handle : &own);
    if (status == SE_IN_PROGRESS) Fail(__FILE__, __LINE__, "rank " + std::to_string(rank) + " hangs");
    return status;
  }
  void RunOk(Asked asked, int64_t* handle = nullptr) const {
    const int32_t status = Run(std::move(asked), handle);
    if (status != SE_OK) FailWith(status);
  }
  // Waits with a limit that only a hang reaches.
  int32_t Wait(Submitted submitted) const {
    if (submitted.status != SE_OK) return submitted.status;
    const int32_t status = se_wait(engine, submitted.handle, 60);
    if (status == SE_IN_PROGRESS) Fail(__FILE__, __LINE__, "rank " + std::to_string(rank) + " hangs");
    return status;
  }
  void WaitOk(Submitted submitted) const {
    const int32_t status = Wait(submitted);
    if (status != SE_OK) FailWith(status);
    se_release(engine, submitted.handle);
  }
  // What an allgather or alltoall made, as values of T; the rows of each rank as well.
  template <typename T>
  std::vector<T> Gathered(Submitted submitted, std::vector<int64_t>* rows = nullptr, int tensor = 0) const {
    const int32_t status = Wait(submitted);
    if (status != SE_OK) FailWith(status);
    se_result result{};
    CHECK_EQ(se_get_result(engine, submitted.handle, tensor, &result), SE_OK);
    const T* data = static_cast<const T*>(result.data);
    if (rows != nullptr) rows->assign(result.rows, result.rows + size);
    return std::vector<T>(data, data + static_cast<size_t>(result.bytes) / sizeof(T));
  }

 private:
  [[noreturn]] void FailWith(int32_t status) const {
    Fail(__FILE__, __LINE__,
         "rank " + std::to_string(rank) + ": status " + std::to_string(status) + ": " + se_last_error());
  }
};

struct Wiring {
  std::vector<se_config> configs;
  std::vector<std::vector<se_peer>> peers;  // by rank
};

// One end's secrets; the other end has them the other way round.
inline se_encryption Secrets(int32_t cipher, int send, int receive) {
  se_encryption encryption{};
  encryption.cipher = cipher;
  std::fill(std::begin(encryption.send), std::end(encryption.send), static_cast<uint8_t>(send));
  std::fill(std::begin(encryption.receive), std::end(encryption.receive), static_cast<uint8_t>(receive));
  return encryption;
}

inline int Dup(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3); }

inline void MakeSocketPair(const JobOptions& options, int* ends) {
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  if (options.socket_buffer_bytes == 0) return;
  for (int i = 0; i < 2; ++i) setsockopt(ends[i], SOL_SOCKET, SO_SNDBUF, &options.socket_buffer_bytes, sizeof(int));
}

// The data connections between ranks a and b: what `of_a` has of b, and `of_b` of a.
inline void MakeData(const JobOptions& options, se_peer* of_a, se_peer* of_b) {
  of_a->data_count = of_b->data_count = options.data_connections;
  for (int i = 0; i < options.data_connections; ++i) {
    int data[2];
    MakeSocketPair(options, data);
    of_a->data_fds[i] = data[0];
    of_b->data_fds[i] = data[1];
    of_a->data_encryption[i] = Secrets(options.cipher, 3 + 2 * i, 4 + 2 * i);
    of_b->data_encryption[i] = Secrets(options.cipher, 4 + 2 * i, 3 + 2 * i);
  }
}

inline Wiring Wire(int size, const JobOptions& options) {
  Wiring wiring;
  wiring.peers.resize(static_cast<size_t>(size));
  std::vector<int> segments(static_cast<size_t>(size), -1);
  for (int rank = 0; rank < size; ++rank) {
    if (options.channel == Channel::kShared)
      CHECK_EQ(se_segment_create(options.ranks_per_host > 0 ? options.ranks_per_host : size,
                                 &segments[static_cast<size_t>(rank)]),
               SE_OK);
    se_config config{};
    config.struct_bytes = sizeof(se_config);
    config.rank = rank;
    config.global_rank = rank;
    config.size = size;
    config.cache_capacity = options.cache_capacity;
    config.overlap = options.overlap;
    config.overlay = options.overlay ? 1 : 0;
    config.cores = 2;
    config.hierarchical = -1;
    config.affinity_core = -1;
    config.spin_microseconds = -1;
    config.heartbeat_seconds = options.heartbeat_seconds;
    config.silence_seconds = options.silence_seconds;
    config.own_segment_fd = segments[static_cast<size_t>(rank)] >= 0 ? Dup(segments[static_cast<size_t>(rank)]) : -1;
    config.fusion_threshold_bytes = options.fusion_threshold_bytes;
    config.start_timeout_seconds = options.start_timeout_seconds;
    config.stall_warning_seconds = options.stall_warning_seconds;
    config.stall_shutdown_seconds = options.stall_shutdown_seconds;
    config.name = "testhost";
    config.gpu_operations = options.gpu_operations;
    config.cuda_library = options.cuda_library;
    config.nccl_library = options.nccl_library;
    config.crypto_library = options.crypto_library;
    wiring.configs.push_back(config);
  }
  for (int a = 0; a < size; ++a) {
    const std::vector<int> neighbours = overlay::Neighbours(a, size);
    for (int b = a + 1; b < size; ++b) {
      int control[2] = {-1, -1};
      const bool one_host = options.ranks_per_host == 0 || a / options.ranks_per_host == b / options.ranks_per_host;
      const bool share =
          options.channel == Channel::kShared && one_host && !(options.last_rank_cannot_share && b == size - 1);
      const bool neighbour = std::find(neighbours.begin(), neighbours.end(), b) != neighbours.end();
      if (!options.overlay || neighbour || share) MakeSocketPair(options, control);
      const auto segment = [&](int rank) { return share ? Dup(segments[static_cast<size_t>(rank)]) : -1; };
      se_peer of_a{b, b, control[0], 0, {}, segment(b), "testhost", {}, {}};
      se_peer of_b{a, a, control[1], 0, {}, segment(a), "testhost", {}, {}};
      of_a.control_encryption = Secrets(options.cipher, 1, 2);
      of_b.control_encryption = Secrets(options.cipher, 2, 1);
      if (!options.late_data) MakeData(options, &of_a, &of_b);
      wiring.peers[static_cast<size_t>(a)].push_back(of_a);
      wiring.peers[static_cast<size_t>(b)].push_back(of_b);
    }
  }
  for (const int fd : segments) {
    if (fd >= 0) close(fd);
  }
  return wiring;
}

inline se_engine* Join(Wiring& wiring, int rank) {
  se_engine* engine = nullptr;
  const auto index = static_cast<size_t>(rank);
  const int32_t status = se_engine_create(&wiring.configs[index], wiring.peers[index].data(), &engine);
  if (status != SE_OK) Fail(__FILE__, __LINE__, std::string("se_engine_create: ") + se_last_error());
  return engine;
}

// Runs `body` on `size` ranks at once; each engine is shut down and destroyed after. Gives the number of pairs that
// were connected on first use.
inline int RunRanks(int size, const JobOptions& options, const std::function<void(Rank&)>& body) {
  Wiring wiring = Wire(size, options);
  Switchboard switchboard(size, [&](int lower, int higher, se_peer* of_higher, se_peer* of_lower) {
    of_higher->rank = higher;
    of_lower->rank = lower;
    MakeData(options, of_higher, of_lower);
  });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank me(rank, size, Join(wiring, rank));
      if (options.late_data) switchboard.Attach(rank, me.engine);
      body(me);
      if (options.late_data) {
        CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
        switchboard.Detach(rank);
      }
      se_engine_destroy(me.engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return switchboard.connections();
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_RANKS_H_
