// How fast the collectives over TCP are: ranks are processes, numbers are checked before speed is printed.
//
//   stream_bench [--ranks 2] [--ops allreduce,allreduce:ring,broadcast,...] [--sizes 4,65536,...] [--seconds 0.5]
//                [--addresses ip:port,ip:port] [--host 0]
//
// Without addresses all ranks are on 127.0.0.1. With them each is a host of --ranks ranks, which share memory and
// listen on as many ports, starting with this one; run the same command with --host 0, 1, ... on each (or in network
// namespaces). One line a case: the median and the fastest of the samples, in microseconds, as rank 0 saw them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/hierarchical.h"
#include "algorithms/streams/stream.h"
#include "base/clock.h"

namespace {

using namespace spark_estimator;

constexpr int kSamples = 21;

struct Options {
  int ranks = 2;  // of one host
  int host = -1;  // -1: all of them are run here
  std::vector<std::string> addresses = {"127.0.0.1:0"};
  std::vector<std::string> ops = {"allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"};
  std::vector<size_t> sizes = {4, 1024, 16384, 65536, 1 << 20, 16 << 20, 102400000};
  double seconds = 0.5;
};

[[noreturn]] void Die(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::_Exit(1);
}
void Check(const Status& status) {
  if (!status.ok()) Die("failed: " + status.message());
}

class AlwaysAlive : public Liveness {
 public:
  Status Check() override { return Status::Ok(); }
};

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

Options Parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    const std::string value = arguments[i + 1];
    if (name == "--ranks") {
      options.ranks = std::atoi(value.c_str());
    } else if (name == "--host") {
      options.host = std::atoi(value.c_str());
    } else if (name == "--addresses") {
      options.addresses = Split(value);
    } else if (name == "--ops") {
      options.ops = Split(value);
    } else if (name == "--seconds") {
      options.seconds = std::atof(value.c_str());
    } else if (name == "--sizes") {
      options.sizes.clear();
      for (const std::string& size : Split(value)) options.sizes.push_back(std::strtoull(size.c_str(), nullptr, 10));
    } else {
      Die("unknown option " + name);
    }
  }
  return options;
}

sockaddr_in AddressOf(const Options& options, int rank) {
  const std::string& text = options.addresses[static_cast<size_t>(rank / options.ranks)];
  const size_t colon = text.find(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, text.substr(0, colon).c_str(), &address.sin_addr);
  const int port = std::atoi(text.c_str() + colon + 1) + rank % options.ranks;
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

void SendAtOnce(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Rank r listens for those above it and calls those below it.
std::vector<StripedSocket> Connect(const Options& options, int rank, int size) {
  std::vector<StripedSocket> sockets(static_cast<size_t>(size));
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in own_address = AddressOf(options, rank);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&own_address), sizeof(own_address)) != 0)
    Die("cannot bind");
  listen(listener.get(), size);
  for (int peer = 0; peer < rank; ++peer) {
    const sockaddr_in address = AddressOf(options, peer);
    for (int attempt = 0;; ++attempt) {
      UniqueFd made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
        SendAtOnce(made.get());
        if (write(made.get(), &rank, sizeof(rank)) != sizeof(rank)) Die("cannot greet");
        sockets[static_cast<size_t>(peer)] = std::move(made);
        break;
      }
      if (attempt > 2000) Die("cannot connect to rank " + std::to_string(peer));
      usleep(5000);
    }
  }
  for (int peers = rank + 1; peers < size; ++peers) {
    UniqueFd made(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    int peer = -1;
    if (recv(made.get(), &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer)) Die("no greeting");
    SendAtOnce(made.get());
    sockets[static_cast<size_t>(peer)] = std::move(made);
  }
  return sockets;
}

