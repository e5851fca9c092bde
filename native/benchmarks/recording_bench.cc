// What the flight recorder and the timeline cost an op: the recording thread's time, and the processor time that the
// timeline's writer takes beside it. Usage: recording_bench [TRACE.json]
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "engine/observe/flight_recorder.h"
#include "engine/observe/timeline.h"
#include "spark_estimator/engine.h"

namespace {

using namespace spark_estimator;

constexpr int kOpsAStep = 200;
constexpr int kSteps = 500;
constexpr std::chrono::milliseconds kComputing{7};

double ProcessorSeconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Runs the steps of a training that sends `kOpsAStep` ops each and sleeps for its computing.
template <typename Add>
double NanosecondsAnOp(Add add) {
  std::vector<std::string> names;
  for (int i = 0; i < kOpsAStep; ++i) names.push_back("encoder.layers." + std::to_string(i) + ".attention.weight");
  OpRecord record;
  record.dtype = SE_FLOAT32;
  record.bytes = 4096;
  record.algorithm = "one shot";
  record.fast = true;
  std::vector<double> steps;
  for (int step = 0; step < kSteps; ++step) {
    const Time begin = Clock::now();
    for (const std::string& name : names) {
      record.sequence += 1;
      record.name = name;
      record.submitted = record.agreed = record.started = record.finished = begin;
      add(record);
    }
    steps.push_back(SecondsSince(begin) * 1e9 / kOpsAStep);
    std::this_thread::sleep_for(kComputing);
  }
  return Median(steps);
}

}  // namespace

int main(int argc, char** argv) {
  FlightRecorder recorder;
  std::printf("flight recorder: %.0f ns an op\n",
              NanosecondsAnOp([&](const OpRecord& record) { recorder.Add(record); }));
  Timeline timeline;
  std::printf("timeline, off:   %.1f ns an op\n", NanosecondsAnOp([&](const OpRecord& record) {
                if (timeline.on()) timeline.Op(record);
              }));
  const Status status = timeline.Start(argc > 1 ? argv[1] : "/tmp/recording_bench.json", 0, 1, "bench", false);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  const double process = ProcessorSeconds(CLOCK_PROCESS_CPUTIME_ID);
  const double thread = ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID);
  const double on = NanosecondsAnOp([&](const OpRecord& record) {
    if (timeline.on()) timeline.Op(record);
  });
  timeline.Stop();
  const double caller = ProcessorSeconds(CLOCK_THREAD_CPUTIME_ID) - thread;
  const double writer = ProcessorSeconds(CLOCK_PROCESS_CPUTIME_ID) - process - caller;
  const double written = writer * 1e9 / (kOpsAStep * kSteps);
  std::printf("timeline, on:    %.0f ns an op where it is recorded, %.0f ns an op for the writer\n", on, written);
  std::printf("                 a step of %d ops and %d ms: %.2f %% where both share a core\n", kOpsAStep,
              static_cast<int>(kComputing.count()),
              100 * (on + written) * kOpsAStep / (1e6 * static_cast<double>(kComputing.count())));
}
