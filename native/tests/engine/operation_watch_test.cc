// When an operation that makes no progress is reported, and when it is given up.
#include "engine/operation_watch.h"

#include "check.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

using Finding = OperationWatch::Finding;

Time At(double seconds) { return Time{} + std::chrono::duration_cast<Clock::duration>(Seconds(100 + seconds)); }

void WithoutProgressItIsReportedOnceAndThenGivenUp() {
  OperationWatch watch(2, 5);
  CHECK(watch.Look(7, At(0)) == Finding::kNone);
  CHECK(watch.Look(7, At(1.9)) == Finding::kNone);
  CHECK(watch.Look(7, At(2)) == Finding::kReport);
  CHECK_EQ(watch.stalled_seconds(), 2.0);
  CHECK(watch.Look(7, At(4.9)) == Finding::kNone);
  CHECK(watch.Look(7, At(5)) == Finding::kGiveUp);
  CHECK(watch.Look(7, At(6)) == Finding::kGiveUp);
}

void ProgressBeginsAnew() {
  OperationWatch watch(2, 5);
  for (int i = 0; i < 10; ++i) CHECK(watch.Look(i, At(i * 1.9)) == Finding::kNone);
  CHECK(watch.Look(9, At(9 * 1.9 + 2)) == Finding::kReport);
  CHECK(watch.Look(10, At(30)) == Finding::kNone);
  CHECK_EQ(watch.stalled_seconds(), 0.0);
  CHECK(watch.Look(10, At(32)) == Finding::kReport);
}

void EitherCanBeTurnedOff() {
  OperationWatch silent(0, 5);
  CHECK(silent.Look(1, At(0)) == Finding::kNone);
  CHECK(silent.Look(1, At(4)) == Finding::kNone);
  CHECK(silent.Look(1, At(5)) == Finding::kGiveUp);
  OperationWatch patient(2, 0);
  CHECK(patient.Look(1, At(0)) == Finding::kNone);
  CHECK(patient.Look(1, At(1000)) == Finding::kReport);
  CHECK(patient.Look(1, At(2000)) == Finding::kNone);
  OperationWatch neither(0, 0);
  CHECK(neither.Look(1, At(0)) == Finding::kNone);
  CHECK(neither.Look(1, At(1000)) == Finding::kNone);
}

void TheTextIsTheLastOne() {
  OperationWatch watch(0, 0);
  CHECK_EQ(watch.Text(), std::string());
  watch.SetText("allreduce 'x' waits");
  CHECK_EQ(watch.Text(), std::string("allreduce 'x' waits"));
  watch.SetText("");
  CHECK_EQ(watch.Text(), std::string());
}

}  // namespace

int main() {
  return RunTests(
      {{"without progress it is reported once and then given up", WithoutProgressItIsReportedOnceAndThenGivenUp},
       {"progress begins anew", ProgressBeginsAnew},
       {"either can be turned off", EitherCanBeTurnedOff},
       {"the text is the last one", TheTextIsTheLastOne}});
}
