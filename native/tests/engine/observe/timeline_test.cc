// The timeline: the content of its file, that it can be read after any end, and that no disk delays recording threads.
#include "engine/observe/timeline.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/observe/trace_file.h"
#include "spark_estimator/engine.h"

namespace spark_estimator::testing {
namespace {

using std::chrono::microseconds;

// A file in a new folder, removed at the end.
class TemporaryTrace {
 public:
  TemporaryTrace() {
    std::string pattern = std::filesystem::temp_directory_path() / "timeline_test.XXXXXX";
    CHECK(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    path_ = pattern + "/trace.json";
  }
  ~TemporaryTrace() { std::filesystem::remove_all(folder_); }
  const std::string& path() const { return path_; }
  std::string Text() const {
    std::ifstream file(path_, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  std::string folder_;
  std::string path_;
};

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Every line but the first and last is one object; all but the last of them end in a comma.
void CheckForm(const std::string& text, bool complete) {
  CHECK(text.starts_with("[\n{"));
  if (complete) {
    CHECK(text.ends_with("}\n]\n"));
    CHECK_CONTAINS(text, "\"spark_estimator_end\"");
  } else {
    CHECK(text.ends_with("},\n"));
  }
  std::istringstream lines(text);
  size_t objects = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line == "[" || line == "]") continue;
    objects += 1;
    CHECK(line.starts_with("{\"ph\":\""));
    CHECK(line.ends_with("},") || (complete && line.ends_with("}")));
    for (const char c : line) CHECK(static_cast<unsigned char>(c) >= 0x20);
  }
  CHECK_EQ(Count(text, "\n") - (complete ? 2 : 1), objects);
}

constexpr Time At(int64_t microseconds_) { return Time{} + microseconds(microseconds_); }

OpRecord Record(int64_t sequence, std::string_view name) {
  OpRecord record;
  record.sequence = sequence;
  record.name = name;
  record.dtype = SE_FLOAT32;
  record.bytes = 4096;
  record.algorithm = "one shot";
  record.submitted = At(1000);
  record.agreed = At(1250);
  record.started = At(1300) + std::chrono::nanoseconds(7);
  record.finished = At(1500);
  return record;
}

void AnOpHasHorovodsPhasesInItsRow() {
  const TemporaryTrace trace;
  Timeline timeline;
  CHECK(!timeline.on());
  CHECK(timeline.Start(trace.path(), 3, 4, "worker-b (pid 7)", false).ok());
  CHECK(timeline.on());
  timeline.Op(Record(17, "weight"));
  timeline.Stop();
  CHECK(!timeline.on());
  const std::string text = trace.Text();
  CheckForm(text, true);
  const std::string place = ",\"pid\":3,\"tid\":2";
  for (const std::string& part :
       {std::string("\"name\":\"process_name\",\"pid\":3,\"args\":{\"name\":\"rank 3, worker-b (pid 7)\""),
        std::string("\"rank\":3,\"size\":4,\"process_set\":0,\"process\":\"worker-b (pid 7)\",\"pid\":"),
        std::string("},\"start_time_since_epoch_in_micros\":1"),
        std::string("\"name\":\"thread_name\",\"pid\":3,\"tid\":2,\"args\":{\"name\":\"allreduce.weight\"}"),
        "\"name\":\"NEGOTIATE_ALLREDUCE\",\"ts\":1000.000,\"dur\":250.000" + place + "},\n",
        "\"name\":\"ALLREDUCE\",\"ts\":1250.000,\"dur\":250.000" + place +
            ",\"args\":{\"sequence\":17,\"bytes\":4096,\"dtype\":\"float32\",\"negotiation\":\"slow\"}},\n",
        "\"name\":\"WAIT_FOR_DATA\",\"ts\":1250.000,\"dur\":50.007" + place + "},\n",
        "\"name\":\"one shot\",\"ts\":1300.007,\"dur\":199.993" + place + "},\n"}) {
    CHECK_CONTAINS(text, part);
  }
}

void EachOpAndNameHasOneRow() {
  const TemporaryTrace trace;
  Timeline timeline;
  CHECK(timeline.Start(trace.path(), 0, 1, "h", false).ok());
  for (int64_t i = 0; i < 3; ++i) {
    timeline.Op(Record(i, "weight"));
    timeline.Op(Record(i, "allreduce.bias"));
    OpRecord record = Record(i, "weight");
    record.op = SE_BROADCAST;
    timeline.Op(record);
  }
  timeline.Stop();
  const std::string text = trace.Text();
  for (const char* label : {"\"allreduce.weight\"", "\"allreduce.bias\"", "\"broadcast.weight\""}) {
    CHECK_EQ(Count(text, label), size_t{1});
  }
  CHECK_EQ(Count(text, "\"name\":\"NEGOTIATE_BROADCAST\""), size_t{3});
}

void AnOpThatFailedBeforeItRan() {
  const TemporaryTrace trace;
  Timeline timeline;
  CHECK(timeline.Start(trace.path(), 0, 1, "h", false).ok());
  OpRecord record = Record(0, "weight");
  record.agreed = record.started = Time{};
  record.status = SE_MISMATCH;
  record.num_requests = 2;
  timeline.Op(record);
  timeline.Stop();
  const std::string text = trace.Text();
  CheckForm(text, true);
  CHECK_CONTAINS(text, "\"name\":\"NEGOTIATE_ALLREDUCE\",\"ts\":1000.000,\"dur\":500.000");
  CHECK_CONTAINS(text, "\"fused_names\":2,\"negotiation\":\"slow\",\"outcome\":\"mismatch\"}");
  CHECK_EQ(Count(text, "\"name\":\"ALLREDUCE\""), size_t{0});
  CHECK_EQ(Count(text, "one shot"), size_t{0});
}

void CyclesAreMarkedOnRequest() {
  for (const bool mark : {false, true}) {
    const TemporaryTrace trace;
    Timeline timeline;
    CHECK(timeline.Start(trace.path(), 0, 1, "h", mark).ok());
    CHECK_EQ(timeline.marks_cycles(), mark);
    timeline.Cycle(At(77));
    timeline.Stop();
    CHECK(!timeline.marks_cycles());
    const std::string text = trace.Text();
    CHECK_EQ(Count(text, "\"name\":\"CYCLE_START\",\"s\":\"p\",\"ts\":77.000"), size_t{mark ? 1u : 0u});
  }
}

void NamesAreEscaped() {
  const TemporaryTrace trace;
  Timeline timeline;
  CHECK(timeline.Start(trace.path(), 0, 1, "quote \" and \\", false).ok());
  const std::string valid = "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
  timeline.Op(Record(1, std::string("nul\0", 4) + ", \"q\", \\, \n, \x1f, \x7f"));
  // An overlong slash, a surrogate, above the last character, a lone continuation, a sequence cut short.
  timeline.Op(Record(2, valid + "\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|\x80|\xe2\x82"));
  timeline.Stop();
  const std::string text = trace.Text();
  CheckForm(text, true);
  CHECK_CONTAINS(text, "rank 0, quote \\\" and \\\\");
  CHECK_CONTAINS(text, "allreduce.nul\\u0000, \\\"q\\\", \\\\, \\u000a, \\u001f, \\u007f\"");
  const std::string bad = "\\ufffd";
  CHECK_CONTAINS(text, valid + bad + bad + "|" + bad + bad + bad + "|" + bad + bad + bad + bad + "|" + bad + "|" + bad +
                           bad + "\"");
}

void OneTraceAtATimeThenAnother() {
  const TemporaryTrace first;
  const TemporaryTrace second;
  Timeline timeline;
  timeline.Stop();  // never started: nothing happens
  CHECK(timeline.Start(first.path(), 0, 1, "h", false).ok());
  const Status again = timeline.Start(second.path(), 0, 1, "h", false);
  CHECK_EQ(static_cast<int>(again.code()), static_cast<int>(SE_INVALID_ARGUMENT));
  CHECK_CONTAINS(again.message(), first.path());
  CHECK(timeline.on());
  timeline.Op(Record(1, "one"));
  timeline.Stop();
  timeline.Stop();
  timeline.Op(Record(2, "between"));
  CHECK(timeline.Start(second.path(), 0, 1, "h", false).ok());
  timeline.Op(Record(3, "two"));
  timeline.Stop();
  CHECK_CONTAINS(first.Text(), "allreduce.one");
  CHECK_CONTAINS(second.Text(), "allreduce.two");
  CHECK_EQ(Count(first.Text() + second.Text(), "between"), size_t{0});
}

void PathsThatCannotBeWrittenAreErrors() {
  Timeline timeline;
  for (const std::string path : {"/nonexistent/folder/trace.json", "/", "", "/dev/full"}) {
    const Status status = timeline.Start(path, 0, 1, "h", false);
    CHECK_EQ(static_cast<int>(status.code()), static_cast<int>(SE_SYSTEM_ERROR));
    CHECK_CONTAINS(status.message(), "the timeline " + path + " cannot be ");
    CHECK(!timeline.on());
  }
  const TemporaryTrace trace;  // and it is not broken by that
  CHECK(timeline.Start(trace.path(), 0, 1, "h", false).ok());
  timeline.Stop();
  CheckForm(trace.Text(), true);
}

// In a child, because limits and deaths are a process's.
int InChild(const std::function<void()>& run) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    run();
    std::_Exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status;
}

void ADiskThatFillsUpEndsTheTraceOnly() {
  const TemporaryTrace trace;
  const int status = InChild([&trace] {
    CHECK(freopen((trace.path() + ".stderr").c_str(), "w", stderr) != nullptr);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {20'000, 20'000};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    Timeline timeline;
    CHECK(timeline.Start(trace.path(), 1, 2, "h", false).ok());
    for (int64_t i = 0; i < 1000; ++i) timeline.Op(Record(i, "weight"));
    timeline.Stop();
    CHECK(!timeline.on());
    timeline.Op(Record(1, "later"));
    std::fflush(stderr);
    // And once more, into a file that is small enough.
    CHECK(timeline.Start(trace.path() + ".second", 1, 2, "h", false).ok());
    timeline.Stop();
  });
  CHECK_EQ(status, 0);
  CheckForm(trace.Text(), false);
  std::ifstream told(trace.path() + ".stderr");
  std::string line;
  std::getline(told, line);
  CHECK_CONTAINS(line, "rank 1, h: the timeline " + trace.path() + " cannot be written: File too large");
  CHECK_CONTAINS(line, "the trace ends here, the job continues");
  CHECK(!std::getline(told, line));
}

void AKilledProcessLeavesAReadableFile() {
  const TemporaryTrace trace;
  const int status = InChild([&trace] {
    Timeline timeline;
    CHECK(timeline.Start(trace.path(), 0, 1, "h", false).ok());
    timeline.Op(Record(1, "written"));
    while (trace.Text().find("allreduce.written") == std::string::npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    timeline.Op(Record(2, "lost"));
    kill(getpid(), SIGKILL);
  });
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CheckForm(trace.Text(), false);
}

void RecordersAndStopsDoNotDisturbEachOther() {
  const TemporaryTrace trace;
  Timeline timeline;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!done) {
        timeline.Op(Record(5, "weight"));
        timeline.Cycle(At(3));
        std::this_thread::yield();
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    CHECK(timeline.Start(trace.path(), 0, 1, "h", true).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    timeline.Stop();
    CheckForm(trace.Text(), true);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

void BuffersAreBoundedAndCountWhatTheyDrop() {
  TraceBuffer buffer(4, 10);
  CHECK(buffer.empty());
  CHECK(buffer.Add({}, "12345"));
  CHECK(buffer.half_full());
  CHECK(!buffer.Add({}, "123456"));
  CHECK(buffer.Add({}, "67890"));
  CHECK(buffer.Add({}, ""));
  CHECK(buffer.Add({}, ""));
  CHECK(!buffer.Add({}, ""));
  CHECK_EQ(buffer.dropped(), 2);
  CHECK_EQ(std::string(buffer.NameOf(buffer.events()[1])), std::string("67890"));
  const TemporaryTrace trace;
  TraceFile file;
  CHECK(file.Open(trace.path(), {0, 1, 0, "h"}).ok());
  CHECK(file.Write(buffer).ok());
  buffer.Clear();
  CHECK(buffer.empty() && !buffer.half_full());
  CHECK(file.Close().ok());
  CHECK_CONTAINS(trace.Text(), "\"dropped_events\":2");
}

void NamesWithoutEndShareARow() {
  const TemporaryTrace trace;
  TraceFile file;
  CHECK(file.Open(trace.path(), {0, 1, 0, "h"}).ok());
  TraceBuffer buffer(1000, size_t{4} << 20);
  const std::string long_name(4000, 'x');
  TraceEvent event;
  event.submitted = At(1);
  event.agreed = At(2);
  for (int block = 0; block < 4; ++block) {
    for (int i = 0; i < 1000; ++i) CHECK(buffer.Add(event, long_name + std::to_string(block * 1000 + i)));
    CHECK(file.Write(buffer).ok());
    buffer.Clear();
  }
  CHECK(file.Close().ok());
  const std::string text = trace.Text();
  CheckForm(text, true);
  CHECK_EQ(Count(text, "\"tid\":1,\"args\":{\"name\":\"other names\"}"), size_t{1});
  const size_t own_rows = Count(text, "\"thread_name\"") - 2;
  CHECK(own_rows > 1000 && own_rows < 4000);
  CHECK_EQ(Count(text, "\"pid\":0,\"tid\":1},\n"), 4000 - own_rows);
}

}  // namespace
}  // namespace spark_estimator::testing

int main() {
  using namespace spark_estimator::testing;
  return RunTests({{"an op has Horovod's phases in its row", AnOpHasHorovodsPhasesInItsRow},
                   {"each op and name has one row", EachOpAndNameHasOneRow},
                   {"an op that failed before it ran", AnOpThatFailedBeforeItRan},
                   {"cycles are marked on request", CyclesAreMarkedOnRequest},
                   {"names are escaped", NamesAreEscaped},
                   {"one trace at a time, then another", OneTraceAtATimeThenAnother},
                   {"paths that cannot be written are errors", PathsThatCannotBeWrittenAreErrors},
                   {"a disk that fills up ends the trace only", ADiskThatFillsUpEndsTheTraceOnly},
                   {"a killed process leaves a readable file", AKilledProcessLeavesAReadableFile},
                   {"recorders and stops do not disturb each other", RecordersAndStopsDoNotDisturbEachOther},
                   {"buffers are bounded and count what they drop", BuffersAreBoundedAndCountWhatTheyDrop},
                   {"names without end share a row", NamesWithoutEndShareARow}});
}
