// Ranks that die, leave early, or send invalid frames: the others learn which, and no rank hangs.
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "ranks.h"
#include "victim.h"

namespace {

using namespace spark_estimator::testing;

const std::vector<Channel> kChannels = {Channel::kShared, Channel::kStream};

void DeathWhileOthersWait() {
  for (const Channel channel : kChannels) {
    for (const int size : {2, 3}) {
      for (int victim = 0; victim < size; ++victim) {
        const int killer = victim == 0 ? 1 : 0;
        std::atomic<int> past_the_first{0};
        WithVictim(
            size, victim, {.channel = channel},
            [&](Rank& me) {
              std::vector<float> x(10, 1);
              me.WaitOk(me.Allreduce("first", x.data(), x.data(), {10}));
            },
            [&](Rank& me, pid_t child) {
              std::vector<float> x(10, 1);
              me.WaitOk(me.Allreduce("first", x.data(), x.data(), {10}));
              ++past_the_first;
              const Submitted pending = me.Allreduce("second", x.data(), x.data(), {10});
              while (past_the_first < size - 1) std::this_thread::yield();
              if (me.rank == killer) kill(child, SIGKILL);
              CHECK_EQ(me.Wait(pending), SE_PEER_LOST);
              CHECK_CONTAINS(se_last_error(), "rank " + std::to_string(victim) + " on testhost is lost");
              CHECK_CONTAINS(se_last_error(), "allreduce 'second' failed");
              CHECK_EQ(me.Allreduce("third", x.data(), x.data(), {10}).status, SE_PEER_LOST);
              CHECK_CONTAINS(se_last_error(), "rank " + std::to_string(victim));
            });
      }
    }
  }
}

// Killed in the middle of the data: large allreduces without end, so that the kill falls into one.
void DeathInsideACollective() {
  for (const Channel channel : kChannels) {
    const auto reduce_for_ever = [](Rank& me) {
      std::vector<float> x(3000000, 0);
      while (true) {
        const int32_t status = me.Wait(me.Allreduce("big", x.data(), x.data(), {3000000}));
        if (status != SE_OK) return status;
      }
    };
    WithVictim(
        3, 1, {.channel = channel}, [&](Rank& me) { reduce_for_ever(me); },
        [&](Rank& me, pid_t child) {
          std::thread killer;
          if (me.rank == 0) {
            killer = std::thread([&] {
              std::this_thread::sleep_for(std::chrono::milliseconds(300));
              kill(child, SIGKILL);
            });
          }
          CHECK_EQ(reduce_for_ever(me), SE_PEER_LOST);
          CHECK_CONTAINS(se_last_error(), "rank 1 on testhost is lost");
          if (killer.joinable()) killer.join();
        });
  }
}

void LeavingFailsWhatIsPending() {
  for (const Channel channel : kChannels) {
    for (int leaver = 0; leaver < 3; ++leaver) {
      RunRanks(3, {.channel = channel}, [&](Rank& me) {
        std::vector<float> x(50000, 1);
        me.WaitOk(me.Allreduce("first", x.data(), x.data(), {50000}));
        if (me.rank == leaver) {
          const Submitted own = me.Allreduce("own", x.data(), x.data(), {10});
          CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
          CHECK_EQ(me.Wait(own), SE_SHUT_DOWN);
          CHECK_EQ(me.Allreduce("more", x.data(), x.data(), {10}).status, SE_SHUT_DOWN);
          CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);  // again: nothing happens
          return;
        }
        CHECK_EQ(me.Wait(me.Allreduce("second", x.data(), x.data(), {10})), SE_SHUT_DOWN);
        CHECK_CONTAINS(se_last_error(), "rank " + std::to_string(leaver) + " on testhost has left the job");
      });
    }
  }
}

// The last op's data must reach everybody although some ranks leave at once after it.
void LeavingLosesNothing() {
  for (const Channel channel : kChannels) {
    for (int round = 0; round < 30; ++round) {
      RunRanks(4, {.channel = channel}, [&](Rank& me) {
        std::vector<float> x(200000, me.rank == 2 ? 7.0f : 0.0f);
        me.WaitOk(me.Broadcast("last", 2, x.data(), x.data(), {200000}));
        for (const float v : x) CHECK_EQ(v, 7.0f);
      });
    }
  }
}

