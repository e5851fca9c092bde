// What an engine counts, for users, tests and benchmarks; readable from any thread at any time.
#ifndef SPARK_ESTIMATOR_ENGINE_COUNTERS_H_
#define SPARK_ESTIMATOR_ENGINE_COUNTERS_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace spark_estimator {

struct Counters {
  std::atomic<int64_t> requests{0};           // submitted
  std::atomic<int64_t> operations{0};         // executed; several requests may run as one
  std::atomic<int64_t> gpu_operations{0};     // of them, on GPUs alone
  std::atomic<int64_t> staged_operations{0};  // of them, of GPU tensors that went through host memory
  std::atomic<int64_t> fused_requests{0};     // executed together with others
  std::atomic<int64_t> inline_operations{0};  // whose data was sent with the proposal
  std::atomic<int64_t> rounds{0};             // completed positions
  std::atomic<int64_t> slow_phases{0};        // times that the rounds were left for a negotiation in full
  std::atomic<int64_t> stalled_rounds{0};     // in which this rank reported that another one does not take part
  std::atomic<int64_t> responses{0};          // of the coordinator
  std::atomic<int64_t> cache_hits{0};         // requests whose agreement was remembered
  std::atomic<int64_t> cache_misses{0};
  std::atomic<int64_t> shared_bytes{0};  // of tensors, through shared memory
  std::atomic<int64_t> stream_bytes{0};  // over sockets, both directions
  std::atomic<int64_t> control_bytes_sent{0};
  std::atomic<int64_t> wait_nanoseconds{0};       // until peers reach the same position
  std::atomic<int64_t> execution_nanoseconds{0};  // in collectives
  std::atomic<int64_t> blocked_nanoseconds{0};    // while a caller waited, or several did
  std::atomic<int64_t> wakeups{0};                // of the engine's thread
};

struct CounterName {
  const char* name;
  std::atomic<int64_t> Counters::* counter;
};
inline constexpr CounterName kCounterNames[] = {
    {"requests", &Counters::requests},
    {"operations", &Counters::operations},
    {"gpu_operations", &Counters::gpu_operations},
    {"staged_operations", &Counters::staged_operations},
    {"fused_requests", &Counters::fused_requests},
    {"inline_operations", &Counters::inline_operations},
    {"rounds", &Counters::rounds},
    {"slow_phases", &Counters::slow_phases},
    {"stalled_rounds", &Counters::stalled_rounds},
    {"responses", &Counters::responses},
    {"cache_hits", &Counters::cache_hits},
    {"cache_misses", &Counters::cache_misses},
    {"shared_bytes", &Counters::shared_bytes},
    {"stream_bytes", &Counters::stream_bytes},
    {"control_bytes_sent", &Counters::control_bytes_sent},
    {"wait_nanoseconds", &Counters::wait_nanoseconds},
    {"execution_nanoseconds", &Counters::execution_nanoseconds},
    {"blocked_nanoseconds", &Counters::blocked_nanoseconds},
    {"wakeups", &Counters::wakeups},
};

// Null for an unknown name.
inline const std::atomic<int64_t>* FindCounter(const Counters& counters, std::string_view name) {
  for (const CounterName& row : kCounterNames) {
    if (name == row.name) return &(counters.*row.counter);
  }
  return nullptr;
}

// All names, each with a space behind it.
inline std::string NamesOfCounters() {
  std::string text;
  for (const CounterName& row : kCounterNames) text += std::string(row.name) + " ";
  return text;
}

// One thread at a time writes most of them: no locked instruction then.
inline void Increase(std::atomic<int64_t>& counter, int64_t by = 1) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_COUNTERS_H_