class Bench {
 public:
  Bench(const Options& options, int rank, std::vector<UniqueFd>& segments)
      : options_(options), size_(options.ranks * static_cast<int>(options.addresses.size())) {
    std::vector<std::vector<int>> visible(static_cast<size_t>(size_));
    for (int r = 0; r < size_; ++r) {
      for (int l = 0; l < options.ranks; ++l) {
        visible[static_cast<size_t>(r)].push_back(r / options.ranks * options.ranks + l);
      }
    }
    hosts_ = HostsOf(visible);
    local_.rank = rank % options.ranks;
    local_.size = options.ranks;
    local_.segments.resize(segments.size());
    local_.liveness = &alive_;
    for (size_t i = 0; i < segments.size(); ++i) Check(local_.segments[i].Map(segments[i].get(), options.ranks));
    group_ = std::make_unique<SocketGroup>(rank, Connect(options, rank, size_), &alive_);
    const size_t largest = *std::max_element(options.sizes.begin(), options.sizes.end());
    in_.resize(largest / sizeof(float) + 1);
    out_.resize(in_.size() + static_cast<size_t>(size_));
  }

  void Run() {
    if (group_->rank() == 0) std::printf("%-24s %12s %12s %12s\n", "op", "bytes", "median us", "fastest us");
    for (const std::string& op : options_.ops) {
      for (const size_t bytes : options_.sizes) {
        Case(op, bytes / sizeof(float));
        if (op == "barrier") break;
      }
    }
  }

 private:
  // On all ranks alike, from `count` floats in in_ to out_.
  void Do(const std::string& op, size_t count) {
    const size_t bytes = count * sizeof(float);
    const auto ranks = static_cast<size_t>(size_);
    const std::vector<size_t> even(ranks, bytes / ranks / sizeof(float) * sizeof(float));
    static const std::map<std::string, AllreduceAlgorithm> kForced = {
        {"allreduce:exchange", AllreduceAlgorithm::kExchange},
        {"allreduce:doubling", AllreduceAlgorithm::kDoubling},
        {"allreduce:halving", AllreduceAlgorithm::kHalving},
        {"allreduce:direct", AllreduceAlgorithm::kDirect},
        {"allreduce:ring", AllreduceAlgorithm::kRing}};
    static const std::map<std::string, BroadcastAlgorithm> kBroadcasts = {
        {"broadcast:tree", BroadcastAlgorithm::kTree},
        {"broadcast:chain", BroadcastAlgorithm::kChain},
        {"broadcast:scatter", BroadcastAlgorithm::kScatterAllgather}};
    if (op == "allreduce") {
      Check(StreamAllreduce(*group_, in_.data(), out_.data(), count, SE_FLOAT32, SE_SUM, Finish{}));
    } else if (const auto forced = kForced.find(op); forced != kForced.end()) {
      Check(StreamAllreduce(*group_, forced->second, in_.data(), out_.data(), count, SE_FLOAT32, SE_SUM, Finish{}));
    } else if (op == "allreduce:hierarchical") {
      BufferList list;
      list.Add(in_.data(), out_.data(), bytes);
      Check(HierarchicalAllreduce(local_, *group_, hosts_, list, SE_FLOAT32, SE_SUM, Finish{}));
    } else if (op == "broadcast") {
      Check(StreamBroadcast(*group_, 0, out_.data(), bytes));
    } else if (const auto broadcast = kBroadcasts.find(op); broadcast != kBroadcasts.end()) {
      Check(StreamBroadcast(*group_, broadcast->second, 0, out_.data(), bytes));
    } else if (op == "broadcast:hierarchical") {
      Check(HierarchicalBroadcast(local_, *group_, hosts_, 0, out_.data(), out_.data(), bytes));
    } else if (op == "allgather") {
      Check(StreamAllgather(*group_, in_.data(), even, out_.data()));
    } else if (op == "reducescatter") {
      Check(StreamReducescatter(*group_, in_.data(), even, out_.data(), SE_FLOAT32, SE_SUM, Finish{}));
    } else if (op == "alltoall") {
      Check(StreamAlltoall(*group_, in_.data(), even, out_.data(), even));
    } else if (op == "barrier") {
      Check(StreamBarrier(*group_));
    } else {
      Die("unknown op " + op);
    }
  }

