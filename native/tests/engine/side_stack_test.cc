// Work that is left in the middle and continued, by the same thread and by others.
#include "engine/side_stack.h"

#include <cerrno>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

using State = SideStack::State;

void ABodyRunsToItsEnd() {
  int runs = 0;
  SideStack stack([&] { runs += 1; });
  CHECK(stack.Open().ok());
  for (int run = 1; run <= 3; ++run) {
    CHECK(stack.Run());
    CHECK_EQ(runs, run);
    CHECK(stack.state() == State::kIdle);
  }
}

void WhatIsRefusedChangesNothing() {
  bool again = true;
  SideStack* inside = nullptr;
  SideStack stack([&] {
    again = inside->Run() || inside->GoOn();
    inside->Leave();
  });
  inside = &stack;
  CHECK(stack.Open().ok());
  CHECK(!stack.GoOn() && !stack.Leave());
  CHECK(stack.Run());
  CHECK(!again);
  CHECK(stack.state() == State::kLeft);
  CHECK(!stack.Run() && !stack.Leave());
  CHECK(stack.GoOn());
  CHECK(stack.state() == State::kIdle);
}

// Locals, those in registers among them, and objects with destructors are as they were.
void WhatWasLeftGoesOnInOtherThreads() {
  std::vector<std::string> lines;
  SideStack* inside = nullptr;
  SideStack stack([&] {
    std::string text = "begun";
    double half = 0.5;
    for (int i = 0; i < 100; ++i) {
      lines.push_back(text + " " + std::to_string(i) + " " + std::to_string(half));
      half *= 1.5;
      inside->Leave();
    }
    text = "ended";
    lines.push_back(text);
  });
  inside = &stack;
  CHECK(stack.Open().ok());
  CHECK(stack.Run());
  for (int i = 0; i < 99; ++i) std::thread([&] { CHECK(stack.GoOn()); }).join();
  CHECK(stack.state() == State::kLeft);
  CHECK(stack.GoOn());
  CHECK(stack.state() == State::kIdle);
  CHECK_EQ(lines.size(), size_t{101});
  CHECK_EQ(lines[0], std::string("begun 0 0.500000"));
  CHECK_EQ(lines[1], std::string("begun 1 0.750000"));
  CHECK_EQ(lines[100], std::string("ended"));
}

void ExceptionsStayInside() {
  std::string caught;
  SideStack* inside = nullptr;
  SideStack stack([&] {
    for (const char* text : {"first", "second"}) {
      try {
        inside->Leave();
        throw std::runtime_error(text);
      } catch (const std::runtime_error& error) {
        caught += error.what();
      }
    }
  });
  inside = &stack;
  CHECK(stack.Open().ok());
  CHECK(stack.Run() && stack.GoOn());
  std::thread([&] { CHECK(stack.GoOn()); }).join();
  CHECK_EQ(caught, std::string("firstsecond"));
}

void ErrnoIsThatOfTheThread() {
  int before = 0, after = 0;
  SideStack* inside = nullptr;
  SideStack stack([&] {
    before = LastErrno();
    inside->Leave();
    after = LastErrno();
  });
  inside = &stack;
  CHECK(stack.Open().ok());
  errno = EAGAIN;
  CHECK(stack.Run());
  std::thread([&] {
    errno = EPIPE;
    CHECK(stack.GoOn());
  }).join();
  CHECK_EQ(before, EAGAIN);
  CHECK_EQ(after, EPIPE);
}

}  // namespace

int main() {
  return RunTests({{"a body runs to its end", ABodyRunsToItsEnd},
                   {"what is refused changes nothing", WhatIsRefusedChangesNothing},
                   {"what was left goes on in other threads", WhatWasLeftGoesOnInOtherThreads},
                   {"exceptions stay inside", ExceptionsStayInside},
                   {"errno is that of the thread", ErrnoIsThatOfTheThread}});
}
