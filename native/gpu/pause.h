// Pauses between looks at something that no call waits for.
#ifndef SPARK_ESTIMATOR_GPU_PAUSE_H_
#define SPARK_ESTIMATOR_GPU_PAUSE_H_

#include <algorithm>
#include <string>
#include <thread>

#include "base/clock.h"

namespace spark_estimator {

// What is nearly there costs no sleep, and what takes seconds costs hardly any looks.
class GrowingPause {
 public:
  void Sleep() {
    if (looks_++ < kYields) return std::this_thread::yield();
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, Seconds(kLongest));
  }

 private:
  static constexpr int kYields = 20;
  static constexpr double kLongest = 5e-3;
  int looks_ = 0;
  Seconds pause_{10e-6};
};

// "0.3 s".
inline std::string InSeconds(Seconds seconds) {
  std::string text = std::to_string(seconds.count());
  return text.substr(0, text.find('.') + 2) + " s";
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_PAUSE_H_
