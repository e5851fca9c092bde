// The ranks of one host as threads of one process, joined by segments alone.
#ifndef SPARK_ESTIMATOR_TESTS_SHARED_RANKS_H_
#define SPARK_ESTIMATOR_TESTS_SHARED_RANKS_H_

#include <fcntl.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "transport/arena.h"
#include "transport/shared_group.h"

namespace spark_estimator::testing {

// Alive until a test changes it.
class Life : public Liveness {
 public:
  Status Check() override { return gone ? Status(SE_PEER_LOST, "a peer is gone") : Status::Ok(); }
  std::atomic<bool> gone{false};
};

struct SharedRank {
  SharedGroup group;
  Life life;
  std::unique_ptr<Arena> arena;

  int rank() const { return group.rank; }
  int size() const { return group.size; }
  // Memory of this rank's arena, and in `seen` where this rank sees that of all. All ranks must allocate alike.
  uint8_t* AllocateShared(size_t bytes, std::vector<uint8_t*>* seen) {
    void* data = nullptr;
    const Status status = arena->Allocate(bytes, &data);
    if (!status.ok()) Fail(__FILE__, __LINE__, status.message());
    uint64_t offset = 0;
    CHECK(arena->Find(data, bytes, &offset));
    for (Segment& segment : group.segments) seen->push_back(segment.arena() + offset);
    return static_cast<uint8_t*>(data);
  }
};

inline void CheckOk(const Status& status) {
  if (!status.ok()) Fail(__FILE__, __LINE__, status.message());
}

struct SharedOptions {
  int cores = 2;
  int spin_microseconds = -1;
  uint32_t first_number = 0;  // of blocks and small ops: near its end, the counters wrap in the test
};

inline void RunSharedRanks(int size, const SharedOptions& options, const std::function<void(SharedRank&)>& body) {
  std::vector<UniqueFd> fds(static_cast<size_t>(size));
  for (UniqueFd& fd : fds) CheckOk(Segment::Create(size, &fd));
  std::vector<std::unique_ptr<SharedRank>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    auto made = std::make_unique<SharedRank>();
    SharedGroup& group = made->group;
    group.rank = rank;
    group.size = size;
    group.segments.resize(fds.size());
    for (size_t i = 0; i < fds.size(); ++i) CheckOk(group.segments[i].Map(fds[i].get(), size));
    Segment& mine = group.mine();
    for (Flag* flag : {&mine.input_posted(), &mine.output_posted(), &mine.small_posted(), &mine.arena_posted()}) {
      flag->value = options.first_number;
    }
    group.next_block = group.next_small = group.next_arena = options.first_number;
    group.waiting = Waiting(size, options.cores, options.spin_microseconds);
    group.liveness = &made->life;
    made->arena = std::make_unique<Arena>(UniqueFd(fcntl(fds[static_cast<size_t>(rank)].get(), F_DUPFD_CLOEXEC, 3)),
                                          mine.arena_offset(), mine.arena(), mine.arena_bytes());
    ranks.push_back(std::move(made));
  }
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_SHARED_RANKS_H_
