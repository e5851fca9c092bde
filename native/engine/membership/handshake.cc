#include "engine/membership/handshake.h"

#include <poll.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/clock.h"
#include "engine/wire/message.h"
#include "engine/wire/proposal.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace {

// Settings for which rank 0's value counts for all, or the smallest.
enum Setting : size_t {
  kFusionThreshold,
  kCacheCapacity,
  kHierarchical,
  kCores,  // the smallest
  kNumSettings
};

struct Range {
  const char* name;
  int64_t least;
  int64_t most;
};

constexpr Range kRanges[kNumSettings] = {
    {"the fusion threshold", 0, std::numeric_limits<int64_t>::max()},
    {"the cache capacity", 0, kMaxCacheCapacity},
    {"hierarchical", -1, 1},
    {"the number of cores", 1, std::numeric_limits<int32_t>::max()},
};

// Of a rank's own account of its host and process, in bytes.
constexpr size_t kLongestName = 512;

Hello OwnHello(const EngineConfig& config, const std::vector<int64_t>& visible) {
  Hello hello;
  hello.abi_version = SE_ABI_VERSION;
  hello.rank = config.rank;
  hello.size = config.size;
  hello.visible_ranks = visible;
  hello.name = config.name.substr(0, kLongestName);
  hello.settings.resize(kNumSettings);
  hello.settings[kFusionThreshold] = config.fusion_threshold_bytes;
  hello.settings[kCacheCapacity] = config.cache_capacity;
  hello.settings[kHierarchical] = config.hierarchical;
  hello.settings[kCores] = config.cores;
  for (size_t i = 0; i < kNumSettings; ++i) {
    hello.settings[i] = std::clamp(hello.settings[i], kRanges[i].least, kRanges[i].most);
  }
  return hello;
}

Status CheckHello(int rank, const Frame& frame, const Membership& membership, Hello* hello) {
  const std::string name = membership.NameOf(rank);
  if (frame.type != FrameType::kHello || !Decode(frame.payload, hello)) {
    return Status(SE_INTERNAL, name + " did not begin with a hello");
  }
  if (hello->abi_version != SE_ABI_VERSION) {
    return Status(SE_INVALID_ARGUMENT, name + " runs engine version " + std::to_string(hello->abi_version) +
                                           ", this rank " + std::to_string(SE_ABI_VERSION) +
                                           "; install the same spark-estimator everywhere");
  }
  const std::string why = WhyImpossible(*hello, rank, membership.size());
  return why.empty() ? Status::Ok() : Status(SE_INVALID_ARGUMENT, name + " sent a hello that cannot be: " + why);
}

// A peer that could not be created sends the reason.
Status CheckAbort(int rank, const Frame& frame, Membership& membership) {
  Abort abort;
  if (Decode(frame.payload, &abort)) return membership.Aborted(abort, rank);
  return membership.RankLost(rank, "sent a control message that cannot be read (type " +
                                       std::to_string(static_cast<int>(frame.type)) + ", " +
                                       std::to_string(frame.payload.size()) + " bytes)");
}

// Takes the hello of `rank` if it has arrived; *heard reports it.
Status TakeHello(int rank, Membership& membership, PeerLinks& links, Hello* hello, bool* heard) {
  std::deque<Frame>& inbox = links.inbox(rank);
  for (auto frame = inbox.begin(); frame != inbox.end(); ++frame) {
    if (frame->type == FrameType::kAbort) return CheckAbort(rank, *frame, membership);
    // These may come by a shorter path than the hello.
    const bool overtakes = frame->type == FrameType::kGoodbye || frame->type == FrameType::kHeartbeat;
    if (links.overlay() && overtakes) continue;
    SE_RETURN_IF_ERROR(CheckHello(rank, *frame, membership, hello));
    // A launcher may know only of a process that started the rank; the rank knows its own.
    if (!hello->name.empty()) membership.Rename(rank, hello->name);
    inbox.erase(frame);
    *heard = true;
    return Status::Ok();
  }
  return Status::Ok();
}

// With an overlay, why another rank could not start: it may have sent its hello before, and ends its connections next.
Status CheckAborts(Membership& membership, PeerLinks& links) {
  for (int rank = 0; rank < links.size(); ++rank) {
    for (const Frame& frame : links.inbox(rank)) {
      if (frame.type == FrameType::kAbort) return CheckAbort(rank, frame, membership);
    }
  }
  return Status::Ok();
}

// An error when a connection has ended whose rank owes its hello, or with an overlay perhaps others' that it passes on.
Status CheckLinks(const std::vector<int>& missing, Membership& membership, PeerLinks& links) {
  const auto is_goodbye = [](const Frame& frame) { return frame.type == FrameType::kGoodbye; };
  for (int rank = 0; rank < links.size(); ++rank) {
    if (!links.exists(rank) || links.is_open(rank)) continue;
    if (!links.overlay() && !std::ranges::binary_search(missing, rank)) continue;  // noticed once the others are there
    // Who leaves has taken, and so passed on, all hellos.
    if (links.overlay() && std::ranges::any_of(links.inbox(rank), is_goodbye)) continue;
    return membership.RankLost(rank, "was lost while the job was starting: " + links.at(rank).closed_reason());
  }
  return Status::Ok();
}

