// How an engine comes to be: sockets and segments are taken over, the ranks greet each other, the thread starts.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/engine.h"
#include "engine/frame_rounds.h"
#include "engine/shared_rounds.h"

namespace spark_estimator {
namespace {

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

// The settings in which rank 0's value holds for all, and what the smallest value of all ranks counts for.
enum Setting : size_t {
  kFusionThreshold,
  kCacheCapacity,
  kHierarchical,
  kAutotune,
  kCores,  // the smallest
  kNumSettings
};

// How much longer GPUs may take to come together than processes.
constexpr double kGpusTake = 4;

// Of a rank's own account of its host and process, in bytes.
constexpr size_t kLongestName = 512;

Status Watch(int poll_fd, int fd, uint64_t data) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = data;
  if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event) == 0) return Status::Ok();
  return Status::System("cannot watch a connection (epoll_ctl)", errno);
}

}  // namespace

Engine::Engine(EngineConfig config) : config_(std::move(config)) {
  peers_.resize(static_cast<size_t>(config_.size));
  global_ranks_.resize(static_cast<size_t>(config_.size));
  Peer& own = peers_[static_cast<size_t>(config_.rank)];
  own.name = config_.name;
  own.global_rank = global_ranks_[static_cast<size_t>(config_.rank)] = config_.global_rank;
  no_memory_ = Status(SE_NO_MEMORY, NameOf(config_.rank) + " could not allocate memory");
  shut_down_ = Status(SE_SHUT_DOWN, "this rank has shut down");
  no_memory_abort_ = Encode(Abort{config_.rank, no_memory_.message()});
  drained_.reserve(peers_.size());
}

Status Engine::Create(EngineConfig config, std::vector<PeerConfig> peers, std::unique_ptr<Engine>* engine) {
  std::unique_ptr<Engine> made(new Engine(std::move(config)));
  const Status status = made->Contained([&] { return made->Start(std::move(peers)); });
  if (status.ok()) {
    *engine = std::move(made);
    return status;
  }
  // The peers are told what failed here, unless it was one of them.
  if (status.code() == SE_NO_MEMORY || status.code() == SE_SYSTEM_ERROR || status.code() == SE_INTERNAL) {
    made->TellPeers(status);
  }
  return status;
}

Status Engine::Start(std::vector<PeerConfig> peers) {
  wake_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  control_poll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  thread_poll_.Reset(epoll_create1(EPOLL_CLOEXEC));
  if (!wake_fd_.valid() || !control_poll_.valid() || !thread_poll_.valid()) {
    return Status::System("cannot make an event descriptor", errno);
  }
  std::vector<UniqueFd> sockets(static_cast<size_t>(config_.size));
  for (PeerConfig& peer : peers) {
    Peer& mine = peers_[static_cast<size_t>(peer.rank)];
    mine.name = peer.name;
    mine.global_rank = global_ranks_[static_cast<size_t>(peer.rank)] = peer.global_rank;
    mine.control = std::make_unique<ControlLink>(std::move(peer.control));
    sockets[static_cast<size_t>(peer.rank)] = std::move(peer.data);
  }
  std::vector<Segment> segments;
  std::vector<int64_t> visible;
  SE_RETURN_IF_ERROR(MapSegments(peers, &segments, &visible));
  std::vector<std::vector<int>> visible_of;
  SE_RETURN_IF_ERROR(ExchangeHellos(visible, &visible_of));
  Liveness* liveness = this;  // a private base
  streams_ = std::make_unique<SocketGroup>(config_.rank, std::move(sockets), liveness);
  SE_RETURN_IF_ERROR(MakeGroups(std::move(segments), visible_of));
  MakeRounds();

  SE_RETURN_IF_ERROR(Watch(thread_poll_.get(), wake_fd_.get(), static_cast<uint64_t>(wake_fd_.get())));
  SE_RETURN_IF_ERROR(Watch(thread_poll_.get(), control_poll_.get(), static_cast<uint64_t>(control_poll_.get())));
  for (int rank = 0; rank < config_.size; ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (!peer.control || !peer.control->open()) continue;
    SE_RETURN_IF_ERROR(Watch(control_poll_.get(), peer.control->fd(), static_cast<uint64_t>(rank)));
  }
  next_stall_check_ = After(kStallCheckInterval);
  if (config_.size > 1 && config_.heartbeat_seconds > 0) {
    heartbeat_.emplace(config_.rank, config_.size, Seconds(config_.heartbeat_seconds), Seconds(config_.silence_seconds),
                       Clock::now());
  }
  {
    // What a faster peer has sent after its hello is read with it, and no socket tells of it again. An error breaks the
    // engine before there is anybody else who might drive it.
    if (const Status early = TakeEarlyFrames(); !early.ok()) Break(early);
    const AllSignalsBlocked blocked;  // inherited by the thread
    const Status started = Contained([&] {
      thread_ = std::thread([this] { RunThread(); });
      return Status::Ok();
    });
    return started.ok() ? started : started.Within("the engine's thread cannot be started");
  }
}

