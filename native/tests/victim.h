// One rank of a job in a separate process, which fails, and the others as threads of this one.
#ifndef SPARK_ESTIMATOR_TESTS_VICTIM_H_
#define SPARK_ESTIMATOR_TESTS_VICTIM_H_

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

#include "ranks.h"

namespace spark_estimator::testing {

inline void CloseDescriptors(const Wiring& wiring, int rank) {
  const auto index = static_cast<size_t>(rank);
  if (wiring.configs[index].own_segment_fd >= 0) close(wiring.configs[index].own_segment_fd);
  for (const se_peer& peer : wiring.peers[index]) {
    close(peer.control_fd);
    for (int i = 0; i < peer.data_count; ++i) close(peer.data_fds[i]);
    if (peer.segment_fd >= 0) close(peer.segment_fd);
  }
}

// Runs `in_child` for rank `victim` in a child process, which exits with what that returns, and `in_survivor` for each
// other rank in a thread. Neither has an engine yet. Gives the child's status, as waitpid() does.
inline int WithVictimToStart(int size, int victim, const JobOptions& options,
                             const std::function<int(Wiring&)>& in_child,
                             const std::function<void(Wiring&, int rank, pid_t child)>& in_survivor) {
  Wiring wiring = Wire(size, options);
  const pid_t child = fork();
  if (child == 0) {
    for (int rank = 0; rank < size; ++rank) {  // the child holds its own ends only
      if (rank != victim) CloseDescriptors(wiring, rank);
    }
    _exit(in_child(wiring));
  }
  CloseDescriptors(wiring, victim);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    threads.emplace_back([&, rank] { in_survivor(wiring, rank, child); });
  }
  for (std::thread& thread : threads) thread.join();
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

// The same with engines. The child is to be killed by a survivor: it does not leave.
inline void WithVictim(int size, int victim, const JobOptions& options, const std::function<void(Rank&)>& in_child,
                       const std::function<void(Rank&, pid_t)>& in_survivor) {
  WithVictimToStart(
      size, victim, options,
      [&](Wiring& wiring) -> int {
        Rank me(victim, size, Join(wiring, victim));
        in_child(me);
        while (true) pause();
      },
      [&](Wiring& wiring, int rank, pid_t child) {
        Rank me(rank, size, Join(wiring, rank));
        in_survivor(me, child);
        se_engine_destroy(me.engine);
      });
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_VICTIM_H_
