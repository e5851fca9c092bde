// The ranks of a job as forked processes of this host, joined as a launcher would, through the C ABI alone.
#ifndef SPARK_ESTIMATOR_BENCHMARKS_FORKED_JOB_H_
#define SPARK_ESTIMATOR_BENCHMARKS_FORKED_JOB_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "spark_estimator/engine.h"

namespace spark_estimator::benchmarks {

[[noreturn]] inline void Die(const std::string& text) {
  std::fprintf(stderr, "engine_bench: %s\n", text.c_str());
  std::exit(1);
}

inline void Demand(bool good, const char* call) {
  if (!good) Die(std::string(call) + " failed: " + std::strerror(errno));
}

inline void DemandOk(int32_t status, const char* call) {
  if (status != SE_OK) Die(std::string(call) + ": status " + std::to_string(status) + ": " + se_last_error());
}

inline int Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

struct JobSettings {
  int size = 2;
  bool tcp = false;            // loopback TCP between the ranks, no shared memory
  int spin_microseconds = -1;  // as in se_config
};

class ForkedJob {
 public:
  // Forks `settings.size` ranks that join one job. Each runs `body` (its rank, its engine) and ends with what it
  // returns. The calling process must have no thread but this one.
  ForkedJob(const JobSettings& settings, const std::function<int(int rank, se_engine* engine)>& body)
      : size_(settings.size) {
    Wire(settings);
    for (int rank = 0; rank < size_; ++rank) {
      std::fflush(nullptr);
      const pid_t pid = fork();
      Demand(pid >= 0, "fork");
      if (pid == 0) RunRank(rank, body);
      pids_.push_back(pid);
    }
    for (const int fd : all_) close(fd);
  }
  ForkedJob(const ForkedJob&) = delete;
  ForkedJob& operator=(const ForkedJob&) = delete;
  ~ForkedJob() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }

  // Waits for all ranks to end. Dies if one of them failed: it has printed the reason.
  void Wait() {
    for (size_t index = 0; index < pids_.size(); ++index) {
      int status = 0;
      Demand(waitpid(pids_[index], &status, 0) >= 0, "waitpid");
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        pids_.erase(pids_.begin(), pids_.begin() + static_cast<std::ptrdiff_t>(index) + 1);
        for (const pid_t pid : pids_) kill(pid, SIGKILL);
        Die("rank " + std::to_string(index) + " failed");
      }
    }
    pids_.clear();
  }

 private:
  int Own(int rank, int fd) {
    Demand(fd >= 0, "a descriptor for a rank");
    all_.push_back(fd);
    if (static_cast<size_t>(fd) >= owner_.size()) owner_.resize(static_cast<size_t>(fd) + 1, -1);
    owner_[static_cast<size_t>(fd)] = rank;
    return fd;
  }

  void Wire(const JobSettings& settings) {
    std::vector<int> segments(static_cast<size_t>(size_), -1);
    peers_.resize(static_cast<size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) {
      int& segment = segments[static_cast<size_t>(rank)];
      if (!settings.tcp && size_ > 1) DemandOk(se_segment_create(size_, &segment), "se_segment_create");
      se_config config{};
      config.struct_bytes = sizeof config;
      config.rank = config.global_rank = rank;
      config.size = size_;
      config.own_segment_fd = segment < 0 ? -1 : Own(rank, fcntl(segment, F_DUPFD_CLOEXEC, 3));
      // The package's defaults.
      config.cache_capacity = 1024;
      config.cores = Cores();
      config.overlap = Cores() > size_ ? 1 : 0;
      config.hierarchical = -1;
      config.affinity_core = -1;
      config.spin_microseconds = settings.spin_microseconds;
      config.fusion_threshold_bytes = int64_t{128} << 20;
      config.start_timeout_seconds = 30;
      config.stall_warning_seconds = 60;
      config.heartbeat_seconds = 1;
      config.silence_seconds = 6;
      config.name = "this host";
      configs_.push_back(config);
    }
    for (int low = 0; low < size_; ++low) {
      for (int high = low + 1; high < size_; ++high) {
        int control[2];
        int data[2];
        Pair(settings.tcp, control);
        Pair(settings.tcp, data);
        Introduce(low, high, control[0], data[0], segments[static_cast<size_t>(high)]);
        Introduce(high, low, control[1], data[1], segments[static_cast<size_t>(low)]);
      }
    }
    for (const int fd : segments) {
      if (fd >= 0) close(fd);
    }
  }

  void Introduce(int rank, int peer, int control, int data, int segment) {
    se_peer entry{};
    entry.rank = entry.global_rank = peer;
    entry.control_fd = Own(rank, control);
    entry.data_count = 1;
    entry.data_fds[0] = Own(rank, data);
    entry.segment_fd = segment < 0 ? -1 : Own(rank, fcntl(segment, F_DUPFD_CLOEXEC, 3));
    entry.name = "this host";
    peers_[static_cast<size_t>(rank)].push_back(entry);
  }

  static void Pair(bool tcp, int ends[2]) {
    if (!tcp) {
      Demand(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      return;
    }
    sockaddr_in address{};
    socklen_t length = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Demand(listener >= 0, "socket");
    Demand(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
    Demand(listen(listener, 1) == 0, "listen");
    Demand(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    Demand(ends[0] >= 0, "socket");
    Demand(connect(ends[0], reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "connect");
    ends[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    Demand(ends[1] >= 0, "accept4");
    close(listener);
    const int on = 1;
    for (int end = 0; end < 2; ++end) {
      Demand(setsockopt(ends[end], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "setsockopt");
    }
  }

  [[noreturn]] void RunRank(int rank, const std::function<int(int, se_engine*)>& body) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // A rank that holds another one's descriptors would not notice that rank's end.
    for (const int fd : all_) {
      if (owner_[static_cast<size_t>(fd)] != rank) close(fd);
    }
    const auto index = static_cast<size_t>(rank);
    se_engine* engine = nullptr;
    DemandOk(se_engine_create(&configs_[index], peers_[index].data(), &engine), "se_engine_create");
    const int result = body(rank, engine);
    se_engine_destroy(engine);
    std::fflush(nullptr);
    _exit(result);
  }

  const int size_;
  std::vector<se_config> configs_;
  std::vector<std::vector<se_peer>> peers_;  // by rank
  std::vector<int> all_;                     // descriptors
  std::vector<int> owner_;                   // by descriptor: the rank that it is for
  std::vector<pid_t> pids_;
};

}  // namespace spark_estimator::benchmarks

#endif  // SPARK_ESTIMATOR_BENCHMARKS_FORKED_JOB_H_
