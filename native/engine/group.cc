#include "engine/group.h"

#include <string>

#include "engine/membership/handshake.h"

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

Group::Group(const EngineConfig* config, Counters* counters)
    : config_(*config),
      counters_(counters),
      membership_(DescribeSelf(*config)),
      no_memory_(SE_NO_MEMORY, membership_.NameOf(config->rank) + " could not allocate memory"),
      links_(config->rank, config->size, config->overlay),
      exit_(&membership_, &links_, &no_memory_) {}

Status Group::Start(std::vector<PeerConfig> peers, Liveness* liveness) {
  SE_RETURN_IF_ERROR(links_.Open());
  if (config_.overlay) SE_RETURN_IF_ERROR(late_sockets_.Open());
  std::vector<StripedSocket> sockets(static_cast<size_t>(config_.size));
  for (PeerConfig& peer : peers) {
    membership_.Describe(peer.rank, peer.global_rank, peer.name);
    if (peer.control.valid()) links_.Connect(peer.rank, std::move(peer.control));
    sockets[static_cast<size_t>(peer.rank)] = std::move(peer.data);
  }
  std::vector<Segment> segments;
  std::vector<int64_t> visible;
  SE_RETURN_IF_ERROR(MapSegments(config_, peers, membership_, &segments, &visible));
  GroupSettings settings;
  SE_RETURN_IF_ERROR(ExchangeHellos(config_, visible, membership_, links_, &settings));
  LateSockets* const late = config_.overlay ? &late_sockets_ : nullptr;
  streams_ = std::make_unique<SocketGroup>(config_.rank, std::move(sockets), liveness, late);
  SE_RETURN_IF_ERROR(MakeTopology(config_, settings, std::move(segments), liveness, &topology_));
  parameters_ = settings.parameters;
  cache_capacity_ = static_cast<size_t>(settings.cache_capacity);
  MakeExecutors(settings.cores, liveness);
  for (int rank = 0; rank < config_.size; ++rank) {
    if (links_.is_open(rank)) SE_RETURN_IF_ERROR(links_.Watch(rank));
  }
  if (config_.size > 1 && config_.heartbeat_seconds > 0) {
    membership_.StartHeartbeat(Seconds(config_.heartbeat_seconds), Seconds(config_.silence_seconds), Clock::now(),
                               config_.overlay);
  }
  return Status::Ok();
}

void Group::MakeExecutors(int cores, Liveness* liveness) {
  executor_ = std::make_unique<Executor>(streams_.get(), topology_.local.get(), &topology_.hosts, &parameters_.tuning,
                                         cores, counters_);
  GpuExecutor::Options options;
  options.rank = config_.rank;
  options.size = config_.size;
  options.operations = config_.gpu_operations;
  options.ranks_on_host = config_.ranks_on_host;
  options.libraries = config_.gpu_libraries;
  options.deadline = Seconds(kGpusTake * config_.start_timeout_seconds);
  GpuExecutor::Host host;
  host.executor = executor_.get();
  host.liveness = liveness;
  host.counters = counters_;
  host.arena = topology_.arena.get();
  host.shared = topology_.all_share() ? topology_.local.get() : nullptr;
  gpu_ = std::make_unique<GpuExecutor>(std::move(options), host);
}

std::vector<int> Group::Awaited() const {
  const int local = topology_.local ? topology_.local->AwaitedPeer() : -1;
  if (local < 0) return streams_->Awaited();
  const auto host = static_cast<size_t>(topology_.hosts.host_of[static_cast<size_t>(config_.rank)]);
  return {topology_.hosts.members[host][static_cast<size_t>(local)]};
}

void Group::AbandonAfterFork() {
  links_.AbandonAfterFork();
  if (streams_) streams_->AbandonAfterFork();
  late_sockets_.AbandonAfterFork();
  topology_.arena->AbandonAfterFork();
}

}  // namespace spark_estimator
