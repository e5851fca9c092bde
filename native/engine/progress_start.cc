// The start of an engine: takes over connections and segments, exchanges hellos, makes the parts.
#include <utility>

#include "engine/progress.h"
#include "engine/rounds/shared_rounds.h"

namespace spark_estimator {
namespace {

// How much longer GPUs may take to connect than processes.
constexpr double kGpusTake = 4;

Membership DescribeSelf(const EngineConfig& config) {
  Membership membership(config.rank, config.size);
  membership.Describe(config.rank, config.global_rank, config.name);
  return membership;
}

}  // namespace

Progress::Progress(Shared shared)
    : shared_(shared),
      membership_(DescribeSelf(*shared.config)),
      no_memory_(SE_NO_MEMORY, membership_.NameOf(shared.config->rank) + " could not allocate memory"),
      links_(shared.config->rank, shared.config->size, shared.config->overlay),
      exit_(&membership_, &links_, &no_memory_),
      watch_(shared.config->stall_warning_seconds, shared.config->stall_shutdown_seconds),
      outcome_stack_([this] { outcome_ = Contained([this] { return operations_->RunOutcome(); }); }) {}

Status Progress::Start(std::vector<PeerConfig> peers) {
  const EngineConfig& config = *shared_.config;
  SE_RETURN_IF_ERROR(links_.Open());
  SE_RETURN_IF_ERROR(outcome_stack_.Open());
  if (config.overlay) SE_RETURN_IF_ERROR(late_sockets_.Open());
  std::vector<StripedSocket> sockets(static_cast<size_t>(config.size));
  for (PeerConfig& peer : peers) {
    membership_.Describe(peer.rank, peer.global_rank, peer.name);
    if (peer.control.valid()) links_.Connect(peer.rank, std::move(peer.control));
    sockets[static_cast<size_t>(peer.rank)] = std::move(peer.data);
  }
  std::vector<Segment> segments;
  std::vector<int64_t> visible;
  SE_RETURN_IF_ERROR(MapSegments(config, peers, membership_, &segments, &visible));
  GroupSettings settings;
  SE_RETURN_IF_ERROR(ExchangeHellos(config, visible, membership_, links_, &settings));
  LateSockets* const late = config.overlay ? &late_sockets_ : nullptr;
  streams_ = std::make_unique<SocketGroup>(config.rank, std::move(sockets), this, late);
  SE_RETURN_IF_ERROR(MakeTopology(config, settings, std::move(segments), this, &topology_));
  Assemble(settings);
  SE_RETURN_IF_ERROR(shared_.waker->WatchLinks(links_.poll_fd()));
  for (int rank = 0; rank < config.size; ++rank) {
    if (links_.is_open(rank)) SE_RETURN_IF_ERROR(links_.Watch(rank));
  }
  if (config.size > 1 && config.heartbeat_seconds > 0) {
    membership_.StartHeartbeat(Seconds(config.heartbeat_seconds), Seconds(config.silence_seconds), Clock::now(),
                               config.overlay);
  }
  return Status::Ok();
}

void Progress::Assemble(const GroupSettings& settings) {
  const EngineConfig& config = *shared_.config;
  parameters_ = settings.parameters;
  cores_ = settings.cores;
  const auto capacity = static_cast<size_t>(settings.cache_capacity);
  cache_.emplace(capacity);
  pending_.emplace(&*cache_, shared_.counters);
  executor_ = std::make_unique<Executor>(streams_.get(), topology_.local.get(), &topology_.hosts, &parameters_.tuning,
                                         cores_, shared_.counters);
  MakeGpuExecutor();
  rounds_.emplace(MakeRounds(capacity), shared_.counters);
  runner_.emplace(OperationRunner::Parts{executor_.get(), gpu_.get(), shared_.requests, shared_.counters,
                                         shared_.recorder, shared_.timeline});
  operations_.emplace(RoundOperations::Parts{&*rounds_, &*pending_, &*cache_, &*runner_, executor_.get(), &membership_,
                                             &parameters_, topology_.all_share() ? topology_.arena.get() : nullptr});
  negotiation_.emplace(NegotiationDriver::Parts{&*rounds_, &*pending_, &*cache_, &*runner_, shared_.requests,
                                                shared_.turn, &parameters_, &membership_, &links_, shared_.questions,
                                                shared_.counters});
  if (config.rank != 0) return;
  negotiation_->Lead(NegotiationLeader(membership_.global_ranks(), parameters_.fusion_threshold_bytes),
                     StallReporter(config.stall_warning_seconds, config.stall_shutdown_seconds, Clock::now()));
}

void Progress::MakeGpuExecutor() {
  const EngineConfig& config = *shared_.config;
  GpuExecutor::Options options;
  options.rank = config.rank;
  options.size = config.size;
  options.operations = config.gpu_operations;
  options.ranks_on_host = config.ranks_on_host;
  options.libraries = config.gpu_libraries;
  options.deadline = Seconds(kGpusTake * config.start_timeout_seconds);
  GpuExecutor::Host host;
  host.executor = executor_.get();
  host.liveness = this;
  host.counters = shared_.counters;
  host.arena = topology_.arena.get();
  host.shared = topology_.all_share() ? topology_.local.get() : nullptr;
  gpu_ = std::make_unique<GpuExecutor>(std::move(options), host);
}

std::unique_ptr<Rounds> Progress::MakeRounds(size_t cache_capacity) {
  if (topology_.all_share()) return std::make_unique<SharedRounds>(topology_.local.get(), cache_capacity);
  auto rounds = std::make_unique<FrameRounds>(
      membership_.rank(), membership_.size(), cache_capacity,
      [this](int rank, std::string_view payload) { links_.Send(rank, FrameType::kRound, payload); },
      [this](Time deadline) { return AwaitFrames(deadline); });
  frame_rounds_ = rounds.get();
  return rounds;
}

Status Progress::TakeEarlyFrames() {
  for (int rank = 0; rank < links_.size(); ++rank) {
    SE_RETURN_IF_ERROR(HandleInbox(rank));
    // The end of a link may have been read with the hello as well.
    if (!links_.exists(rank) || links_.is_open(rank)) continue;
    LinkEnded(rank);
    if (!membership_.has_left(rank)) {
      return membership_.RankLost(rank, "is lost: " + links_.at(rank).closed_reason());
    }
  }
  return Status::Ok();
}

}  // namespace spark_estimator
