// The clock, the links and the streams between fibers.
#include "simulated_network.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "check.h"

namespace spark_estimator::testing {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

class SimulatedNetwork::Group : public StreamGroup {
 public:
  Group(SimulatedNetwork* network, int rank) : StreamGroup(rank, network->size()), network_(*network) {}

  Status TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved) override {
    Rank& me = network_.rank(rank());
    network_.LetOthersCatchUp(me, rank());
    const NetworkModel& model = network_.model_;
    Rank& other = network_.rank(peer);
    Stream& stream = other.from[rank()];
    *moved = std::min({bytes, model.segment_bytes, model.window_bytes - stream.unread});
    if (*moved == 0) return Status::Ok();
    me.now += model.seconds_a_call;
    Segment segment;
    segment.data.assign(data, data + *moved);
    segment.arrival = network_.Transmit(rank(), peer, *moved, me.now);
    stream.unread += *moved;
    const double arrival = segment.arrival;
    stream.segments.push_back(std::move(segment));
    CountMoved(*moved);
    ++me.cost.messages;
    me.cost.bytes_sent += static_cast<int64_t>(*moved);
    if (network_.HostOf(rank()) != network_.HostOf(peer)) me.cost.bytes_across += static_cast<int64_t>(*moved);
    if (other.waiting) network_.Schedule(peer, std::max(arrival, other.now));
    return Status::Ok();
  }

  Status TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved) override {
    Rank& me = network_.rank(rank());
    network_.LetOthersCatchUp(me, rank());
    Stream& stream = me.from[peer];
    *moved = 0;
    while (*moved < bytes && !stream.segments.empty() && stream.segments.front().arrival <= me.now) {
      Segment& segment = stream.segments.front();
      const size_t piece = std::min(bytes - *moved, segment.data.size() - segment.taken);
      std::memcpy(data + *moved, segment.data.data() + segment.taken, piece);
      *moved += piece;
      segment.taken += piece;
      if (segment.taken == segment.data.size()) stream.segments.pop_front();
    }
    if (*moved == 0) return Status::Ok();
    me.now += network_.model_.seconds_a_call;
    stream.unread -= *moved;
    CountMoved(*moved);
    Rank& other = network_.rank(peer);
    if (other.waiting) network_.Schedule(peer, std::max(me.now, other.now));  // its window may have been full
    return Status::Ok();
  }

  Status AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from) override {
    Rank& me = network_.rank(rank());
    double next = kNever;
    for (const int peer : receivers_from) {
      if (peer < 0) continue;
      const Stream& stream = me.from[peer];
      if (!stream.segments.empty()) next = std::min(next, std::max(me.now, stream.segments.front().arrival));
    }
    for (const int peer : senders_to) {
      if (peer < 0) continue;
      const Stream& stream = network_.rank(peer).from[rank()];
      if (stream.unread < network_.model_.window_bytes) next = me.now;
    }
    me.waiting = true;
    me.wake = kNever;
    if (next < kNever) network_.Schedule(rank(), next);
    me.fiber->Pause();
    return Status::Ok();
  }

 private:
  SimulatedNetwork& network_;
};

SimulatedNetwork::SimulatedNetwork(const NetworkModel& model)
    : model_(model),
      ranks_(static_cast<size_t>(model.hosts * model.ranks_per_host)),
      link_out_free_(static_cast<size_t>(model.hosts), 0),
      link_in_free_(static_cast<size_t>(model.hosts), 0),
      local_free_(static_cast<size_t>(model.hosts), 0) {
  for (int index = 0; index < size(); ++index) {
    rank(index).group = std::make_unique<Group>(this, index);
  }
}

SimulatedNetwork::~SimulatedNetwork() = default;

void SimulatedNetwork::Schedule(int index, double time) {
  Rank& sleeper = rank(index);
  if (time >= sleeper.wake) return;  // it is woken before that anyhow
  sleeper.wake = time;
  events_.push({time, next_order_++, index});
}

