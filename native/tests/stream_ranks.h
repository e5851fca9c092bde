// Several ranks of one group of streams as threads of one process, joined by socket pairs.
#ifndef SPARK_ESTIMATOR_TESTS_STREAM_RANKS_H_
#define SPARK_ESTIMATOR_TESTS_STREAM_RANKS_H_

#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "transport/stream_group.h"

namespace spark_estimator::testing {

class AlwaysAlive : public Liveness {
 public:
  Status Check() override { return Status::Ok(); }
};

inline void CheckOk(const Status& status, const char* file, int line) {
  if (!status.ok()) Fail(file, line, "status " + std::to_string(status.code()) + ": " + status.message());
}
#define CHECK_OK(expression) ::spark_estimator::testing::CheckOk((expression), __FILE__, __LINE__)

// sockets[a][b] is rank a's end of its connections with b. Small buffers force short writes; 0: the system's.
inline std::vector<std::vector<StripedSocket>> ConnectAll(int size, int socket_buffer_bytes = 0, int connections = 1) {
  std::vector<std::vector<StripedSocket>> sockets(static_cast<size_t>(size));
  for (auto& of_rank : sockets) of_rank.resize(static_cast<size_t>(size));
  for (size_t a = 0; a < sockets.size(); ++a) {
    for (size_t b = a + 1; b < sockets.size(); ++b) {
      for (int connection = 0; connection < connections; ++connection) {
        int pair[2];
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        for (const int fd : pair) {
          if (socket_buffer_bytes > 0) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &socket_buffer_bytes, sizeof(int));
        }
        sockets[a][b].Add(UniqueFd(pair[0]));
        sockets[b][a].Add(UniqueFd(pair[1]));
      }
    }
  }
  return sockets;
}

inline void RunStreamRanks(int size, const std::function<void(StreamGroup&)>& body, int socket_buffer_bytes = 0,
                           int connections = 1) {
  auto sockets = ConnectAll(size, socket_buffer_bytes, connections);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      AlwaysAlive alive;
      SocketGroup group(rank, std::move(sockets[static_cast<size_t>(rank)]), &alive);
      body(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_STREAM_RANKS_H_
