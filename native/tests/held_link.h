// What blocks an operation although all ranks have agreed on it and send heartbeats: a connection for bulk bytes that
// passes nothing on, and memory that a rank cannot read.
#ifndef SPARK_ESTIMATOR_TESTS_HELD_LINK_H_
#define SPARK_ESTIMATOR_TESTS_HELD_LINK_H_

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/unique_fd.h"
#include "check.h"
#include "ranks.h"

namespace spark_estimator::testing {

// The data connection of ranks 0 and 1 of a group of two, which can be held.
class HeldLink {
 public:
  explicit HeldLink(Wiring& wiring) {
    for (int rank = 0; rank < 2; ++rank) {
      int ends[2];
      CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      int32_t& data = wiring.peers[static_cast<size_t>(rank)][0].data_fds[0];
      close(data);
      data = ends[0];
      ends_[rank].Reset(ends[1]);
    }
    thread_ = std::thread([this] { PassOn(); });
  }
  ~HeldLink() {
    stop_ = true;
    thread_.join();
  }
  HeldLink(const HeldLink&) = delete;
  HeldLink& operator=(const HeldLink&) = delete;

  void Hold() { held_ = true; }
  void LetGo() { held_ = false; }

 private:
  void PassOn() {
    char bytes[65536];
    while (!stop_) {
      pollfd ready[2] = {{ends_[0].get(), POLLIN, 0}, {ends_[1].get(), POLLIN, 0}};
      if (held_ || poll(ready, 2, 10) <= 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      for (int from = 0; from < 2; ++from) {
        if (held_ || ready[from].revents == 0) continue;
        const ssize_t count = recv(ends_[from].get(), bytes, sizeof(bytes), MSG_DONTWAIT);
        if (count <= 0) return;  // a rank has left
        for (ssize_t sent = 0; sent < count;) {
          const ssize_t n = send(ends_[1 - from].get(), bytes + sent, static_cast<size_t>(count - sent), MSG_NOSIGNAL);
          if (n <= 0) return;
          sent += n;
        }
      }
    }
  }

  UniqueFd ends_[2];
  std::atomic<bool> held_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Memory that stops the first thread that reads it, in the middle of any operation, until LetGo. One at a time.
class HeldMemory {
 public:
  explicit HeldMemory(size_t bytes) : bytes_(bytes) {
    CHECK_EQ(pipe2(pipe_, O_CLOEXEC), 0);
    memory_ = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory_ != MAP_FAILED);
    present_ = this;
    struct sigaction action{};
    action.sa_sigaction = &HeldMemory::Stop;
    action.sa_flags = SA_SIGINFO;
    CHECK_EQ(sigaction(SIGSEGV, &action, &before_), 0);
  }
  ~HeldMemory() {
    sigaction(SIGSEGV, &before_, nullptr);
    munmap(memory_, bytes_);
    for (const int fd : pipe_) close(fd);
  }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  // Zeros, once it is released.
  float* get() const { return static_cast<float*>(memory_); }
  void LetGo() { CHECK_EQ(write(pipe_[1], "x", 1), 1); }

 private:
  static void Stop(int signal_number, siginfo_t* info, void*) {
    HeldMemory& held = *present_;
    const auto* at = static_cast<char*>(info->si_addr);
    const auto* begin = static_cast<char*>(held.memory_);
    if (at < begin || at >= begin + held.bytes_) {
      signal(signal_number, SIG_DFL);
      return;
    }
    char byte = 0;
    while (read(held.pipe_[0], &byte, 1) != 1) {
    }
    mprotect(held.memory_, held.bytes_, PROT_READ | PROT_WRITE);
  }

  inline static HeldMemory* present_ = nullptr;
  const size_t bytes_;
  void* memory_ = nullptr;
  int pipe_[2] = {-1, -1};
  struct sigaction before_{};
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_HELD_LINK_H_
