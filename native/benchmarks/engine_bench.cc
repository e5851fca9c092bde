// Times the engine through its C ABI alone, on forked ranks of this host, and shows what an engine costs beside that.
//
//   engine_bench [--np 2] [--bytes 4,1024,...] [--dtype float32,...] [--op allreduce,...] [--variant plan,shared,...]
//                [--seconds 1] [--tcp] [--spin US] [--foreign N] [--json FILE]
//   engine_bench --idle SECONDS | --wait SECONDS | --memory [--names 100]
//   engine_bench --turns SOCKET    the ranks answer a controller elsewhere; see measured_rank.h
//
// Times are medians in microseconds of the slowest rank. "bound" is c[i] = a[i] + b[i] over each rank's share of the
// bytes, all ranks at once, in the same run. --foreign puts N busy processes beside, and measures a second job that
// does not spin in turns with the first.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/controller.h"
#include "benchmarks/costs.h"

namespace spark_estimator::benchmarks {
namespace {

struct Options {
  JobSettings job;
  std::vector<int64_t> bytes{4, 1024, 65536, 1 << 20, 16 << 20, 102400000};
  std::vector<std::string> dtypes{"float32"};
  std::vector<std::string> ops{"allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "barrier"};
  std::vector<std::string> variants{"plan", "shared", "run", "submit", "bound"};
  double seconds = 1;
  int foreign = 0;
  int names = 100;
  std::string json;
  std::string turns;
  std::optional<double> idle;
  std::optional<double> wait;
  bool memory = false;
};

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

double Number(const std::string& name, const std::string& text, double least) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= least)) {
    Die(name + " " + text + ": expected a number, " + std::to_string(static_cast<int>(least)) + " or more");
  }
  return value;
}

std::vector<std::string> Words(const std::string& name, const std::string& text,
                               const std::vector<std::string>& known) {
  std::vector<std::string> words = Split(text);
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) == known.end()) Die(name + ": '" + word + "' is not known");
  }
  return words;
}

Options Parse(int argc, char** argv) {
  Options options;
  const std::vector<std::string> dtypes(bench_dtype_names, bench_dtype_names + BENCH_NUM_DTYPES);
  for (int index = 1; index < argc; ++index) {
    const std::string name = argv[index];
    if (name == "--tcp") {
      options.job.tcp = true;
      continue;
    }
    if (name == "--memory") {
      options.memory = true;
      continue;
    }
    if (index + 1 == argc)
      Die(name + " is not known, or needs a value; the head of engine_bench.cc shows how it is used");
    const std::string value = argv[++index];
    if (name == "--np") {
      options.job.size = static_cast<int>(Number(name, value, 1));
    } else if (name == "--spin") {
      options.job.spin_microseconds = static_cast<int>(Number(name, value, -1));
    } else if (name == "--bytes") {
      options.bytes.clear();
      for (const std::string& part : Split(value)) options.bytes.push_back(static_cast<int64_t>(Number(name, part, 1)));
    } else if (name == "--dtype") {
      options.dtypes = Words(name, value, dtypes);
    } else if (name == "--op") {
      options.ops = Words(name, value, options.ops);
    } else if (name == "--variant") {
      options.variants = Words(name, value, options.variants);
    } else if (name == "--seconds") {
      options.seconds = Number(name, value, 0);
    } else if (name == "--foreign") {
      options.foreign = static_cast<int>(Number(name, value, 1));
    } else if (name == "--names") {
      options.names = static_cast<int>(Number(name, value, 1));
    } else if (name == "--json") {
      options.json = value;
    } else if (name == "--turns") {
      options.turns = value;
    } else if (name == "--idle") {
      options.idle = Number(name, value, 0);
    } else if (name == "--wait") {
      options.wait = Number(name, value, 0);
    } else {
      Die(name + " is not known; the head of engine_bench.cc shows how it is used");
    }
  }
  return options;
}

// Processes that do nothing but use their time slices.
class BusyProcesses {
 public:
  explicit BusyProcesses(int number) {
    for (int index = 0; index < number; ++index) {
      const pid_t pid = fork();
      Demand(pid >= 0, "fork");
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) asm volatile("");
      }
      pids_.push_back(pid);
    }
  }
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;
  ~BusyProcesses() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }

 private:
  std::vector<pid_t> pids_;
};

// Writes one JSON object. Names and values here need no escapes.
void WriteJson(const std::string& path, const std::string& object) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  if (file == nullptr) Die("cannot write " + path + ": " + std::strerror(errno));
  std::fprintf(file, "%s\n", object.c_str());
  if (file != stdout) std::fclose(file);
}

std::string Heading(const Options& options) {
  return "\"ranks\": " + std::to_string(options.job.size) + ", \"cores\": " + std::to_string(Cores()) +
         ", \"channel\": \"" + (options.job.tcp ? "loopback TCP" : "shared memory") +
         "\", \"spin_microseconds\": " + std::to_string(options.job.spin_microseconds) +
         ", \"foreign\": " + std::to_string(options.foreign);
}

