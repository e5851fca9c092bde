// The ranks of a job as connected by stream sockets for bulk bytes: TCP between hosts, Unix sockets inside one.
#ifndef SPARK_ESTIMATOR_TRANSPORT_STREAM_GROUP_H_
#define SPARK_ESTIMATOR_TRANSPORT_STREAM_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/liveness.h"

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

struct StreamGroup {
  int rank = 0;
  int size = 1;
  std::vector<UniqueFd> sockets;  // [size], by rank; none for oneself
  Liveness* liveness = nullptr;
  int64_t bytes_moved = 0;

  // Sends and receives all parts at once, whatever order the bytes come in; returns when the last is through. At most
  // one part a peer and direction.
  Status Exchange(std::span<const SendPart> sends, std::span<const ReceivePart> receives);

  // One attempt: how many bytes could be moved without waiting. An end of file is an error.
  Status TrySend(int peer, const uint8_t* data, size_t bytes, size_t* moved);
  Status TryReceive(int peer, uint8_t* data, size_t bytes, size_t* moved);
  // Waits until one of the sockets can be used, at most for the liveness interval, then asks for liveness.
  // -1 for "none".
  Status AwaitReady(std::span<const int> senders_to, std::span<const int> receivers_from);
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_STREAM_GROUP_H_
