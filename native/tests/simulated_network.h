// A modelled network behind StreamGroup: the real algorithms of up to a thousand ranks in one thread, on virtual time.
//
// Every rank is a fiber that runs until it waits; a queue of events decides which fiber continues, and when. A byte
// costs time on its host's link out and on the other host's link in, which all ranks of a host share; a call costs its
// rank time. A wait that nothing can end is reported as the deadlock that it is.
#ifndef SPARK_ESTIMATOR_TESTS_SIMULATED_NETWORK_H_
#define SPARK_ESTIMATOR_TESTS_SIMULATED_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <vector>

#include "fiber.h"
#include "transport/stream_group.h"

namespace spark_estimator::testing {

// What is modelled; times in seconds.
struct NetworkModel {
  int hosts = 2;
  int ranks_per_host = 1;                 // rank r is on host r / ranks_per_host
  double latency = 25e-6;                 // between hosts, one way
  double bytes_per_second = 3.125e9;      // of a host's link, each way: 25 Gbit/s
  int slow_host = -1;                     // whose link has a tenth of that rate; -1: none
  double core_bytes_per_second = 0;       // of the switch between all hosts; 0: it is no limit
  double local_latency = 5e-6;            // between two ranks of one host, by sockets
  double local_bytes_per_second = 5e9;    // of all ranks of a host together, by sockets
  double seconds_a_call = 1.5e-6;         // that a send or a receive takes its rank
  size_t segment_bytes = 64 << 10;        // what is sent as one
  size_t window_bytes = size_t{1} << 20;  // sent and not yet received, of one rank to one other
};

// What one rank has spent.
struct Cost {
  int64_t messages = 0;  // sends that moved something
  int64_t bytes_sent = 0;
  int64_t bytes_across = 0;  // of those, to other hosts
  double seconds = 0;        // virtual time
};

class SimulatedNetwork {
 public:
  explicit SimulatedNetwork(const NetworkModel& model);
  ~SimulatedNetwork();

  // Runs `body` on every rank from the present time on, until all have returned. `group` is the rank's own, the same at
  // every run.
  void Run(const std::function<void(StreamGroup& group)>& body);
  // Inside a body: lets the rank be busy for this time.
  void Spend(const StreamGroup& group, double seconds);

  int size() const { return static_cast<int>(ranks_.size()); }
  int HostOf(int rank) const { return rank / model_.ranks_per_host; }
  // Since the last ResetCosts; seconds count from there.
  const Cost& cost(int rank) const;
  Cost largest() const;  // of each kind over all ranks
  void ResetCosts();

 private:
  class Group;
  struct Segment {
    std::vector<uint8_t> data;
    size_t taken = 0;
    double arrival = 0;
  };
  struct Stream {
    std::deque<Segment> segments;
    size_t unread = 0;
  };
  struct Rank {
    std::unique_ptr<Group> group;
    std::unique_ptr<Fiber> fiber;
    double now = 0;
    double wake = 0;  // of its event
    bool waiting = false;
    bool done = true;
    std::map<int, Stream> from;  // by peer; only those that have sent
    Cost cost;
  };
  struct Event {
    double time;
    int64_t order;  // equal times: first come, first served, so that every run is the same
    int rank;
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : order > other.order; }
  };

  Rank& rank(int index) { return ranks_[static_cast<size_t>(index)]; }
  // Yields to the earliest event.
  void LetOthersCatchUp(Rank& me, int index);
  void Schedule(int index, double time);
  double Transmit(int from, int to, size_t bytes, double at);
  double LinkRate(size_t host) const;

  const NetworkModel model_;
  std::vector<Rank> ranks_;
  std::vector<double> link_out_free_;
  std::vector<double> link_in_free_;
  std::vector<double> local_free_;
  double core_free_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t next_order_ = 0;
  double began_ = 0;
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_SIMULATED_NETWORK_H_
