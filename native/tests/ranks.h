// Several ranks of one job as threads of one process, joined by socket pairs and segments, through the C ABI.
#ifndef SPARK_ESTIMATOR_TESTS_RANKS_H_
#define SPARK_ESTIMATOR_TESTS_RANKS_H_

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "spark_estimator/engine.h"

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
  int socket_buffer_bytes = 0;  // small ones force short writes; 0: the system's
  bool last_rank_cannot_share = false;
};

struct Submitted {
  int32_t status;
  int64_t handle;
};

// One rank's view of the job.
class Rank {
 public:
  Rank(int rank, int size, se_engine* engine) : rank(rank), size(size), engine(engine) {}

  const int rank;
  const int size;
  se_engine* engine;

  Submitted Submit(const se_request& request) const {
    Submitted result{0, 0};
    result.status = se_submit(engine, &request, &result.handle);
    return result;
  }
  Submitted Allreduce(const std::string& name, const void* input, void* output, std::vector<int64_t> dims,
                      int32_t dtype = SE_FLOAT32, int32_t reduce_op = SE_SUM, double prescale = 1,
                      double postscale = 1) const {
    return Submit(One(name, SE_ALLREDUCE, input, output, dims, dtype, reduce_op, 0, prescale, postscale));
  }
  Submitted AllreduceList(const std::string& name, const std::vector<se_buffer>& buffers, int32_t dtype = SE_FLOAT32,
                          int32_t reduce_op = SE_SUM) const {
    std::vector<int64_t> counts;
    for (const se_buffer& buffer : buffers) counts.push_back(buffer.count);
    se_request request{sizeof(se_request),
                       name.c_str(),
                       SE_ALLREDUCE,
                       dtype,
                       reduce_op,
                       0,
                       0,
                       static_cast<int32_t>(buffers.size()),
                       buffers.data(),
                       static_cast<int32_t>(counts.size()),
                       counts.data(),
                       1,
                       1};
    return Submit(request);
  }
  Submitted Broadcast(const std::string& name, int root, const void* input, void* output, std::vector<int64_t> dims,
                      int32_t dtype = SE_FLOAT32) const {
    return Submit(One(name, SE_BROADCAST, input, output, dims, dtype, SE_SUM, root, 1, 1));
  }
  Submitted Allgather(const std::string& name, const void* input, std::vector<int64_t> dims,
                      int32_t dtype = SE_FLOAT32) const {
    return Submit(One(name, SE_ALLGATHER, input, nullptr, dims, dtype, SE_SUM, 0, 1, 1));
  }
  Submitted Barrier(const std::string& name) const {
    se_request request{
        sizeof(se_request), name.c_str(), SE_BARRIER, SE_UINT8, SE_SUM, 0, 0, 0, nullptr, 0, nullptr, 1, 1};
    return Submit(request);
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
    if (status != SE_OK) {
      Fail(__FILE__, __LINE__,
           "rank " + std::to_string(rank) + ": status " + std::to_string(status) + ": " + se_last_error());
    }
    se_release(engine, submitted.handle);
  }

 private:
  se_request One(const std::string& name, int32_t op, const void* input, void* output, const std::vector<int64_t>& dims,
                 int32_t dtype, int32_t reduce_op, int root, double prescale, double postscale) const {
    // The struct points into these; Submit copies before they change.
    static thread_local se_buffer buffer;
    static thread_local std::vector<int64_t> shape;
    static thread_local std::string kept_name;
    shape = dims;
    kept_name = name;
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    buffer = {input, output, count};
    return {sizeof(se_request),
            kept_name.c_str(),
            op,
            dtype,
            reduce_op,
            root,
            0,
            1,
            &buffer,
            static_cast<int32_t>(shape.size()),
            shape.data(),
            prescale,
            postscale};
  }
};

struct Wiring {
  std::vector<se_config> configs;
  std::vector<std::vector<se_peer>> peers;  // by rank
};

inline int Dup(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 3); }

inline Wiring Wire(int size, const JobOptions& options) {
  Wiring wiring;
  wiring.peers.resize(static_cast<size_t>(size));
  std::vector<int> segments(static_cast<size_t>(size), -1);
  for (int rank = 0; rank < size; ++rank) {
    if (options.channel == Channel::kShared)
      CHECK_EQ(se_segment_create(size, &segments[static_cast<size_t>(rank)]), SE_OK);
    se_config config{};
    config.struct_bytes = sizeof(se_config);
    config.rank = rank;
    config.size = size;
    config.own_segment_fd = segments[static_cast<size_t>(rank)] >= 0 ? Dup(segments[static_cast<size_t>(rank)]) : -1;
    config.fusion_threshold_bytes = options.fusion_threshold_bytes;
    config.start_timeout_seconds = 20;
    config.stall_warning_seconds = options.stall_warning_seconds;
    config.stall_shutdown_seconds = options.stall_shutdown_seconds;
    config.name = "testhost";
    wiring.configs.push_back(config);
  }
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      int control[2];
      int data[2];
      CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control), 0);
      CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data), 0);
      if (options.socket_buffer_bytes > 0) {
        for (const int fd : {control[0], control[1], data[0], data[1]}) {
          setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &options.socket_buffer_bytes, sizeof(int));
        }
      }
      const bool share = options.channel == Channel::kShared && !(options.last_rank_cannot_share && b == size - 1);
      const auto segment = [&](int rank) { return share ? Dup(segments[static_cast<size_t>(rank)]) : -1; };
      wiring.peers[static_cast<size_t>(a)].push_back({b, control[0], data[0], segment(b), "testhost"});
      wiring.peers[static_cast<size_t>(b)].push_back({a, control[1], data[1], segment(a), "testhost"});
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

// Runs `body` on `size` ranks at once; each engine is shut down and destroyed after.
inline void RunRanks(int size, const JobOptions& options, const std::function<void(Rank&)>& body) {
  Wiring wiring = Wire(size, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank me(rank, size, Join(wiring, rank));
      body(me);
      se_engine_destroy(me.engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_RANKS_H_