// Bytes that are no frame, on an established control connection.
void NonsenseBreaksTheLinkNotTheProcess() {
  Wiring wiring = Wire(2, {.channel = Channel::kStream});
  const int stolen = Dup(wiring.peers[1][0].control_fd);  // rank 1's end
  std::thread other([&] {
    Rank me(1, 2, Join(wiring, 1));
    std::vector<float> x(4, 1);
    me.WaitOk(me.Allreduce("x", x.data(), x.data(), {4}));
    CHECK(send(stolen, "GET / HTTP/1.1\r\n\r\n and more to fill a header", 44, MSG_NOSIGNAL) > 0);
    CHECK_EQ(me.Wait(me.Allreduce("y", x.data(), x.data(), {4})), SE_PEER_LOST);
    se_engine_destroy(me.engine);
  });
  Rank me(0, 2, Join(wiring, 0));
  std::vector<float> x(4, 1);
  me.WaitOk(me.Allreduce("x", x.data(), x.data(), {4}));
  CHECK_EQ(me.Wait(me.Allreduce("y", x.data(), x.data(), {4})), SE_PEER_LOST);
  CHECK_CONTAINS(se_last_error(), "no control frame");
  other.join();
  se_engine_destroy(me.engine);
  close(stolen);
}

void CreationSaysWhoIsMissing() {
  Wiring wiring = Wire(2, {.channel = Channel::kStream});
  wiring.configs[0].start_timeout_seconds = 0.3;
  se_engine* engine = nullptr;
  CHECK_EQ(se_engine_create(&wiring.configs[0], wiring.peers[0].data(), &engine), SE_TIMED_OUT);
  CHECK_CONTAINS(se_last_error(), "rank 1 on testhost");
  // Rank 0 had sent its hello before it gave up, so rank 1 learns of that with its first request.
  Rank late(1, 2, Join(wiring, 1));
  std::vector<float> x(4, 1);
  CHECK_EQ(late.Wait(late.Allreduce("x", x.data(), x.data(), {4})), SE_PEER_LOST);
  CHECK_CONTAINS(se_last_error(), "rank 0 on testhost");
  se_engine_destroy(late.engine);
}

void WrongSegmentsAreRefused() {
  Wiring wiring = Wire(2, {.channel = Channel::kShared});
  int wrong = -1;
  CHECK_EQ(se_segment_create(5, &wrong), SE_OK);
  close(wiring.peers[0][0].segment_fd);
  wiring.peers[0][0].segment_fd = wrong;
  se_engine* engine = nullptr;
  CHECK_EQ(se_engine_create(&wiring.configs[0], wiring.peers[0].data(), &engine), SE_INVALID_ARGUMENT);
  CHECK_CONTAINS(se_last_error(), "the segment of rank 1");
  CHECK(se_engine_create(&wiring.configs[1], wiring.peers[1].data(), &engine) != SE_OK);
}

// A forked child cannot use the ring and does not disturb it, and its copies of the sockets do not hide a death.
void ForkedChild() {
  RunRanks(2, {}, [&](Rank& me) {
    std::vector<float> x(4, 1);
    me.WaitOk(me.Barrier("before"));
    const pid_t child = fork();
    if (child == 0) {
      se_engine_abandon_after_fork(me.engine);
      const bool refused = me.Allreduce("x", x.data(), x.data(), {4}).status == SE_INVALID_ARGUMENT;
      se_engine_destroy(me.engine);
      _exit(refused ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    me.WaitOk(me.Allreduce("x", x.data(), x.data(), {4}));
    CHECK_EQ(x[0], 2.0f);
  });
}

}  // namespace

int main() {
  return RunTests({{"death while others wait", DeathWhileOthersWait},
                   {"death inside a collective", DeathInsideACollective},
                   {"leaving fails what is pending", LeavingFailsWhatIsPending},
                   {"leaving loses nothing", LeavingLosesNothing},
                   {"nonsense breaks the link, not the process", NonsenseBreaksTheLinkNotTheProcess},
                   {"creation says who is missing", CreationSaysWhoIsMissing},
                   {"wrong segments are refused", WrongSegmentsAreRefused},
                   {"forked child", ForkedChild}});
}
