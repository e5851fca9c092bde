// Operations that make no progress although all ranks have agreed on them: waits with a time-out end, another thread
// continues the unfinished operation, and the awaited rank is reported. A wait that does not end is ended by the alarm.
#include <unistd.h>

#include <cstdio>
#include <numeric>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "held_link.h"
#include "ranks.h"

namespace {

using namespace spark_estimator::testing;

constexpr unsigned kAlarm = 120;
constexpr size_t kCount = 1 << 18;  // floats: more than a socket takes at once, or is sent with a proposal

std::string RunningOn(se_engine* engine) {
  char text[1024];
  int64_t bytes = 0;
  CHECK_EQ(se_describe(engine, "running", text, sizeof(text), &bytes), SE_OK);
  return text;
}

// An allreduce that its caller waits for by short waits.
struct Reduced {
  explicit Reduced(float value) : input(kCount, value), output(kCount) {}
  Asked asked(const char* name, const float* source = nullptr) {
    Asked asked(name, SE_ALLREDUCE);
    asked.With(source != nullptr ? source : input.data(), output.data(), {static_cast<int64_t>(kCount)});
    return asked;
  }
  // The handle of one that has not ended after a short wait.
  int64_t Begin(se_engine* engine, const char* name) {
    int64_t handle = 0;
    CHECK_EQ(se_run(engine, asked(name).get(), 0.1, &handle), SE_IN_PROGRESS);
    CHECK(handle > 0);
    return handle;
  }
  void CheckSum(float value) const {
    for (const float element : output) CHECK_EQ(element, value);
  }