// Until some connection has something, or takes something.
void AwaitLinks(const PeerLinks& links, double seconds) {
  std::vector<pollfd> waits;
  for (int rank = 0; rank < links.size(); ++rank) {
    if (!links.is_open(rank)) continue;
    const ControlLink& link = links.at(rank);
    waits.push_back({link.fd(), static_cast<short>(POLLIN | (link.has_unsent() ? POLLOUT : 0)), 0});
  }
  poll(waits.data(), waits.size(), static_cast<int>(seconds * 1000) + 1);
}

Status TakeHellos(double timeout_seconds, Membership& membership, PeerLinks& links, std::vector<Hello>* hellos) {
  const Time deadline = After(Seconds(timeout_seconds));
  std::vector<int> missing;
  for (int rank = 0; rank < membership.size(); ++rank) {
    if (rank != membership.rank()) missing.push_back(rank);
  }
  while (true) {
    std::vector<int> still_missing;
    links.Flush();
    for (int rank = 0; rank < links.size(); ++rank) {
      if (links.is_open(rank)) links.Receive(rank);
    }
    for (const int rank : missing) {
      bool heard = false;
      SE_RETURN_IF_ERROR(TakeHello(rank, membership, links, &(*hellos)[static_cast<size_t>(rank)], &heard));
      if (!heard) still_missing.push_back(rank);
    }
    missing = std::move(still_missing);
    if (missing.empty()) return Status::Ok();
    if (links.overlay()) SE_RETURN_IF_ERROR(CheckAborts(membership, links));
    SE_RETURN_IF_ERROR(CheckLinks(missing, membership, links));
    const double left = Seconds(deadline - Clock::now()).count();
    if (left <= 0) {
      std::string names;
      for (const int rank : missing) names += (names.empty() ? "" : ", ") + membership.NameOf(rank);
      return Status(SE_TIMED_OUT,
                    "no hello within " + std::to_string(static_cast<int>(timeout_seconds)) + " s from " + names +
                        (links.overlay() ? ". One of these, or of the ranks that pass their messages on, may be frozen "
                                           "or cut off"
                                         : ""));
    }
    AwaitLinks(links, std::min(left, 1.0));
  }
}

}  // namespace

std::string WhyImpossible(const Hello& hello, int rank, int size) {
  if (hello.rank != rank || hello.size != size) {
    return "it claims to be rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.size) +
           " in a group of " + std::to_string(size);
  }
  int64_t least = 0;
  for (const int64_t visible : hello.visible_ranks) {
    if (visible < least || visible >= size) {
      return "its list of visible ranks has " + std::to_string(visible) + ", where " + std::to_string(least) + ".." +
             std::to_string(size - 1) + " can follow";
    }
    least = visible + 1;  // in ascending order, so none is there twice
  }
  if (hello.settings.size() != kNumSettings) {
    return "it has " + std::to_string(hello.settings.size()) + " settings instead of " + std::to_string(kNumSettings);
  }
  for (size_t i = 0; i < kNumSettings; ++i) {
    const Range& range = kRanges[i];
    if (hello.settings[i] >= range.least && hello.settings[i] <= range.most) continue;
    return std::string(range.name) + " is " + std::to_string(hello.settings[i]) + ", outside " +
           std::to_string(range.least) + ".." + std::to_string(range.most);
  }
  if (hello.name.size() > kLongestName) {
    return "its name has " + std::to_string(hello.name.size()) + " bytes, more than " + std::to_string(kLongestName);
  }
  return "";
}

Status ExchangeHellos(const EngineConfig& config, const std::vector<int64_t>& visible, Membership& membership,
                      PeerLinks& links, GroupSettings* settings) {
  std::vector<Hello> hellos(static_cast<size_t>(config.size));
  Hello& own_hello = hellos[static_cast<size_t>(config.rank)];
  own_hello = OwnHello(config, visible);
  links.SendToAll(FrameType::kHello, Encode(own_hello));
  SE_RETURN_IF_ERROR(TakeHellos(config.start_timeout_seconds, membership, links, &hellos));
  const std::vector<int64_t>& first = hellos[0].settings;
  settings->parameters.fusion_threshold_bytes = first[kFusionThreshold];
  settings->parameters.tuning.hierarchical = static_cast<int32_t>(first[kHierarchical]);
  settings->cache_capacity = first[kCacheCapacity];
  settings->cores = static_cast<int>(own_hello.settings[kCores]);
  for (const Hello& hello : hellos) {
    settings->visible_of.emplace_back(hello.visible_ranks.begin(), hello.visible_ranks.end());
    settings->cores = std::min(settings->cores, static_cast<int>(hello.settings[kCores]));
  }
  return Status::Ok();
}

}  // namespace spark_estimator
