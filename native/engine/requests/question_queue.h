// Questions to this rank's process ("what are you doing?", asked of a rank that others wait for) and its answers.
//
// Threads: any. It has its own mutex, which is never held while another lock is taken.
//
// States: open -> closed (Close). A closed queue returns no question; it still accepts questions and answers, which are
// not read.
#ifndef SPARK_ESTIMATOR_ENGINE_QUESTION_QUEUE_H_
#define SPARK_ESTIMATOR_ENGINE_QUESTION_QUEUE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/wire/message.h"

namespace spark_estimator {

class QuestionQueue {
 public:
  // Waits for a question and takes it. SE_IN_PROGRESS if none arrived in time, SE_SHUT_DOWN if closed.
  Status Await(Seconds timeout, int64_t* question);
  void Ask(int64_t question);
  void Answer(QuestionMessage answer);
  std::vector<QuestionMessage> TakeAnswers();
  // Ends all waits.
  void Close();

 private:
  enum class State : uint8_t {
    kOpen,
    kClosed
  };

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  State state_ = State::kOpen;
  std::deque<int64_t> questions_;
  std::vector<QuestionMessage> answers_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_QUESTION_QUEUE_H_