  std::vector<float> input;
  std::vector<float> output;
};

std::string AwaitRunning(se_engine* engine, int64_t handle) {
  while (RunningOn(engine).empty()) CHECK_EQ(se_wait(engine, handle, 0.05), SE_IN_PROGRESS);
  return RunningOn(engine);
}

// Two ranks whose data link can be held, after an operation by which 'x' is known.
void RunHeld(const JobOptions& options, const std::function<void(Rank&, HeldLink&)>& body) {
  Wiring wiring = Wire(2, options);
  HeldLink link(wiring);
  std::vector<std::thread> threads;
  std::binary_semaphore ready(0);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Rank me(rank, 2, Join(wiring, rank));
      Reduced warm(1);
      for (int i = 0; i < 2; ++i) me.RunOk(warm.asked("x"));
      me.RunOk(Asked("barrier", SE_BARRIER));
      if (rank == 0) {
        link.Hold();
        ready.release();
      } else {
        ready.acquire();
      }
      body(me, link);
      se_engine_destroy(me.engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

JobOptions OverSockets() {
  JobOptions options;
  options.channel = Channel::kStream;
  return options;
}

// What a caller has left half run ends as if it had been waited for: here, by a later wait on the same handle.
void AWaitEndsWhileSocketsAreHeld() {
  std::binary_semaphore both(0);
  RunHeld(OverSockets(), [&](Rank& me, HeldLink& link) {
    Reduced sum(static_cast<float>(me.rank + 1));
    const int64_t handle = sum.Begin(me.engine, "x");
    const std::string running = AwaitRunning(me.engine, handle);
    CHECK_CONTAINS(running,
                   "allreduce 'x' (1048576 bytes) is running and waits for rank " + std::to_string(1 - me.rank));
    CHECK_EQ(se_poll(me.engine, handle), SE_IN_PROGRESS);
    if (me.rank == 0) {
      both.acquire();
      link.LetGo();
    } else {
      both.release();
    }
    me.WaitOk({SE_OK, handle});
    sum.CheckSum(3);
    // The thread that ran it reports it after it has completed the handle.
    while (!RunningOn(me.engine).empty()) std::this_thread::yield();
    // Callers continue by rounds as before.
    for (int i = 0; i < 3; ++i) me.RunOk(sum.asked("x"));
    sum.CheckSum(3);
  });
}

void AWaitEndsWhileAPeerIsHeldInSharedMemory() {
  JobOptions options;
  options.heartbeat_seconds = 0;  // the thread that is held would give none
  HeldMemory memory(kCount * sizeof(float));
  RunRanks(2, options, [&](Rank& me) {
    Reduced sum(1);
    for (int i = 0; i < 2; ++i) me.RunOk(sum.asked("x"));
    if (me.rank == 1) {
      me.RunOk(sum.asked("x", memory.get()));
    } else {
      const int64_t handle = sum.Begin(me.engine, "x");
      CHECK_CONTAINS(AwaitRunning(me.engine, handle), "waits for rank 1 on testhost");
      CHECK_EQ(se_poll(me.engine, handle), SE_IN_PROGRESS);
      memory.LetGo();
      me.WaitOk({SE_OK, handle});
    }
    sum.CheckSum(1);
    for (int i = 0; i < 3; ++i) me.RunOk(sum.asked("x"));
    sum.CheckSum(2);
  });
}

// A caller that waits without end gets what another one has left, and what was submitted meanwhile is run after it.
void OthersWaitForWhatWasLeft() {
  std::binary_semaphore both(0);
  RunHeld(OverSockets(), [&](Rank& me, HeldLink& link) {
    Reduced sum(1), later(2);
    const int64_t handle = sum.Begin(me.engine, "x");
    AwaitRunning(me.engine, handle);
    std::thread other([&] { me.WaitOk({SE_OK, handle}); });
    const Submitted submitted = me.Submit(later.asked("later"));
    CHECK_EQ(se_wait(me.engine, submitted.handle, 0.05), SE_IN_PROGRESS);
    if (me.rank == 0) {
      both.acquire();
      link.LetGo();
    } else {
      both.release();
    }
    other.join();
    me.WaitOk(submitted);
    sum.CheckSum(2);
    later.CheckSum(4);
  });
}

// After the engine's end nothing is written to the memory of an unfinished operation.
void ARankLeavesInTheMiddle() {
  std::binary_semaphore both(0);
  RunHeld(OverSockets(), [&](Rank& me, HeldLink& link) {
    auto sum = std::make_unique<Reduced>(1);
    const int64_t handle = sum->Begin(me.engine, "x");
    AwaitRunning(me.engine, handle);
    if (me.rank == 0) {
      both.acquire();
      CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
      CHECK_EQ(se_wait(me.engine, handle, 0), SE_SHUT_DOWN);
      sum.reset();
      link.LetGo();
    } else {
      both.release();
      const int32_t status = me.Wait({SE_OK, handle});
      CHECK(status == SE_SHUT_DOWN || status == SE_PEER_LOST);
      CHECK_CONTAINS(se_last_error(), "rank 0 on testhost");
    }
  });
}

// The waiting one gives up, whether it drives itself or the engine's thread does, and names the awaited rank.
void WithoutProgressItIsGivenUp() {
  JobOptions options = OverSockets();
  options.stall_shutdown_seconds = 0.3;
  for (const char* name : {"x", "new"}) {
    RunHeld(options, [&](Rank& me, HeldLink&) {
      Reduced sum(1);
      CHECK_EQ(me.Run(sum.asked(name)), SE_PEER_LOST);
      const std::string error = se_last_error();
      // The second to give up may get the report of the first.
      CHECK_CONTAINS(error, "on testhost keeps allreduce '" + std::string(name) + "' (1048576 bytes) waiting");
      CHECK_CONTAINS(error, "given up, as HOROVOD_STALL_SHUTDOWN_TIME_SECONDS has passed");
    });
  }
}

// What is written to stderr while it exists.
class Stderr {
 public:
  Stderr() : file_(std::tmpfile()), before_(dup(2)) { dup2(fileno(file_), 2); }
  ~Stderr() {
    dup2(before_, 2);
    close(before_);
    std::fclose(file_);
  }
  std::string Text() const {
    std::string text(1 << 14, '\0');
    const ssize_t count = pread(fileno(file_), text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }

 private:
  std::FILE* file_;
  int before_;
};

void WithoutProgressItIsReported() {
  JobOptions options = OverSockets();
  options.stall_warning_seconds = 0.2;
  const Stderr written;
  std::binary_semaphore both(0);
  RunHeld(options, [&](Rank& me, HeldLink& link) {
    Reduced sum(1);
    const int64_t handle = sum.Begin(me.engine, "x");
    const std::string own =
        "rank " + std::to_string(me.rank) + ": allreduce 'x' (1048576 bytes) is running and has made no progress";
    while (written.Text().find(own) == std::string::npos) CHECK_EQ(se_wait(me.engine, handle, 0.05), SE_IN_PROGRESS);
    if (me.rank == 0) {
      both.acquire();
      link.LetGo();
    } else {
      both.release();
    }
    me.WaitOk({SE_OK, handle});
  });
  CHECK_CONTAINS(written.Text(), "it waits for rank 0 on testhost");
  CHECK_CONTAINS(written.Text(), "it waits for rank 1 on testhost");
  CHECK_CONTAINS(written.Text(), "bytes sent and received");
}

}  // namespace

int main() {
  alarm(kAlarm);
  return RunTests({{"a wait ends while sockets are held", AWaitEndsWhileSocketsAreHeld},
                   {"a wait ends while a peer is held in shared memory", AWaitEndsWhileAPeerIsHeldInSharedMemory},
                   {"others wait for what was left", OthersWaitForWhatWasLeft},
                   {"a rank leaves in the middle", ARankLeavesInTheMiddle},
                   {"without progress it is given up", WithoutProgressItIsGivenUp},
                   {"without progress it is reported", WithoutProgressItIsReported}});
}
