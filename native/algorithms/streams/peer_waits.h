// The wait of an operation that exchanges data with every other rank.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_PEER_WAITS_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_PEER_WAITS_H_

#include <vector>

#include "base/status.h"
#include "transport/stream_group.h"

namespace spark_estimator {

// Keeps its memory, so that a wait allocates nothing after the first one.
class PeerWaits {
 public:
  // `peers`: each has a `rank`. The functions tell, of a peer, whether the operation waits to send or to receive.
  template <typename Peers, typename HasToSend, typename HasToReceive>
  Status Await(StreamGroup& group, const Peers& peers, HasToSend has_to_send, HasToReceive has_to_receive) {
    senders_to_.clear();
    receivers_from_.clear();
    for (const auto& peer : peers) {
      if (has_to_send(peer)) senders_to_.push_back(peer.rank);
      if (has_to_receive(peer)) receivers_from_.push_back(peer.rank);
    }
    return group.AwaitReady(senders_to_, receivers_from_);
  }

 private:
  std::vector<int> senders_to_;
  std::vector<int> receivers_from_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_PEER_WAITS_H_
