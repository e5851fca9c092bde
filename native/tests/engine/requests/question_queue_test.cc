// Questions to this process: returned once and in order, and none after the queue is closed.
#include "engine/requests/question_queue.h"

#include <thread>

#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

void QuestionsComeOnceAndInOrder() {
  QuestionQueue queue;
  int64_t question = 0;
  CHECK_EQ(queue.Await(Seconds(0.01), &question).code(), SE_IN_PROGRESS);
  queue.Ask(7);
  queue.Ask(9);
  CHECK(queue.Await(Seconds(1), &question).ok());
  CHECK_EQ(question, 7);
  CHECK(queue.Await(Seconds(1), &question).ok());
  CHECK_EQ(question, 9);
  CHECK_EQ(queue.Await(Seconds(0), &question).code(), SE_IN_PROGRESS);
}

void AnswersAreTakenOnce() {
  QuestionQueue queue;
  CHECK(queue.TakeAnswers().empty());
  queue.Answer({3, "here"});
  queue.Answer({4, "there"});
  const auto answers = queue.TakeAnswers();
  CHECK_EQ(answers.size(), 2u);
  CHECK_EQ(answers[0].number, 3);
  CHECK_EQ(answers[1].text, std::string("there"));
  CHECK(queue.TakeAnswers().empty());
}

void AClosedQueueGivesOutNothing() {
  QuestionQueue queue;
  queue.Ask(1);
  queue.Close();
  int64_t question = 0;
  CHECK_EQ(queue.Await(Seconds(60), &question).code(), SE_SHUT_DOWN);
  queue.Ask(2);
  CHECK_EQ(queue.Await(Seconds(60), &question).code(), SE_SHUT_DOWN);
  queue.Close();
  CHECK_EQ(queue.Await(Seconds(60), &question).code(), SE_SHUT_DOWN);
}

void AWaitEndsWithAQuestionAndWithTheClose() {
  QuestionQueue queue;
  std::thread asker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    queue.Ask(5);
  });
  int64_t question = 0;
  CHECK(queue.Await(Seconds(60), &question).ok());
  CHECK_EQ(question, 5);
  asker.join();
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    queue.Close();
  });
  CHECK_EQ(queue.Await(Seconds(60), &question).code(), SE_SHUT_DOWN);
  closer.join();
}

}  // namespace

int main() {
  return RunTests({{"questions come once and in order", QuestionsComeOnceAndInOrder},
                   {"answers are taken once", AnswersAreTakenOnce},
                   {"a closed queue gives out nothing", AClosedQueueGivesOutNothing},
                   {"a wait ends with a question and with the close", AWaitEndsWithAQuestionAndWithTheClose}});
}
