// Time that never jumps: all waits and deadlines of the engine use the monotonic clock.
#ifndef SPARK_ESTIMATOR_BASE_CLOCK_H_
#define SPARK_ESTIMATOR_BASE_CLOCK_H_

#include <chrono>

namespace spark_estimator {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Seconds = std::chrono::duration<double>;

inline Time After(Seconds delay) { return Clock::now() + std::chrono::duration_cast<Clock::duration>(delay); }
inline double SecondsSince(Time start) { return Seconds(Clock::now() - start).count(); }

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_BASE_CLOCK_H_
