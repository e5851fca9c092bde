// Every allocation of a rank fails once, one after the other: the call returns, the rank leaves, its peers learn which
// rank failed and why, and no result is wrong.
//
// The rank whose allocations fail is a separate process, so that those of its engine's thread fail, too.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "ranks.h"
#include "victim.h"

namespace {

// How many allocations of this process still succeed; none is counted while it is negative.
std::atomic<int64_t> left_to_succeed{-1};
std::atomic<bool> all_fail_then{false};
std::atomic<bool> has_failed{false};

bool FailsNow() {
  if (left_to_succeed.load(std::memory_order_relaxed) < 0) return false;
  int64_t left = left_to_succeed.load();
  while (left > 0 && !left_to_succeed.compare_exchange_weak(left, left - 1)) {
  }
  if (left != 0) return false;
  if (!all_fail_then) left_to_succeed = -1;
  has_failed = true;
  return true;
}

}  // namespace

// Not inlined: the compiler would see a free() of memory from new.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = FailsNow() ? nullptr : std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new[](size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace {

using namespace spark_estimator::testing;

// Much longer than any run takes, on any machine. The test itself reports where it hangs.
constexpr unsigned kHang = 100;  // seconds
constexpr double kLongestWait = 60;

char where[256];
void SayWhereItHangs(int) {
  [[maybe_unused]] const ssize_t n = write(2, where, strlen(where));
  _exit(3);
}
void Watch(const std::string& text) {
  std::snprintf(where, sizeof(where), "hangs: %s\n", text.c_str());
  signal(SIGALRM, SayWhereItHangs);
  alarm(kHang);
}

// What a rank asks for, with the memory for it. Everything is allocated before allocations fail.
struct Work {
  std::vector<Asked> asked;
  std::vector<std::vector<float>> memory;
  // Whether the results of request `index` are right; `handle` is 0 without one.
  std::function<bool(const Rank& me, size_t index, int64_t handle)> right = [](const Rank&, size_t, int64_t) {
    return true;
  };
};

struct Scenario {
  const char* name;
  std::function<Work(const Rank& me)> make;
  bool runs = false;    // by se_run
  bool cached = false;  // once before, without failures
};

bool AllAre(const float* values, size_t count, float value) {
  return std::all_of(values, values + count, [&](float v) { return v == value; });
}

Work Allreduces(const Rank& me, int requests, size_t count, int tensors = 1, bool unnamed = false) {
  Work work;
  for (int i = 0; i < requests * tensors; ++i) work.memory.emplace_back(2 * count, static_cast<float>(me.rank + 1));
  work.asked.reserve(static_cast<size_t>(requests));  // their shapes stay where they are
  for (int i = 0; i < requests; ++i) {
    Asked& asked = work.asked.emplace_back(
        unnamed ? "allreduce.noname" : "a name longer than what a short string holds " + std::to_string(i),
        SE_ALLREDUCE);
    for (int t = 0; t < tensors; ++t) {
      float* data = work.memory[static_cast<size_t>(i * tensors + t)].data();
      asked.With(data, data + count, {static_cast<int64_t>(count)});
    }
    if (unnamed) asked.Unnamed();
  }
  return work;
}

const float* ResultOf(const Rank& me, int64_t handle, int64_t* bytes) {
  se_result result{};
  if (se_get_result(me.engine, handle, 0, &result) != SE_OK) return nullptr;
  *bytes = result.bytes;
  return static_cast<const float*>(result.data);
}

Work Gathers(const Rank& me, int32_t op, size_t count) {
  Work work;
  work.memory.emplace_back(count * static_cast<size_t>(me.size), static_cast<float>(me.rank + 1));
  Asked& asked = work.asked.emplace_back("gather", op);
  const int64_t rows = static_cast<int64_t>(op == SE_ALLGATHER ? count : count * static_cast<size_t>(me.size));
  asked.With(work.memory[0].data(), nullptr, {rows});
  work.right = [count](const Rank& rank, size_t, int64_t handle) {
    int64_t bytes = 0;
    const float* data = ResultOf(rank, handle, &bytes);
    if (data == nullptr) return true;  // there was no memory to report it
    if (bytes != static_cast<int64_t>(count * static_cast<size_t>(rank.size) * sizeof(float))) return false;
    for (int from = 0; from < rank.size; ++from) {
      if (!AllAre(data + static_cast<size_t>(from) * count, count, static_cast<float>(from + 1))) return false;
    }
    return true;
  };
  return work;
}

