// The flight recorder: the content of its lines, that it keeps the newest, and that readers and writers do not disturb
// each other.
#include "engine/observe/flight_recorder.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "spark_estimator/engine.h"

namespace spark_estimator::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

std::vector<std::string> Lines(const FlightRecorder& recorder) {
  std::istringstream text(recorder.Text());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

OpRecord Record(int64_t sequence, std::string_view name) {
  OpRecord record;
  record.sequence = sequence;
  record.name = name;
  record.dtype = SE_FLOAT32;
  record.bytes = 4096;
  record.algorithm = "one shot";
  record.submitted = Clock::now() - milliseconds(100);
  record.agreed = record.submitted + microseconds(250);
  record.started = record.agreed + std::chrono::nanoseconds(80);
  record.finished = record.started + milliseconds(3);
  record.fast = true;
  return record;
}

void EmptyRecorderHasNoLines() { CHECK_EQ(FlightRecorder(10).Text(), std::string()); }

void ALineTellsWhatHappened() {
  FlightRecorder recorder(10);
  recorder.Add(Record(12, "gradient.7"));
  const std::vector<std::string> lines = Lines(recorder);
  CHECK_EQ(lines.size(), size_t{1});
  for (const char* part :
       {"#12  ended ", " ms ago  allreduce  float32  4096 B  cached  all ranks called after 250.0 us  ",
        "began after 80 ns  ran 3.00 ms  one shot  ok  gradient.7"}) {
    CHECK_CONTAINS(lines[0], part);
  }
}

void TimesThatWereNotReachedAreDashes() {
  FlightRecorder recorder(10);
  OpRecord record = Record(0, "lost");
  record.agreed = record.started = record.finished;  // as the engine records a failure before the start
  record.algorithm = "";
  record.status = SE_MISMATCH;
  record.fast = false;
  recorder.Add(record);
  CHECK_CONTAINS(recorder.Text(), "negotiated  waited 3.25 ms  began after -  ran -    mismatch  lost");
}

void TheNewestAreKeptAndComeLast() {
  FlightRecorder recorder(3);
  for (int64_t i = 1; i <= 8; ++i) recorder.Add(Record(i, "x"));
  const std::vector<std::string> lines = Lines(recorder);
  CHECK_EQ(lines.size(), size_t{3});
  for (size_t i = 0; i < 3; ++i) CHECK_CONTAINS(lines[i], "#" + std::to_string(i + 6) + " ");
}

void ColumnsAreAligned() {
  FlightRecorder recorder(4);
  recorder.Add(Record(9, "NAME"));
  OpRecord record = Record(12345, "NAME");
  record.op = SE_BROADCAST;
  record.bytes = 1 << 30;
  record.status = SE_PEER_LOST;
  recorder.Add(record);
  const std::vector<std::string> lines = Lines(recorder);
  for (const char* column : {" B  ", "all ranks called", "NAME"})
    CHECK_EQ(lines[0].find(column), lines[1].find(column));
}

void FusedNamesAreCounted() {
  FlightRecorder recorder(1);
  OpRecord record = Record(1, "first");
  record.num_requests = 4;
  recorder.Add(record);
  CHECK_CONTAINS(recorder.Text(), "first and 3 more\n");
}

void LongNamesKeepBothEnds() {
  FlightRecorder recorder(4);
  const std::string name = "encoder." + std::string(4000, 'x') + ".attention.weight";
  recorder.Add(Record(1, name));
  CHECK_CONTAINS(recorder.Text(), "encoder.xxx");
  CHECK_CONTAINS(recorder.Text(), "x...x");
  CHECK_CONTAINS(recorder.Text(), ".attention.weight\n");
  // 60 bytes fit, and cuts do not divide characters: each of these has three bytes, shifted by 0 to 2.
  recorder.Add(Record(2, std::string(60, 'y')));
  CHECK_CONTAINS(recorder.Text(), "  " + std::string(60, 'y') + "\n");
  for (size_t shift = 0; shift < 3; ++shift) {
    std::string text(shift, '_');
    for (int i = 0; i < 40; ++i) text += "\u20ac";
    FlightRecorder one(1);
    one.Add(Record(1, text));
    CHECK_CONTAINS(one.Text(), "\u20ac...\u20ac");
    CHECK(one.Text().find('?') == std::string::npos);
  }
}

void NamesCannotBreakLines() {
  FlightRecorder recorder(1);
  recorder.Add(Record(1, "a\nb\rc\x1b[31m\x7f\xff\xc2\x85\u2028\xf0\x9f\x98\x80z\xe2\x82"));
  CHECK_EQ(Lines(recorder).size(), size_t{1});
  CHECK_CONTAINS(recorder.Text(), "  a?b?c?[31m????\xf0\x9f\x98\x80z??\n");
}

void UnknownCodesHaveWords() {
  FlightRecorder recorder(1);
  OpRecord record = Record(1, "odd");
  record.op = 99;
  record.dtype = -1;
  record.status = 1234;
  recorder.Add(record);
  CHECK_CONTAINS(recorder.Text(), "99");
  CHECK_CONTAINS(recorder.Text(), "unknown status");
  CHECK_EQ(OutcomeName(SE_OK), std::string("ok"));
}

void ReadersAndWritersDoNotDisturbEachOther() {
  FlightRecorder recorder(64);
  constexpr int64_t kOps = 2000;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&recorder, writer] {
      // A torn entry would bear the one's name and the other's size.
      for (int64_t i = 1; i <= kOps; ++i) {
        OpRecord record = Record(i, writer == 0 ? "even" : "odd");
        record.bytes = writer == 0 ? 222 : 111;
        recorder.Add(record);
      }
    });
  }
  size_t longest = 0;
  for (int i = 0; i < 20; ++i) {
    const std::vector<std::string> lines = Lines(recorder);
    longest = std::max(longest, lines.size());
    for (const std::string& line : lines) CHECK_CONTAINS(line, line.ends_with("even") ? "222 B" : "111 B");
  }
  for (std::thread& writer : writers) writer.join();
  CHECK(longest <= 64);
  CHECK_EQ(Lines(recorder).size(), size_t{64});
}

}  // namespace
}  // namespace spark_estimator::testing

int main() {
  using namespace spark_estimator::testing;
  return RunTests({{"empty recorder has no lines", EmptyRecorderHasNoLines},
                   {"a line tells what happened", ALineTellsWhatHappened},
                   {"times that were not reached are dashes", TimesThatWereNotReachedAreDashes},
                   {"the newest are kept and come last", TheNewestAreKeptAndComeLast},
                   {"columns are aligned", ColumnsAreAligned},
                   {"fused names are counted", FusedNamesAreCounted},
                   {"long names keep both ends", LongNamesKeepBothEnds},
                   {"names cannot break lines", NamesCannotBreakLines},
                   {"unknown codes have words", UnknownCodesHaveWords},
                   {"readers and writers do not disturb each other", ReadersAndWritersDoNotDisturbEachOther}});
}