// A rank whose clock is ahead waits for those that are behind, so that links are taken in the order of time.
void SimulatedNetwork::LetOthersCatchUp(Rank& me, int index) {
  while (!events_.empty() && events_.top().time < me.now) {
    me.wake = kNever;
    me.waiting = false;  // nothing but its own event may resume it
    Schedule(index, me.now);
    me.fiber->Pause();
  }
}

double SimulatedNetwork::Transmit(int from, int to, size_t bytes, double at) {
  const auto source = static_cast<size_t>(HostOf(from));
  const auto target = static_cast<size_t>(HostOf(to));
  if (source == target) {
    const double ends = std::max(at, local_free_[source]) + static_cast<double>(bytes) / model_.local_bytes_per_second;
    local_free_[source] = ends;
    return ends + model_.local_latency;
  }
  const auto size = static_cast<double>(bytes);
  const double out = size / LinkRate(source);
  const double in = size / LinkRate(target);
  double leaves = std::max(at, link_out_free_[source]);
  link_out_free_[source] = leaves + out;
  if (model_.core_bytes_per_second > 0) {
    // In the order in which ranks send: what waits for its own link keeps no others from the switch.
    core_free_ = std::max(at, core_free_) + size / model_.core_bytes_per_second;
    leaves = std::max(leaves, core_free_);
  }
  link_in_free_[target] = std::max(leaves + model_.latency, link_in_free_[target]) + in;
  return link_in_free_[target] + std::max(0.0, out - in);  // the last byte of a slow link leaves later
}

double SimulatedNetwork::LinkRate(size_t host) const {
  return static_cast<int>(host) == model_.slow_host ? model_.bytes_per_second / 10 : model_.bytes_per_second;
}

void SimulatedNetwork::Run(const std::function<void(StreamGroup& group)>& body) {
  double start = 0;
  for (const Rank& each : ranks_) start = std::max(start, each.now);
  for (int index = 0; index < size(); ++index) {
    Rank& each = rank(index);
    each.fiber = std::make_unique<Fiber>([&body, &each] { body(*each.group); });
    each.now = start;
    each.done = false;
    each.waiting = true;
    each.wake = kNever;
    Schedule(index, start);
  }
  int running = size();
  while (running > 0) {
    if (events_.empty()) {
      std::string who;
      for (int index = 0; index < size(); ++index) {
        if (!rank(index).done) who += " " + std::to_string(index);
      }
      Fail(__FILE__, __LINE__, "deadlock: nothing is on its way, and these ranks wait:" + who);
    }
    const Event event = events_.top();
    events_.pop();
    Rank& next = rank(event.rank);
    if (next.done || event.time != next.wake) continue;  // overtaken by an earlier one
    next.wake = kNever;
    next.waiting = false;
    next.now = std::max(next.now, event.time);
    next.fiber->Resume();
    if (!next.fiber->done()) continue;
    next.done = true;
    next.cost.seconds = next.now - began_;
    --running;
  }
}

void SimulatedNetwork::Spend(const StreamGroup& group, double seconds) {
  Rank& me = rank(group.rank());
  me.now += seconds;
  LetOthersCatchUp(me, group.rank());
}

const Cost& SimulatedNetwork::cost(int index) const { return ranks_[static_cast<size_t>(index)].cost; }

Cost SimulatedNetwork::largest() const {
  Cost most;
  for (const Rank& each : ranks_) {
    most.messages = std::max(most.messages, each.cost.messages);
    most.bytes_sent = std::max(most.bytes_sent, each.cost.bytes_sent);
    most.bytes_across = std::max(most.bytes_across, each.cost.bytes_across);
    most.seconds = std::max(most.seconds, each.cost.seconds);
  }
  return most;
}

void SimulatedNetwork::ResetCosts() {
  began_ = 0;
  for (Rank& each : ranks_) began_ = std::max(began_, each.now);
  for (Rank& each : ranks_) each.cost = Cost{};
}

}  // namespace spark_estimator::testing