Work Broadcasts(const Rank& me, size_t count) {
  Work work;
  work.memory.emplace_back(count, static_cast<float>(me.rank + 1));
  work.asked.emplace_back("broadcast", SE_BROADCAST)
      .With(work.memory[0].data(), work.memory[0].data(), {static_cast<int64_t>(count)});
  return work;
}

Work Plain(int32_t op) {
  Work work;
  work.asked.emplace_back("plain", op);
  return work;
}

Work Scatters(const Rank& me, size_t count) {
  Work work;
  const size_t size = static_cast<size_t>(me.size);
  work.memory.emplace_back(count * (size + 1), static_cast<float>(me.rank + 1));
  work.asked.emplace_back("scatter", SE_REDUCESCATTER)
      .With(work.memory[0].data(), work.memory[0].data() + count * size, {static_cast<int64_t>(count * size)});
  return work;
}

// Whether the outputs in `work` of request `index` are what all ranks' inputs make.
bool Right(const Work& work, const Rank& me, size_t index, int64_t handle) {
  const se_request& request = work.asked[index].request;
  const float sum = static_cast<float>(me.size * (me.size + 1)) / 2;
  for (const se_tensor& tensor : work.asked[index].tensors) {
    const auto* output = static_cast<const float*>(tensor.output);
    auto count = static_cast<size_t>(tensor.dims[0]);
    if (request.op == SE_ALLREDUCE && !AllAre(output, count, sum)) return false;
    if (request.op == SE_BROADCAST && !AllAre(output, count, 1)) return false;
    if (request.op == SE_REDUCESCATTER && !AllAre(output, count / static_cast<size_t>(me.size), sum)) return false;
  }
  return handle == 0 || work.right(me, index, handle);
}

struct Ended {
  int32_t status = SE_OK;
  int64_t handle = 0;
};

// Without allocating.
void Do(const Rank& me, Work& work, bool runs, std::vector<Ended>& ended) {
  for (size_t i = 0; i < work.asked.size(); ++i) {
    const se_request* request = &work.asked[i].request;
    ended[i].status = runs ? se_run(me.engine, request, kLongestWait, &ended[i].handle)
                           : se_submit(me.engine, request, &ended[i].handle);
  }
  if (runs) return;
  for (Ended& one : ended) {
    if (one.status == SE_OK) one.status = se_wait(me.engine, one.handle, kLongestWait);
  }
}

void Prepare(const Rank& me, Work& work, const Scenario& scenario) {
  for (Asked& asked : work.asked) asked.get();
  if (!scenario.cached) return;
  std::vector<Ended> ended(work.asked.size());
  for (int i = 0; i < 2; ++i) {
    Do(me, work, scenario.runs, ended);
    for (const Ended& one : ended) CHECK_EQ(one.status, SE_OK);
  }
}

void CheckResults(const Work& work, const Rank& me, const std::vector<Ended>& ended) {
  for (size_t i = 0; i < ended.size(); ++i) {
    CHECK(ended[i].status != SE_IN_PROGRESS);
    if (ended[i].status == SE_OK) CHECK(Right(work, me, i, ended[i].handle));
  }
}

enum Exit : int {
  kNothingFailed = 0,
  kSomethingFailed = 1
};

// The rank whose allocation number `n` fails.
int Suffer(const Scenario& scenario, Wiring& wiring, int rank, int size, int64_t n, bool and_all_after) {
  Rank me(rank, size, Join(wiring, rank));
  Work work = scenario.make(me);
  Prepare(me, work, scenario);
  std::vector<Ended> ended(work.asked.size());
  Asked again("again", SE_BARRIER);
  again.get();
  me.RunOk(Asked("ready", SE_BARRIER));

  all_fail_then = and_all_after;
  left_to_succeed = n;
  Do(me, work, scenario.runs, ended);
  left_to_succeed = -1;

  const std::string message = se_last_error();
  CheckResults(work, me, ended);
  bool was_refused = false;
  bool has_broken = false;
  for (const Ended& one : ended) {
    if (one.status == SE_OK) continue;
    CHECK_EQ(one.status, SE_NO_MEMORY);
    CHECK(has_failed);
    if (!and_all_after) CHECK_CONTAINS(message, "rank " + std::to_string(rank) + " on testhost could not allocate");
    (message.find("was not submitted") != std::string::npos ? was_refused : has_broken) = true;
  }
  // A broken engine reports it at once. One that refused a request continues, and its peers wait for the request: it
  // leaves. Without any memory it could not report which of the two it was.
  if (has_broken && !was_refused && !and_all_after) {
    int64_t handle = 0;
    CHECK_EQ(se_submit(me.engine, &again.request, &handle), SE_NO_MEMORY);
    CHECK_CONTAINS(se_last_error(), "barrier 'again' failed: rank " + std::to_string(rank) + " on testhost could not");
  }
  CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
  se_engine_destroy(me.engine);
  return has_failed ? kSomethingFailed : kNothingFailed;
}

