#include "engine/operation_watch.h"

#include <utility>

namespace spark_estimator {

OperationWatch::Finding OperationWatch::Look(int64_t progress, Time now) {
  if (progress != progress_) {
    progress_ = progress;
    since_ = now;
    reported_ = false;
  }
  stalled_seconds_ = Seconds(now - since_).count();
  if (shutdown_seconds_ > 0 && stalled_seconds_ >= shutdown_seconds_) return Finding::kGiveUp;
  if (reported_ || warning_seconds_ <= 0 || stalled_seconds_ < warning_seconds_) return Finding::kNone;
  reported_ = true;
  return Finding::kReport;
}

void OperationWatch::SetText(std::string text) {
  if (text.empty() && !has_text_) return;
  has_text_ = !text.empty();
  const std::lock_guard<std::mutex> lock(mutex_);
  text_ = std::move(text);
}

std::string OperationWatch::Text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return text_;
}

}  // namespace spark_estimator
