// The ranks of a job as connected by streams for bulk bytes: sockets between hosts and inside them, or another
// implementation of the same interface (a part of the ranks, a simulated network).
#ifndef SPARK_ESTIMATOR_TRANSPORT_STREAM_GROUP_H_
#define SPARK_ESTIMATOR_TRANSPORT_STREAM_GROUP_H_

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/late_sockets.h"
#include "transport/liveness.h"
#include "transport/polling.h"
#include "transport/ring_order.h"
#include "transport/striped_socket.h"

namespace spark_estimator {

struct SendPart {
  int peer;
  const uint8_t* data;
  size_t bytes;
};
struct ReceivePart {
  int peer;
  uint8_t* data;
  size_t bytes;
};

// One rank's streams to all others, in order and lossless, without boundaries between what was sent. For one thread at
// a time. An error leaves the group unusable.
class StreamGroup {
 public:
  StreamGroup(const StreamGroup&) = delete;
  StreamGroup& operator=(const StreamGroup&) = delete;
  virtual ~StreamGroup() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t bytes_moved() const { return bytes_moved_; }  // sent and received by this rank since the group was made
  const RingOrder& ring_order() const { return ring_order_; }
  // The same on all ranks, and not while a collective runs.
  void OrderRing(RingOrder order) { ring_order_ = std::move(order); }

  // One attempt: how many bytes could be moved without waiting. An end of the stream is an error.
  virtual Status TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved) = 0;
  virtual Status TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved) = 0;
  // Gives the processor away until one of these streams can probably be used, or for the liveness interval at most; to
  // be called when an attempt on each of them has moved nothing. May return early. Negative peers are ignored.
  virtual Status AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from) = 0;
  // While Liveness is asked: the peers that the group waits for.
  virtual std::vector<int> Awaited() const { return {}; }
  // By any thread: for how many nanoseconds this rank has slept while data that it had given to the kernel was not sent
  // yet, and the peer had room. That is its network's time: in a ring, all ranks wait for a slow link equally.
  virtual int64_t UnsentTime() const { return 0; }
  // In a forked child: gives up what the group holds of the system without a word to the peers.
  virtual void AbandonAfterFork() {}

  // Sends and receives all parts at the same time, in any order of arrival; returns when all are complete. At most one
  // part per peer and direction.
  Status Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives);

  // Memory of the group for the collective that runs, 64-byte aligned, its content undefined; valid until the next
  // call. SE_NO_MEMORY.
  Status Scratch(size_t bytes, uint8_t** memory);

 protected:
  StreamGroup(int rank, int size) : rank_(rank), size_(size), ring_order_(size) {}
  void CountMoved(size_t bytes) { bytes_moved_ += static_cast<int64_t>(bytes); }

 private:
  const int rank_;
  const int size_;
  RingOrder ring_order_;
  int64_t bytes_moved_ = 0;
  // Of Exchange, kept so that a step of a small collective allocates nothing.
  std::vector<SendPart> sends_;
  std::vector<ReceivePart> receives_;
  std::vector<int> senders_to_;
  std::vector<int> receivers_from_;
  struct Freed {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Freed> scratch_;
  size_t scratch_bytes_ = 0;
};

// Over connected stream sockets: TCP between hosts, encrypted or not, Unix sockets inside one.
class SocketGroup : public StreamGroup {
 public:
  // `sockets` [size], by rank, none for oneself, nor for ranks whose connection is made on first use by `late`. That
  // may be null, if there is none of these. `liveness` is asked during waits, at least every kLivenessInterval. Both
  // outlive the group.
  SocketGroup(int rank, std::vector<StripedSocket> sockets, Liveness* liveness, LateSockets* late = nullptr);

  Status TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved) override;
  Status TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved) override;
  Status AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from) override;
  std::vector<int> Awaited() const override;
  int64_t UnsentTime() const override { return unsent_time_.load(std::memory_order_relaxed); }
  void AbandonAfterFork() override;

 private:
  Status CheckLiveness();
  void Moved(size_t bytes);
  Status Failure(const char* what, int peer, int error_number);
  bool IsConnected(int peer) const { return !sockets_[static_cast<size_t>(peer)].sockets().empty(); }
  // Asks for the connection to `peer`, if this rank is the one to ask, and takes what has arrived.
  Status Connect(int peer);
  Status TakeArrivals();
  void WaitFor(int peer, int fd, short events);
  // Of the connection that was sent through last: the first of several, since they are equally busy.
  SendQueue ReadLastQueue() const;

  std::vector<StripedSocket> sockets_;
  Liveness* liveness_;
  LateSockets* late_;
  std::vector<bool> asked_;  // [size], with `late`
  int last_receiver_ = -1;   // whom data was sent to last
  std::atomic<int64_t> unsent_time_{0};
  Time next_check_;
  // Of AwaitReady; side by side.
  std::vector<pollfd> waits_;
  std::vector<int> waits_for_;
  Polling polling_;
};

// Some ranks of another group, renumbered: one ring across hosts, one host's part of a job.
class SubGroup : public StreamGroup {
 public:
  // `members`: ranks of `parent` in the order of their new numbers; this rank is one of them. `parent` outlives the
  // subgroup, and the two are never used at once. Rings pass through the members as through the parent.
  SubGroup(StreamGroup* parent, std::vector<int> members);

  Status TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved) override;
  Status TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved) override;
  Status AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from) override;

 private:
  StreamGroup* parent_;
  std::vector<int> members_;
  std::vector<int> senders_;  // of AwaitReady, in the parent's numbers
  std::vector<int> receivers_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_STREAM_GROUP_H_
