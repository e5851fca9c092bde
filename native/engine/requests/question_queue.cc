#include "engine/requests/question_queue.h"

#include <utility>

namespace spark_estimator {

Status QuestionQueue::Await(Seconds timeout, int64_t* question) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, After(timeout), [&] { return !questions_.empty() || state_ == State::kClosed; });
  if (state_ == State::kClosed) return Status(SE_SHUT_DOWN, "this rank has shut down");
  if (questions_.empty()) return Status(SE_IN_PROGRESS, "");
  *question = questions_.front();
  questions_.pop_front();
  return Status::Ok();
}

void QuestionQueue::Ask(int64_t question) {
  std::lock_guard<std::mutex> lock(mutex_);
  questions_.push_back(question);
  changed_.notify_all();
}

void QuestionQueue::Answer(QuestionMessage answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  answers_.push_back(std::move(answer));
}

std::vector<QuestionMessage> QuestionQueue::TakeAnswers() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(answers_, {});
}

void QuestionQueue::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  state_ = State::kClosed;
  changed_.notify_all();
}

}  // namespace spark_estimator
