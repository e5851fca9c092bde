#include "engine/negotiation/stall_reporter.h"

#include <algorithm>

namespace spark_estimator {
namespace {

Time Later(Time now, Seconds seconds) { return now + std::chrono::duration_cast<Clock::duration>(seconds); }

}  // namespace

StallReporter::StallReporter(double warning_seconds, double shutdown_seconds, Time now)
    : warning_seconds_(warning_seconds), shutdown_seconds_(shutdown_seconds), next_check_(Later(now, kCheckInterval)) {}

std::vector<StallReporter::Question> StallReporter::Check(Coordinator& coordinator, Time now,
                                                          std::vector<std::string>* lines) {
  std::vector<Question> questions;
  if (now < next_check_) return questions;
  next_check_ = Later(now, kCheckInterval);
  if (warning_seconds_ > 0) {
    for (const Stall& stall : coordinator.TakeStalled(warning_seconds_, now)) {
      const std::string text = stall.Describe();
      lines->push_back(text);
      for (const int rank : stall.missing_ranks) {
        const int64_t number = next_number_++;
        open_questions_[number] = OpenQuestion{rank, Later(now, kAnswerTime)};
        questions.push_back(Question{rank, number, text});
      }
    }
  }
  if (shutdown_seconds_ > 0) coordinator.FailStalled(shutdown_seconds_, now);
  return questions;
}

Time StallReporter::next_deadline() const {
  Time next = Time::max();
  for (const auto& [number, question] : open_questions_) next = std::min(next, question.deadline);
  return next;
}

std::vector<int> StallReporter::TakeOverdue(Time now) {
  std::vector<int> ranks;
  std::erase_if(open_questions_, [&](const auto& entry) {
    if (now < entry.second.deadline) return false;
    ranks.push_back(entry.second.rank);
    return true;
  });
  return ranks;
}

void StallReporter::RankLeft(int rank) {
  std::erase_if(open_questions_, [&](const auto& entry) { return entry.second.rank == rank; });
}

}  // namespace spark_estimator