// The errors that a peer of that rank may get.
void CheckHeard(int32_t status, int victim) {
  if (status == SE_OK) return;
  CHECK(status == SE_PEER_LOST || status == SE_SHUT_DOWN);
  CHECK_CONTAINS(se_last_error(), "rank " + std::to_string(victim) + " on testhost ");
  if (status == SE_PEER_LOST) CHECK_CONTAINS(se_last_error(), "could not allocate memory");
}

// All ranks have reached this point. The victim may have finished, and fail, while another is still in the barrier.
bool AreReady(const Rank& me, int victim) {
  const int32_t status = me.Run(Asked("ready", SE_BARRIER));
  CheckHeard(status, victim);
  return status == SE_OK;
}

void Witness(const Scenario& scenario, Wiring& wiring, int rank, int size, int victim) {
  Rank me(rank, size, Join(wiring, rank));
  Work work = scenario.make(me);
  Prepare(me, work, scenario);
  std::vector<Ended> ended(work.asked.size());
  if (!AreReady(me, victim)) {
    se_engine_destroy(me.engine);
    return;
  }
  Do(me, work, scenario.runs, ended);
  CheckResults(work, me, ended);
  for (size_t i = 0; i < ended.size(); ++i) {
    // The sentence of each: the last one may be that of another.
    if (ended[i].status != SE_OK && ended[i].handle != 0) ended[i].status = se_wait(me.engine, ended[i].handle, 0);
    CheckHeard(ended[i].status, victim);
  }
  se_engine_destroy(me.engine);
}

const std::vector<Scenario> kScenarios = {
    {"allreduce", [](const Rank& me) { return Allreduces(me, 1, 4); }},
    {"allreduce, cached", [](const Rank& me) { return Allreduces(me, 1, 4); }, false, true},
    {"allreduce by se_run, cached", [](const Rank& me) { return Allreduces(me, 1, 4); }, true, true},
    {"large allreduce", [](const Rank& me) { return Allreduces(me, 1, 300000); }, true, false},
    {"large allreduce, cached", [](const Rank& me) { return Allreduces(me, 1, 300000); }, true, true},
    {"grouped allreduce", [](const Rank& me) { return Allreduces(me, 1, 1000, 3); }},
    {"fused allreduces, cached", [](const Rank& me) { return Allreduces(me, 3, 1000); }, false, true},
    {"unnamed allreduces", [](const Rank& me) { return Allreduces(me, 3, 4, 1, true); }},
    {"unnamed allreduces, cached", [](const Rank& me) { return Allreduces(me, 3, 4, 1, true); }, false, true},
    {"allgather", [](const Rank& me) { return Gathers(me, SE_ALLGATHER, 5); }, true, false},
    {"large allgather, cached", [](const Rank& me) { return Gathers(me, SE_ALLGATHER, 50000); }, false, true},
    {"alltoall", [](const Rank& me) { return Gathers(me, SE_ALLTOALL, 50); }},
    {"broadcast", [](const Rank& me) { return Broadcasts(me, 20); }},
    {"large broadcast, cached", [](const Rank& me) { return Broadcasts(me, 300000); }, false, true},
    {"reducescatter", [](const Rank& me) { return Scatters(me, 70); }},
    {"barrier", [](const Rank&) { return Plain(SE_BARRIER); }, true, false},
    {"join", [](const Rank&) { return Plain(SE_JOIN); }},
};

// Where, and whose allocations, and how many ranks.
struct Stage {
  Channel channel;
  int size;
  int victim;
};
const std::vector<Stage> kStages = {
    {Channel::kShared, 2, 0}, {Channel::kShared, 3, 1}, {Channel::kStream, 2, 1}, {Channel::kStream, 3, 0}};

