// What a TCP connection has been given to send and has not sent yet, by the kernel's own count.
#ifndef SPARK_ESTIMATOR_TRANSPORT_SEND_QUEUE_H_
#define SPARK_ESTIMATOR_TRANSPORT_SEND_QUEUE_H_

#include <cstdint>

namespace spark_estimator {

struct SendQueue {
  bool has_unsent = false;
  // For how many nanoseconds since the connection was opened the peer had no room for more (RFC 4898).
  int64_t held_nanoseconds = 0;
};

// An empty queue for other sockets, and for Linux before 4.10.
SendQueue ReadSendQueue(int fd);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_SEND_QUEUE_H_