// Maps this rank's segment and those of the peers that gave one.
Status Engine::MapSegments(std::vector<PeerConfig>& peers, std::vector<Segment>* segments,
                           std::vector<int64_t>* visible) {
  segments->resize(static_cast<size_t>(config_.size));
  const bool any_peer = std::any_of(peers.begin(), peers.end(), [](const PeerConfig& p) { return p.segment.valid(); });
  if (!config_.own_segment.valid() || !any_peer) return Status::Ok();
  int local_size = 0;
  SE_RETURN_IF_ERROR(Segment::LocalSizeOf(config_.own_segment.get(), &local_size).Within("this rank's own segment"));
  Segment& own = (*segments)[static_cast<size_t>(config_.rank)];
  SE_RETURN_IF_ERROR(own.Map(config_.own_segment.get(), local_size).Within("this rank's own segment"));
  for (PeerConfig& peer : peers) {
    if (!peer.segment.valid()) continue;
    SE_RETURN_IF_ERROR((*segments)[static_cast<size_t>(peer.rank)]
                           .Map(peer.segment.get(), local_size)
                           .Within("the segment of " + NameOf(peer.rank)));
    peer.segment.Reset(-1);  // the mapping stays
  }
  for (int rank = 0; rank < config_.size; ++rank) {
    if ((*segments)[static_cast<size_t>(rank)].mapped()) visible->push_back(rank);
  }
  return Status::Ok();
}

Status Engine::MakeGroups(std::vector<Segment> segments, const std::vector<std::vector<int>>& visible_of) {
  hosts_ = HostsOf(visible_of);
  const std::vector<int>& members =
      hosts_.members[static_cast<size_t>(hosts_.host_of[static_cast<size_t>(config_.rank)])];
  if (hosts_.count() == config_.size) return Status::Ok();
  if (members.size() == 1) {
    // Alone on its host among hosts with several: it takes part in what they do, with itself.
    UniqueFd alone;
    SE_RETURN_IF_ERROR(Segment::Create(1, &alone));
    SE_RETURN_IF_ERROR(segments[static_cast<size_t>(config_.rank)].Map(alone.get(), 1));
  }
  local_ = std::make_unique<SharedGroup>();
  local_->size = static_cast<int>(members.size());
  local_->liveness = this;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == config_.rank) local_->rank = static_cast<int>(i);
    local_->segments.push_back(std::move(segments[static_cast<size_t>(members[i])]));
  }
  // All ranks must take the cores to be as many, since that decides how they cut vectors. Of two ranks on one core, one
  // has to stay.
  local_->waiting = Waiting(local_->size, cores_, config_.spin_microseconds, local_->rank > 0);
  all_share_ = local_->size == config_.size;
  Segment& own = local_->mine();
  if (own.arena() != nullptr && members.size() > 1) {
    arena_ = std::make_unique<Arena>(UniqueFd(fcntl(config_.own_segment.get(), F_DUPFD_CLOEXEC, 3)), own.arena_offset(),
                                     own.arena(), own.arena_bytes());
  }
  return Status::Ok();
}