std::string Describe(const char* what, const Stage& stage, int64_t n) {
  return std::string(what) + ", " + Name(stage.channel) + ", rank " + std::to_string(stage.victim) + " of " +
         std::to_string(stage.size) + ", allocation " + std::to_string(n);
}

// A sanitizer makes each run many times slower, an emulator even more: there the test makes some of them fail, other
// ones in each scenario.
#if defined(SPARK_ESTIMATOR_EMULATED)
constexpr int64_t kStep = 50;
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kStep = 5;
#else
constexpr int64_t kStep = 1;
#endif

// Runs `once` for n = 0, 1, 2... until fewer than n allocations are made.
void ForEveryAllocation(const char* what, const Stage& stage, const std::function<int(int64_t n)>& once) {
  static int64_t first = 0;
  int64_t n = first++ % kStep;
  for (;; n += kStep) {
    const std::string text = Describe(what, stage, n);
    Watch(text);
    const int status = once(n);
    alarm(0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) Fail(__FILE__, __LINE__, "the rank ended badly: " + text);
    if (WEXITSTATUS(status) == kNothingFailed) break;
    CHECK(n < 10000);
  }
  std::printf("  %s: %d allocations\n", Describe(what, stage, 0).c_str(), static_cast<int>(n));
}

void EveryAllocationOfACollective() {
  for (const Stage& stage : kStages) {
    for (const Scenario& scenario : kScenarios) {
      ForEveryAllocation(scenario.name, stage, [&](int64_t n) {
        return WithVictimToStart(
            stage.size, stage.victim, {.channel = stage.channel},
            [&](Wiring& wiring) {
              alarm(kHang);
              return Suffer(scenario, wiring, stage.victim, stage.size, n, false);
            },
            [&](Wiring& wiring, int rank, pid_t) { Witness(scenario, wiring, rank, stage.size, stage.victim); });
      });
    }
  }
}

// From the n-th on all fail: reporting it needs no memory.
void EveryAllocationFromOneOn() {
  for (const Stage& stage : {kStages[0], kStages[2]}) {
    for (const size_t index : {0, 2, 4, 9}) {
      const Scenario& scenario = kScenarios[index];
      ForEveryAllocation(scenario.name, stage, [&](int64_t n) {
        return WithVictimToStart(
            stage.size, stage.victim, {.channel = stage.channel},
            [&](Wiring& wiring) {
              alarm(kHang);
              return Suffer(scenario, wiring, stage.victim, stage.size, n, true);
            },
            [&](Wiring& wiring, int rank, pid_t) { Witness(scenario, wiring, rank, stage.size, stage.victim); });
      });
    }
  }
}

void EveryAllocationOfACreation() {
  for (const Stage& stage : kStages) {
    ForEveryAllocation("creation", stage, [&](int64_t n) {
      const auto index = static_cast<size_t>(stage.victim);
      return WithVictimToStart(
          stage.size, stage.victim, {.channel = stage.channel},
          [&](Wiring& wiring) -> int {
            alarm(kHang);
            se_engine* engine = nullptr;
            left_to_succeed = n;
            const int32_t status = se_engine_create(&wiring.configs[index], wiring.peers[index].data(), &engine);
            left_to_succeed = -1;
            if (status == SE_OK) {
              const Rank me(stage.victim, stage.size, engine);
              const int32_t ran = me.Run(Asked("first", SE_BARRIER));
              if (!has_failed) CHECK_EQ(ran, SE_OK);
              se_engine_destroy(engine);
            } else {
              CHECK_EQ(status, SE_NO_MEMORY);
            }
            return has_failed ? kSomethingFailed : kNothingFailed;
          },
          [&](Wiring& wiring, int rank, pid_t) {
            // Of three, the third may first get the report that the second could not be created because of the culprit.
            const std::string culprit =
                stage.size > 2 ? "rank " : "rank " + std::to_string(stage.victim) + " on testhost";
            se_engine* engine = nullptr;
            const auto own = static_cast<size_t>(rank);
            const int32_t status = se_engine_create(&wiring.configs[own], wiring.peers[own].data(), &engine);
            if (status == SE_OK) {
              // It fails, or another rank leaves because it has failed.
              const int32_t ran = Rank(rank, stage.size, engine).Run(Asked("first", SE_BARRIER));
              CHECK(ran == SE_OK || ran == SE_PEER_LOST || ran == SE_SHUT_DOWN);
              if (ran != SE_OK) CHECK_CONTAINS(se_last_error(), culprit);
            } else {
              CHECK_EQ(status, SE_PEER_LOST);
              CHECK_CONTAINS(se_last_error(), culprit);
            }
            se_engine_destroy(engine);
          });
    });
  }
}