  float Expected(const std::string& op, size_t i, size_t count) const {
    const auto pattern = [](size_t at) { return static_cast<float>(at % 1000); };
    const auto all = static_cast<float>(size_);
    const float ranks = all * (all - 1) / 2;
    const size_t share = count / static_cast<size_t>(size_);
    if (op.starts_with("allreduce")) return pattern(i) * all + ranks;
    if (op.starts_with("broadcast")) return pattern(i);
    const size_t offset = share * static_cast<size_t>(group_->rank());
    if (op == "reducescatter") return pattern(offset + i) * all + ranks;
    if (share == 0) return -1;
    if (op == "allgather") return pattern(i % share) + static_cast<float>(i / share);
    return pattern(offset + i % share) + static_cast<float>(i / share);  // alltoall
  }

  void Verify(const std::string& op, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      in_[i] = static_cast<float>(i % 1000) + static_cast<float>(group_->rank());
      out_[i] = op.starts_with("broadcast") ? in_[i] : -1;
    }
    Do(op, count);
    if (op == "barrier") return;
    const size_t share = count / static_cast<size_t>(size_);
    const bool whole = op.starts_with("allreduce") || op.starts_with("broadcast");
    const size_t checked = whole ? count : op == "reducescatter" ? share : share * static_cast<size_t>(size_);
    for (size_t i = 0; i < checked; ++i) {
      if (out_[i] != Expected(op, i, count)) {
        Die("WRONG " + op + " of " + std::to_string(count) + " floats on rank " + std::to_string(group_->rank()) +
            " at " + std::to_string(i) + ": " + std::to_string(out_[i]));
      }
    }
  }

  void Case(const std::string& op, size_t count) {
    Verify(op, count);
    // Rank 0 decides how often, all do the same.
    int64_t repeats = 1;
    const Time begun = Clock::now();
    Do(op, count);
    Do(op, count);
    repeats = std::max<int64_t>(1, static_cast<int64_t>(options_.seconds / kSamples / (SecondsSince(begun) / 2)));
    Check(StreamBroadcast(*group_, 0, &repeats, sizeof(repeats)));
    std::vector<double> samples;
    for (int sample = 0; sample < kSamples; ++sample) {
      Check(StreamBarrier(*group_));
      const Time start = Clock::now();
      for (int64_t i = 0; i < repeats; ++i) Do(op, count);
      samples.push_back(SecondsSince(start) / static_cast<double>(repeats) * 1e6);
    }
    std::sort(samples.begin(), samples.end());
    if (group_->rank() == 0) {
      std::printf("%-24s %12zu %12.1f %12.1f\n", op.c_str(), count * sizeof(float), samples[kSamples / 2], samples[0]);
      std::fflush(stdout);
    }
  }

  const Options& options_;
  const int size_;
  AlwaysAlive alive_;
  Hosts hosts_;
  SharedGroup local_;
  std::unique_ptr<SocketGroup> group_;
  std::vector<float> in_;
  std::vector<float> out_;
};

}  // namespace

int main(int count, char** arguments) {
  Options options = Parse(count, arguments);
  if (options.addresses[0] == "127.0.0.1:0") {
    options.addresses[0] = "127.0.0.1:" + std::to_string(20000 + getpid() % 20000);
  }
  const auto hosts = static_cast<int>(options.addresses.size());
  std::vector<pid_t> children;
  const pid_t parent = getpid();
  for (int host = 0; host < hosts; ++host) {
    if (options.host >= 0 && host != options.host) continue;
    std::vector<UniqueFd> segments(static_cast<size_t>(options.ranks));
    for (UniqueFd& segment : segments) Check(Segment::Create(options.ranks, &segment));
    for (int local = 0; local < options.ranks; ++local) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) std::_Exit(1);
        Bench(options, host * options.ranks + local, segments).Run();
        std::_Exit(0);
      }
      children.push_back(child);
    }
  }
  bool failed = false;
  for (size_t ended = 0; ended < children.size(); ++ended) {
    int status = 0;
    wait(&status);
    if (status == 0) continue;
    failed = true;
    for (const pid_t child : children) kill(child, SIGKILL);
  }
  return failed ? 1 : 0;
}