void RunTable(const Options& options) {
  // First the ranks, all of them forked before this process has threads or connections, then the busy ones.
  std::vector<std::unique_ptr<MeasuredJob>> jobs;
  jobs.push_back(std::make_unique<MeasuredJob>(options.job));
  std::vector<Subject> subjects;
  for (const std::string& variant : options.variants) {
    subjects.push_back({variant, jobs[0].get(), variant});
  }
  if (options.foreign > 0) {
    JobSettings still = options.job;
    still.spin_microseconds = 0;
    jobs.push_back(std::make_unique<MeasuredJob>(still));
    subjects.push_back({"plan, no spin", jobs[1].get(), "plan"});
  }
  const BusyProcesses busy(options.foreign);
  std::FILE* screen = options.json == "-" ? stderr : stdout;
  std::fprintf(screen, "%d ranks on %d cores, %s, %d busy processes beside; us, slowest rank\n", options.job.size,
               Cores(), options.job.tcp ? "loopback TCP" : "shared memory", options.foreign);
  std::fprintf(screen, "%-13s  %-8s  %10s", "op", "dtype", "bytes");
  for (const Subject& subject : subjects) std::fprintf(screen, "  %13s", subject.name.c_str());
  std::fprintf(screen, "\n");
  std::string results;
  for (const std::string& op : options.ops) {
    for (const std::string& dtype : options.dtypes) {
      for (const int64_t bytes : options.bytes) {
        if (op == "barrier" && (bytes != options.bytes[0] || dtype != options.dtypes[0])) continue;
        const Form form{op, dtype, op == "barrier" ? 0 : bytes};
        const std::vector<Figure> figures = Measure(form, subjects, options.seconds);
        std::fprintf(screen, "%-13s  %-8s  %10lld", op.c_str(), dtype.c_str(), static_cast<long long>(form.bytes));
        std::string cells;
        for (size_t index = 0; index < subjects.size(); ++index) {
          const Figure& figure = figures[index];
          if (figure.blocks == 0) {
            std::fprintf(screen, "  %13s", "-");
            continue;
          }
          std::fprintf(screen, "  %13.*f", figure.slowest < 100 ? 3 : 1, figure.slowest);
          cells += (cells.empty() ? "" : ", ") + std::string("\"") + subjects[index].name +
                   "\": {\"us\": " + std::to_string(figure.slowest) +
                   ", \"rank0_us\": " + std::to_string(figure.rank0) +
                   ", \"blocks\": " + std::to_string(figure.blocks) + "}";
        }
        std::fprintf(screen, "\n");
        std::fflush(screen);
        results += (results.empty() ? "\n  " : ",\n  ") + std::string("{\"op\": \"") + op + "\", \"dtype\": \"" +
                   dtype + "\", \"bytes\": " + std::to_string(form.bytes) + ", \"subjects\": {" + cells + "}}";
      }
    }
  }
  if (!options.json.empty()) WriteJson(options.json, "{" + Heading(options) + ", \"results\": [" + results + "]}");
}

// One cost: prints it, and writes it when asked.
void Tell(const Options& options, const std::string& name, const std::string& unit, double value) {
  std::fprintf(options.json == "-" ? stderr : stdout, "%s, %d ranks, worst of them: %.3f %s\n", name.c_str(),
               options.job.size, value, unit.c_str());
}

void RunCosts(const Options& options) {
  const Reports reports(options.job.size);
  std::string object = "{" + Heading(options);
  const auto tell = [&](const char* key, const std::string& name, const std::string& unit, double value) {
    Tell(options, name, unit, value);
    object += ", \"" + std::string(key) + "\": " + std::to_string(value);
  };
  if (options.idle) {
    Idle(options.job, *options.idle, reports);
    tell("idle_percent", "an idle engine's processor time", "% of a core", reports.Largest(0));
    tell("idle_wake_ups", "an idle engine's wake-ups", "a second", reports.Largest(1));
  }
  if (options.wait) {
    WaitForLate(options.job, *options.wait, reports);
    tell("wait_percent", "processor time while waiting for a late rank", "% of a core", reports.Largest(0));
  }
  if (options.memory) {
    constexpr double kMebibyte = 1 << 20;
    Memory(options.job, options.names, int64_t{32} << 20, reports);
    const std::string after = "memory beyond the tensors after " + std::to_string(options.names) + " names";
    tell("resident_mebibytes", after + ", all that is mapped", "MiB", reports.Largest(0) / kMebibyte);
    tell("proportional_mebibytes", after + ", what is shared by parts", "MiB", reports.Largest(1) / kMebibyte);
  }
  if (!options.json.empty()) WriteJson(options.json, object + "}");
}

// The ranks connect to a controller and obey its commands.
void RunTurns(const Options& options) {
  ForkedJob job(options.job, [&](int rank, se_engine* engine) {
    const EngineLibrary library(engine, rank, options.job.size);
    if (library.library() == nullptr) Die(se_last_error());
    const int socket = bench_dial(options.turns.c_str());
    Demand(socket >= 0, "connecting to the controller");
    return bench_serve(library.library(), socket) == 0 ? 0 : 1;
  });
  job.Wait();
}

}  // namespace
}  // namespace spark_estimator::benchmarks

int main(int argc, char** argv) {
  using namespace spark_estimator::benchmarks;
  const Options options = Parse(argc, argv);
  if (!options.turns.empty()) {
    RunTurns(options);
  } else if (options.idle || options.wait || options.memory) {
    RunCosts(options);
  } else {
    RunTable(options);
  }
  return 0;
}