void EveryAllocationOfAShutdown() {
  for (const Stage& stage : kStages) {
    ForEveryAllocation("shutdown", stage, [&](int64_t n) {
      return WithVictimToStart(
          stage.size, stage.victim, {.channel = stage.channel},
          [&](Wiring& wiring) -> int {
            alarm(kHang);
            Rank me(stage.victim, stage.size, Join(wiring, stage.victim));
            me.RunOk(Asked("ready", SE_BARRIER));
            left_to_succeed = n;
            const int32_t status = se_engine_shutdown(me.engine);
            se_engine_destroy(me.engine);
            left_to_succeed = -1;
            CHECK_EQ(status, SE_OK);
            return has_failed ? kSomethingFailed : kNothingFailed;
          },
          [&](Wiring& wiring, int rank, pid_t) {
            Rank me(rank, stage.size, Join(wiring, rank));
            if (AreReady(me, stage.victim)) {
              const int32_t status = me.Run(Asked("after", SE_BARRIER));
              CHECK(status != SE_OK);
              CheckHeard(status, stage.victim);
            }
            se_engine_destroy(me.engine);
          });
    });
  }
}

// A request that is refused for lack of memory leaves no trace: the next of its kind matches those of the other ranks.
void WhatIsRefusedWasNeverSubmitted() {
  for (const bool unnamed : {false, true}) {
    for (int64_t n = 0; n < 30; ++n) {
      Watch("a refused request, allocation " + std::to_string(n));
      const int status = WithVictimToStart(
          2, 1, {.channel = Channel::kStream},
          [&](Wiring& wiring) -> int {
            alarm(kHang);
            Rank me(1, 2, Join(wiring, 1));
            float x[2] = {2, 0};
            Asked asked(unnamed ? "allreduce.noname" : "x", SE_ALLREDUCE);
            asked.With(x, x + 1, {1});
            if (unnamed) asked.Unnamed();
            asked.get();
            int64_t handle = 0;
            left_to_succeed = n;
            int32_t submitted = se_submit(me.engine, &asked.request, &handle);
            left_to_succeed = -1;
            if (submitted == SE_NO_MEMORY) {
              CHECK_CONTAINS(se_last_error(), "was not submitted: rank 1 on testhost could not allocate memory");
              submitted = se_submit(me.engine, &asked.request, &handle);
            }
            CHECK_EQ(submitted, SE_OK);
            const int32_t waited = se_wait(me.engine, handle, kLongestWait);
            // The engine's thread may have failed, too.
            if (waited == SE_OK) {
              CHECK_EQ(x[1], 3.0f);
            } else {
              CHECK_EQ(waited, SE_NO_MEMORY);
            }
            se_engine_destroy(me.engine);
            return 0;
          },
          [&](Wiring& wiring, int rank, pid_t) {
            Rank me(rank, 2, Join(wiring, rank));
            float x[2] = {1, 0};
            Asked asked(unnamed ? "allreduce.noname" : "x", SE_ALLREDUCE);
            if (unnamed) asked.Unnamed();
            const int32_t ended = me.Run(asked.With(x, x + 1, {1}));
            CheckHeard(ended, 1);
            if (ended == SE_OK) CHECK_EQ(x[1], 3.0f);
            se_engine_destroy(me.engine);
          });
      alarm(0);
      CHECK_EQ(status, 0);
    }
  }
}

}  // namespace

int main() {
  // Ranks wait for longer than they compute: the creations, half of all runs, happen beside the rest.
  const pid_t creations = fork();
  CHECK(creations >= 0);
  if (creations == 0) return RunTests({{"every allocation of a creation", EveryAllocationOfACreation}});
  const int result = RunTests({{"every allocation of a collective", EveryAllocationOfACollective},
                               {"every allocation from one on", EveryAllocationFromOneOn},
                               {"every allocation of a shutdown", EveryAllocationOfAShutdown},
                               {"what is refused was never submitted", WhatIsRefusedWasNeverSubmitted}});
  int status = 0;
  CHECK_EQ(waitpid(creations, &status, 0), creations);
  CHECK_EQ(status, 0);
  return result;
}
