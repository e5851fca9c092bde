// What an engine costs its host beside the time of its ops: processor time while idle and while waiting, and memory.
#ifndef SPARK_ESTIMATOR_BENCHMARKS_COSTS_H_
#define SPARK_ESTIMATOR_BENCHMARKS_COSTS_H_

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "benchmarks/engine_library.h"
#include "benchmarks/forked_job.h"

namespace spark_estimator::benchmarks {

// A few numbers of each rank, in memory that the parent sees.
class Reports {
 public:
  static constexpr int kNumbers = 4;
  explicit Reports(int ranks) : ranks_(ranks) {
    void* memory = mmap(nullptr, Bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Demand(memory != MAP_FAILED, "mmap");
    numbers_ = static_cast<double*>(memory);
  }
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;
  ~Reports() { munmap(numbers_, Bytes()); }

  double& of(int rank, int number) const { return numbers_[rank * kNumbers + number]; }
  double Largest(int number) const {
    double largest = of(0, number);
    for (int rank = 1; rank < ranks_; ++rank) largest = std::max(largest, of(rank, number));
    return largest;
  }

 private:
  size_t Bytes() const { return static_cast<size_t>(ranks_) * kNumbers * sizeof(double); }

  const int ranks_;
  double* numbers_;
};

inline double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

inline double WakeUps() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw);
}

inline void Sleep(double seconds) {
  const double deadline = bench_now() + seconds;
  for (double left = seconds; left > 0; left = deadline - bench_now()) {
    timespec time{static_cast<time_t>(left),
                  static_cast<long>((left - static_cast<double>(static_cast<time_t>(left))) * 1e9)};
    nanosleep(&time, nullptr);
  }
}

// Runs some ops of one form, so that names are agreed on and memory is touched.
inline void WarmUp(const bench_library& library, const char* variant, int64_t bytes, int names) {
  for (int name = 0; name < names; ++name) {
    bench_form form{};
    // Sizes differ by an element, and names with them.
    form.bytes = bytes + 4 * name;
    form.op = BENCH_ALLREDUCE;
    form.dtype = BENCH_FLOAT32;
    form.batch = 1;
    std::snprintf(form.variant, sizeof form.variant, "%s", variant);
    bench_size(&form, library.size);
    const char* error = bench_open_form(&library, &form);
    for (int time = 0; error == nullptr && time < 4; ++time) error = library.run(library.self, &form, 0);
    if (error != nullptr) Die(std::string("warming up: ") + error);
    bench_close_form(&library, &form);
  }
}

// Percent of a core that a rank uses without any request (numbers 0), and its wake-ups a second (1).
inline void Idle(const JobSettings& settings, double seconds, const Reports& reports) {
  ForkedJob job(settings, [&](int rank, se_engine* engine) {
    const EngineLibrary library(engine, rank, settings.size);
    if (library.library() == nullptr) Die(se_last_error());
    WarmUp(*library.library(), "run", 4096, 8);
    Sleep(0.5);  // what the ops left to do is done
    const double processor = ProcessorSeconds();
    const double wake_ups = WakeUps();
    Sleep(seconds);
    reports.of(rank, 0) = 100 * (ProcessorSeconds() - processor) / seconds;
    reports.of(rank, 1) = (WakeUps() - wake_ups) / seconds;
    return library.library()->barrier(library.library()->self) == nullptr ? 0 : 1;
  });
  job.Wait();
}

// Percent of a core that a rank burns (number 0) while it waits in an allreduce for the last rank, which is so late.
inline void WaitForLate(const JobSettings& settings, double seconds, const Reports& reports) {
  ForkedJob job(settings, [&](int rank, se_engine* engine) {
    const EngineLibrary library(engine, rank, settings.size);
    if (library.library() == nullptr) Die(se_last_error());
    const bench_library& ours = *library.library();
    WarmUp(ours, "run", 4096, 8);
    const char* error = ours.barrier(ours.self);
    const bool late = rank == settings.size - 1;
    if (late) Sleep(seconds);
    const double start = bench_now();
    const double processor = ProcessorSeconds();
    if (error == nullptr) error = ours.barrier(ours.self);
    if (error != nullptr) Die(error);
    if (!late) reports.of(rank, 0) = 100 * (ProcessorSeconds() - processor) / (bench_now() - start);
    return 0;
  });
  job.Wait();
}

// Bytes of this process's memory by /proc/self/smaps_rollup: "Rss" counts what is shared in full, "Pss" its share of
// it.
inline double MemoryBytes(const char* what) {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(std::string(what) + ":", 0) == 0) {
      return 1024 * std::stod(line.substr(line.find_first_of("0123456789")));
    }
  }
  Die("/proc/self/smaps_rollup does not tell");
}

// Memory that a rank holds after `names` different allreduces and one of `bytes`, tensors released: growth of Rss since
// before the ranks were forked (number 0), and Pss, which holds this small program as well (1).
inline void Memory(const JobSettings& settings, int names, int64_t bytes, const Reports& reports) {
  const double resident = MemoryBytes("Rss");
  ForkedJob job(settings, [&](int rank, se_engine* engine) {
    {
      const EngineLibrary library(engine, rank, settings.size);
      if (library.library() == nullptr) Die(se_last_error());
      const bench_library& ours = *library.library();
      WarmUp(ours, "run", 4096, names);
      WarmUp(ours, "run", bytes, 1);
      const char* error = ours.barrier(ours.self);
      reports.of(rank, 0) = MemoryBytes("Rss") - resident;
      reports.of(rank, 1) = MemoryBytes("Pss");
      if (error == nullptr) error = ours.barrier(ours.self);  // no rank leaves while others count what is shared
      if (error != nullptr) Die(error);
    }
    return 0;
  });
  job.Wait();
}

}  // namespace spark_estimator::benchmarks

#endif  // SPARK_ESTIMATOR_BENCHMARKS_COSTS_H_