void Engine::MakeRounds() {
  const auto capacity = static_cast<size_t>(cache_capacity_);
  cache_ = std::make_unique<ResponseCache>(capacity);
  by_id_.resize(capacity);
  pending_ids_ = IdSet(capacity);
  executor_ =
      std::make_unique<Executor>(streams_.get(), local_.get(), &hosts_, &parameters_.tuning, cores_, &counters_);
  GpuExecutor::Options on_gpu;
  on_gpu.rank = config_.rank;
  on_gpu.size = config_.size;
  on_gpu.operations = config_.gpu_operations;
  on_gpu.ranks_on_host = config_.ranks_on_host;
  on_gpu.libraries = config_.gpu_libraries;
  on_gpu.deadline = Seconds(kGpusTake * config_.start_timeout_seconds);
  GpuExecutor::Host host;
  host.executor = executor_.get();
  host.liveness = this;
  host.counters = &counters_;
  host.arena = arena_.get();
  host.store = config_.kernel_store;
  host.shared = all_share_ ? local_.get() : nullptr;
  gpu_ = std::make_unique<GpuExecutor>(std::move(on_gpu), host);
  if (config_.rank == 0) {
    coordinator_ = std::make_unique<Coordinator>(global_ranks_, parameters_.fusion_threshold_bytes);
    if (config_.autotune && config_.size > 1) {
      Autotune::Options options;
      options.warmup_samples = config_.autotune_warmup_samples;
      options.steps_per_sample = config_.autotune_steps_per_sample;
      options.max_samples = config_.autotune_max_samples;
      options.one_shot = local_ != nullptr && local_->size > 1;
      options.streams = !all_share_;
      options.hierarchical = hosts_.count() > 1 && hosts_.ranks_per_host() > 1 && config_.hierarchical < 0;
      autotune_.emplace(options, parameters_);
    }
    left_rounds_.assign(static_cast<size_t>(config_.size), false);
  }
  if (all_share_) {
    rounds_ = std::make_unique<SharedRounds>(local_.get(), capacity);
    return;
  }
  auto rounds = std::make_unique<FrameRounds>(
      config_.rank, config_.size, capacity,
      [this](int rank, std::string_view payload) {
        peers_[static_cast<size_t>(rank)].control->Send(FrameType::kRound, payload);
      },
      [this](Time deadline) { return AwaitFrames(deadline); });
  frame_rounds_ = rounds.get();
  rounds_ = std::move(rounds);
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
  if (hello->rank != rank || hello->size != config_.size || hello->settings.size() != kNumSettings ||
      hello->name.size() > kLongestName) {
    return Status(SE_INVALID_ARGUMENT, NameOf(rank) + " says that it is rank " + std::to_string(hello->rank) + " of " +
                                           std::to_string(hello->size) + " in a group of " +
                                           std::to_string(config_.size));
  }
  return Status::Ok();
}

Status Engine::ExchangeHellos(const std::vector<int64_t>& visible, std::vector<std::vector<int>>* visible_of) {
  std::vector<Hello> hellos(peers_.size());
  Hello& own = hellos[static_cast<size_t>(config_.rank)];
  own.abi_version = SE_ABI_VERSION;
  own.rank = config_.rank;
  own.size = config_.size;
  own.visible_ranks = visible;
  own.name = config_.name.substr(0, kLongestName);
  own.settings.resize(kNumSettings);
  own.settings[kFusionThreshold] = config_.fusion_threshold_bytes;
  own.settings[kCacheCapacity] = std::clamp<int64_t>(config_.cache_capacity, 0, kMaxCacheCapacity);
  own.settings[kHierarchical] = config_.hierarchical;
  own.settings[kAutotune] = config_.autotune ? 1 : 0;
  own.settings[kCores] = config_.cores;
  SendToAll(FrameType::kHello, Encode(own));
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
        if (peer.inbox.front().type == FrameType::kAbort) return HandleFrame(rank, peer.inbox.front());
        SE_RETURN_IF_ERROR(CheckHello(rank, peer.inbox.front(), &hellos[index]));
        // A launcher may know only of a process that started the rank; the rank knows its own.
        if (!hellos[index].name.empty()) peer.name = hellos[index].name;
        peer.inbox.pop_front();
        heard[index] = true;
        continue;
      }
      if (!peer.control->open()) {
        return Status(SE_PEER_LOST,
                      NameOf(rank) + " was lost while the job was starting: " + peer.control->closed_reason());
      }
      missing.push_back(rank);
      waits.push_back({peer.control->fd(), static_cast<short>(POLLIN | (peer.control->has_unsent() ? POLLOUT : 0)), 0});
    }
    if (missing.empty()) break;
    const double left = Seconds(deadline - Clock::now()).count();
    if (left <= 0) {
      std::string names;
      for (const int rank : missing) names += (names.empty() ? "" : ", ") + NameOf(rank);
      return Status(SE_TIMED_OUT, "no hello within " + std::to_string(static_cast<int>(config_.start_timeout_seconds)) +
                                      " s from " + names);
    }
    poll(waits.data(), waits.size(), static_cast<int>(std::min(left, 1.0) * 1000) + 1);
  }
  const std::vector<int64_t>& first = hellos[0].settings;
  parameters_.fusion_threshold_bytes = first[kFusionThreshold];
  cache_capacity_ = std::clamp<int64_t>(first[kCacheCapacity], 0, kMaxCacheCapacity);
  parameters_.tuning.hierarchical = static_cast<int32_t>(first[kHierarchical]);
  cores_ = config_.cores;
  for (const Hello& hello : hellos) {
    visible_of->emplace_back(hello.visible_ranks.begin(), hello.visible_ranks.end());
    cores_ = std::min(cores_, static_cast<int>(hello.settings[kCores]));
  }
  return Status::Ok();
}

}  // namespace spark_estimator
