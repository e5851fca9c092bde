// How an engine comes to be: sockets and segments are taken over, the ranks greet each other, the thread starts.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/engine.h"

namespace spark_estimator {
namespace {

// A pause instruction takes about 40 ns on current processors; exactness does not matter.
constexpr int kPausesPerMicrosecond = 25;

// Python installs its handlers for the main thread; a signal that the engine's thread took would interrupt nobody.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Engine::Engine(EngineConfig config) : config_(std::move(config)), owner_pid_(getpid()) {
  peers_.resize(static_cast<size_t>(config_.size));
  peers_[static_cast<size_t>(config_.rank)].name = config_.name;
}

Status Engine::Create(EngineConfig config, std::vector<PeerConfig> peers, std::unique_ptr<Engine>* engine) {
  std::unique_ptr<Engine> made(new Engine(std::move(config)));
  made->wake_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made->wake_fd_.valid()) return Status::System("cannot make an event descriptor", errno);

  const EngineConfig& settings = made->config_;
  StreamGroup streams;
  streams.rank = settings.rank;
  streams.size = settings.size;
  streams.sockets.resize(static_cast<size_t>(settings.size));
  streams.liveness = made.get();
  for (PeerConfig& peer : peers) {
    Peer& mine = made->peers_[static_cast<size_t>(peer.rank)];
    mine.name = peer.name;
    mine.control = std::make_unique<ControlLink>(std::move(peer.control));
    streams.sockets[static_cast<size_t>(peer.rank)] = std::move(peer.data);
  }

  std::unique_ptr<SharedGroup> shared;
  SE_RETURN_IF_ERROR(made->MapSegments(peers, &shared));
  bool all_share = false;
  int64_t fusion_threshold = settings.fusion_threshold_bytes;
  SE_RETURN_IF_ERROR(made->ExchangeHellos(shared != nullptr, &all_share, &fusion_threshold));
  if (!all_share) shared.reset();

  made->executor_ = std::make_unique<Executor>(std::move(streams), std::move(shared), &made->counters_);
  if (settings.rank == 0) made->coordinator_ = std::make_unique<Coordinator>(settings.size, fusion_threshold);
  made->next_stall_check_ = After(kStallCheckInterval);
  {
    AllSignalsBlocked blocked;  // inherited by the thread
    made->thread_ = std::thread([raw = made.get()] { raw->Run(); });
  }
  *engine = std::move(made);
  return Status::Ok();
}

Status Engine::MapSegments(std::vector<PeerConfig>& peers, std::unique_ptr<SharedGroup>* group) {
  const bool complete = config_.size > 1 && config_.own_segment.valid() &&
                        std::all_of(peers.begin(), peers.end(), [](const PeerConfig& p) { return p.segment.valid(); });
  if (!complete) return Status::Ok();
  auto made = std::make_unique<SharedGroup>();
  made->rank = config_.rank;
  made->size = config_.size;
  made->segments.resize(static_cast<size_t>(config_.size));
  made->spin_pauses = config_.spin_microseconds * kPausesPerMicrosecond;
  made->liveness = this;
  SE_RETURN_IF_ERROR(made->mine().Map(config_.own_segment.get(), config_.size).Within("this rank's own segment"));
  for (PeerConfig& peer : peers) {
    SE_RETURN_IF_ERROR(
        made->of(peer.rank).Map(peer.segment.get(), config_.size).Within("the segment of " + NameOf(peer.rank)));
    peer.segment.Reset(-1);  // the mapping stays
  }
  *group = std::move(made);
  return Status::Ok();
}

std::string Engine::NameOf(int rank) const {
  const std::string& name = peers_[static_cast<size_t>(rank)].name;
  return "rank " + std::to_string(rank) + (name.empty() ? "" : " on " + name);
}

Status Engine::CheckHello(int rank, const Frame& frame, Hello* hello) const {
  if (frame.type != FrameType::kHello || !Decode(frame.payload, hello)) {
    return Status(SE_INTERNAL, NameOf(rank) + " did not begin with a hello");
  }
  if (hello->abi_version != SE_ABI_VERSION) {
    return Status(SE_INVALID_ARGUMENT, NameOf(rank) + " runs engine version " + std::to_string(hello->abi_version) +
                                           ", this rank " + std::to_string(SE_ABI_VERSION) +
                                           "; install the same spark-estimator everywhere");
  }
  if (hello->rank != rank || hello->size != config_.size) {
    return Status(SE_INVALID_ARGUMENT, NameOf(rank) + " says that it is rank " + std::to_string(hello->rank) + " of " +
                                           std::to_string(hello->size) + " in a job of " +
                                           std::to_string(config_.size));
  }
  return Status::Ok();
}

Status Engine::ExchangeHellos(bool sees_all_segments, bool* all_see_all, int64_t* fusion_threshold_bytes) {
  Hello own;
  own.abi_version = SE_ABI_VERSION;
  own.rank = config_.rank;
  own.size = config_.size;
  own.sees_all_segments = sees_all_segments;
  own.fusion_threshold_bytes = config_.fusion_threshold_bytes;
  const std::string payload = Encode(own);
  for (Peer& peer : peers_) {
    if (peer.control) peer.control->Send(FrameType::kHello, payload);
  }
  *all_see_all = sees_all_segments;
  const Time deadline = After(Seconds(config_.start_timeout_seconds));
  std::vector<bool> heard(peers_.size(), false);
  heard[static_cast<size_t>(config_.rank)] = true;
  while (true) {
    std::vector<pollfd> waits;
    std::vector<int> missing;
    for (int rank = 0; rank < config_.size; ++rank) {
      const auto index = static_cast<size_t>(rank);
      if (heard[index]) continue;
      Peer& peer = peers_[index];
      peer.control->Flush();
      peer.control->Receive(&peer.inbox);
      if (!peer.inbox.empty()) {
        Hello hello;
        SE_RETURN_IF_ERROR(CheckHello(rank, peer.inbox.front(), &hello));
        peer.inbox.pop_front();
        heard[index] = true;
        *all_see_all = *all_see_all && hello.sees_all_segments;
        if (rank == 0) *fusion_threshold_bytes = hello.fusion_threshold_bytes;
        continue;
      }
      if (!peer.control->open()) {
        return Status(SE_PEER_LOST, NameOf(rank) + " " + peer.control->closed_reason() + " while the job was starting");
      }
      missing.push_back(rank);
      waits.push_back({peer.control->fd(), static_cast<short>(POLLIN | (peer.control->has_unsent() ? POLLOUT : 0)), 0});
    }
    if (missing.empty()) return Status::Ok();
    const double left = Seconds(deadline - Clock::now()).count();
    if (left <= 0) {
      std::string names;
      for (const int rank : missing) names += (names.empty() ? "" : ", ") + NameOf(rank);
      return Status(SE_TIMED_OUT, "no hello within " + std::to_string(static_cast<int>(config_.start_timeout_seconds)) +
                                      " s from " + names);
    }
    poll(waits.data(), waits.size(), static_cast<int>(std::min(left, 1.0) * 1000) + 1);
  }
}

}  // namespace spark_estimator
