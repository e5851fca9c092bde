// Asks the kernel; apart from other files, since <linux/tcp.h> and <netinet/tcp.h> exclude each other.
#include "transport/send_queue.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace spark_estimator {

SendQueue ReadSendQueue(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  if (bytes < offsetof(tcp_info, tcpi_rwnd_limited) + sizeof(info.tcpi_rwnd_limited)) return {};
  return {info.tcpi_notsent_bytes > 0, static_cast<int64_t>(info.tcpi_rwnd_limited) * 1000};
}

}  // namespace spark_estimator
