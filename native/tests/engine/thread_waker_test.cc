// What the engine's thread sleeps on: wake-ups, and control links while no caller has claimed them.
#include "engine/thread_waker.h"

#include <unistd.h>

#include <thread>

#include "base/unique_fd.h"
#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

double Slept(ThreadWaker& waker, double seconds) {
  const Time start = Clock::now();
  waker.Sleep(After(Seconds(seconds)));
  return Seconds(Clock::now() - start).count();
}

struct Fixture {
  Fixture() {
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    reading.Reset(ends[0]);
    writing.Reset(ends[1]);
    CHECK(waker.Open().ok() && waker.WatchLinks(reading.get()).ok());
  }

  UniqueFd reading;
  UniqueFd writing;
  ThreadWaker waker;
};

void AWakeUpEndsOneSleep() {
  Fixture fixture;
  CHECK(Slept(fixture.waker, 0.02) >= 0.015);
  fixture.waker.Wake();
  fixture.waker.Wake();
  CHECK(Slept(fixture.waker, 60) < 30);
  CHECK(Slept(fixture.waker, 0.02) >= 0.015);  // both were one
  std::thread other([&] { fixture.waker.Wake(); });
  fixture.waker.Sleep(Time::max());
  other.join();
}

void FramesEndASleepUnlessACallerHasClaimedTheLinks() {
  Fixture fixture;
  CHECK(!fixture.waker.links_claimed());
  fixture.waker.ClaimLinks();
  fixture.waker.ClaimLinks();
  CHECK_EQ(write(fixture.writing.get(), "x", 1), 1);
  CHECK(fixture.waker.links_claimed() && Slept(fixture.waker, 0.02) >= 0.015);
  fixture.waker.ReleaseLinks(false);
  CHECK(!fixture.waker.links_claimed() && Slept(fixture.waker, 60) < 30);
}

// The caller most likely takes the frame itself; if not, the thread does after all.
void FramesWaitAMomentForACallerThatReturns() {
  Fixture fixture;
  fixture.waker.ClaimLinks();
  CHECK_EQ(write(fixture.writing.get(), "x", 1), 1);
  fixture.waker.ReleaseLinks(true);
  CHECK(Slept(fixture.waker, 60) < 30);
}

}  // namespace

int main() {
  return RunTests(
      {{"a wake-up ends one sleep", AWakeUpEndsOneSleep},
       {"frames end a sleep unless a caller has claimed the links", FramesEndASleepUnlessACallerHasClaimedTheLinks},
       {"frames wait a moment for a caller that returns", FramesWaitAMomentForACallerThatReturns}});
}
