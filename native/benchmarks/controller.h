// Measures jobs of this program in turns and prints what they took; the same conversation as the package's benchmark.
#ifndef SPARK_ESTIMATOR_BENCHMARKS_CONTROLLER_H_
#define SPARK_ESTIMATOR_BENCHMARKS_CONTROLLER_H_

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/engine_library.h"
#include "benchmarks/forked_job.h"

namespace spark_estimator::benchmarks {

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Ranks that answer commands, each on a separate socket pair.
class MeasuredJob {
 public:
  explicit MeasuredJob(const JobSettings& settings) : sockets_(static_cast<size_t>(settings.size)) {
    std::vector<int> theirs;
    for (int& socket : sockets_) {
      int ends[2];
      Demand(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      socket = ends[0];
      theirs.push_back(ends[1]);
    }
    job_ = std::make_unique<ForkedJob>(settings, [&](int rank, se_engine* engine) {
      for (const int socket : sockets_) close(socket);  // or no rank would notice the controller's end
      const EngineLibrary library(engine, rank, settings.size);
      if (library.library() == nullptr) Die(se_last_error());
      return bench_serve(library.library(), theirs[static_cast<size_t>(rank)]) == 0 ? 0 : 1;
    });
    for (const int socket : theirs) close(socket);
    for (const int socket : sockets_) Line(socket);  // each sends its rank
  }
  MeasuredJob(const MeasuredJob&) = delete;
  MeasuredJob& operator=(const MeasuredJob&) = delete;
  ~MeasuredJob() {
    // Not the end of the sockets alone: other jobs' ranks, forked later, hold copies of them.
    for (const int socket : sockets_) {
      send(socket, "quit\n", 5, MSG_NOSIGNAL);
      close(socket);
    }
    job_->Wait();
  }

  // All ranks' answers, in rank order. Dies when a rank ends or sends nothing for two minutes.
  std::vector<std::string> Ask(const std::string& command) {
    for (const int socket : sockets_) {
      Demand(send(socket, (command + "\n").data(), command.size() + 1, MSG_NOSIGNAL) >= 0, "send to a rank");
    }
    std::vector<std::string> answers;
    for (const int socket : sockets_) answers.push_back(Line(socket));
    return answers;
  }

 private:
  static std::string Line(int socket) {
    constexpr int kPatienceMilliseconds = 120000;
    std::string line;
    for (;;) {
      pollfd wait{socket, POLLIN, 0};
      if (poll(&wait, 1, kPatienceMilliseconds) <= 0) Die("a rank does not answer");
      char part[65536];
      const ssize_t count = recv(socket, part, sizeof part, 0);
      if (count <= 0) Die("a rank has ended");
      line.append(part, static_cast<size_t>(count));
      if (line.back() == '\n') return line.substr(0, line.size() - 1);
    }
  }

  std::vector<int> sockets_;  // by rank
  std::unique_ptr<ForkedJob> job_;
};

struct Subject {
  std::string name;
  MeasuredJob* job;
  std::string variant;
};

// One op at one size, as a command has it.
struct Form {
  std::string op;
  std::string dtype;
  int64_t bytes;

  // As Form.batch of the package's benchmark.
  int batch() const {
    return op == "barrier" ? 32
                           : static_cast<int>(std::clamp<int64_t>((256 << 10) / std::max<int64_t>(bytes, 1), 1, 32));
  }
  std::string Words(const std::string& variant) const {
    return variant + " " + op + " " + dtype + " " + std::to_string(bytes) + " " + std::to_string(batch());
  }
};

// Microseconds an op; negative where the subject does not offer it.
struct Figure {
  double slowest = -1;
  double rank0 = -1;
  int blocks = 0;
};

inline std::pair<double, double> Block(const Subject& subject, const Form& form, int samples) {
  std::vector<double> slowest(static_cast<size_t>(samples), 0);
  double rank0 = 0;
  bool first = true;
  for (const std::string& answer :
       subject.job->Ask("block " + form.Words(subject.variant) + " " + std::to_string(samples))) {
    std::istringstream words(answer);
    std::string word;
    words >> word;
    if (word != "times") Die(subject.name + ": " + form.op + " of " + std::to_string(form.bytes) + " bytes: " + answer);
    std::vector<double> times(static_cast<size_t>(samples));
    for (double& time : times) words >> time;
    for (size_t index = 0; index < times.size(); ++index) slowest[index] = std::max(slowest[index], times[index]);
    if (first) rank0 = Median(times);
    first = false;
  }
  return {Median(slowest) / 1e3, rank0 / 1e3};
}

// Checks every subject's numbers, then measures them in turns for `seconds` each.
inline std::vector<Figure> Measure(const Form& form, const std::vector<Subject>& subjects, double seconds) {
  constexpr double kBlockSeconds = 0.06;
  constexpr int kLeastBlocks = 3;
  constexpr int kMostSamples = 500;
  std::vector<int> samples(subjects.size(), 0);
  size_t able = 0;
  for (size_t index = 0; index < subjects.size(); ++index) {
    bool offered = true;
    for (const std::string& answer : subjects[index].job->Ask("check " + form.Words(subjects[index].variant))) {
      if (answer.rfind("unsupported", 0) == 0) {
        offered = false;
      } else if (answer != "ok") {
        Die(subjects[index].name + ": " + form.op + " of " + std::to_string(form.bytes) + " bytes of " + form.dtype +
            ": " + answer);
      }
    }
    if (!offered) continue;
    const double start = bench_now();
    Block(subjects[index], form, 1);
    const double each = (bench_now() - start) / 3;  // 1 and the 2 that do not count
    samples[index] = static_cast<int>(std::clamp(std::min(kBlockSeconds, seconds) / each, 1.0, double{kMostSamples}));
    ++able;
  }
  std::vector<std::vector<double>> slowest(subjects.size());
  std::vector<std::vector<double>> rank0(subjects.size());
  const double deadline = bench_now() + seconds * static_cast<double>(able);
  for (size_t turn = 0; able > 0 && (turn < kLeastBlocks || bench_now() < deadline); ++turn) {
    for (size_t place = 0; place < subjects.size(); ++place) {
      const size_t index = (turn + place) % subjects.size();
      if (samples[index] == 0) continue;
      const auto [all, first] = Block(subjects[index], form, samples[index]);
      slowest[index].push_back(all);
      rank0[index].push_back(first);
    }
  }
  std::vector<Figure> figures(subjects.size());
  for (size_t index = 0; index < subjects.size(); ++index) {
    if (slowest[index].empty()) continue;
    figures[index] = {Median(slowest[index]), Median(rank0[index]), static_cast<int>(slowest[index].size())};
  }
  return figures;
}

}  // namespace spark_estimator::benchmarks

#endif  // SPARK_ESTIMATOR_BENCHMARKS_CONTROLLER_H_
