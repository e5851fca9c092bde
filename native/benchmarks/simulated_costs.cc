// Prints, as Markdown, what collectives cost as ranks grow: the real algorithms and the engine's rounds of proposals on
// a modelled network (tests/simulated_network.h), in virtual time. The model is printed above each table.
//
//   simulated_costs                                                     all tables
//   simulated_costs HOSTS RANKS_PER_HOST GIGABITS LATENCY_US BYTES...   of an allreduce, a line for each size:
//                                                                       bytes, seconds flat, seconds hierarchical
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "algorithms/streams/stream.h"
#include "simulated_frames.h"
#include "simulated_network.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

constexpr double kSharedBytesPerSecond = 10e9;  // of a host's ranks together, through shared memory
constexpr double kSharedHandOff = 1e-6;

void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::_Exit(1);
}

std::string Time(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text),
                seconds < 1e-3  ? "%.0f us"
                : seconds < 0.1 ? "%.1f ms"
                                : "%.0f ms",
                seconds < 1e-3 ? seconds * 1e6 : seconds * 1e3);
  return text;
}

Cost Run(SimulatedNetwork& network, const std::function<void(StreamGroup&)>& body) {
  network.ResetCosts();
  network.Run(body);
  return network.largest();
}

Cost Allreduce(SimulatedNetwork& network, AllreduceAlgorithm algorithm, size_t bytes) {
  return Run(network, [&](StreamGroup& group) {
    std::vector<float> data(bytes / sizeof(float), 1);
    Check(StreamAllreduce(group, algorithm, data.data(), data.data(), data.size(), SE_FLOAT32, SE_SUM, Finish{}));
    for (const float value : data) {
      if (value != static_cast<float>(group.size())) Check(Status(SE_INTERNAL, "a wrong sum"));
    }
  });
}

Cost Round(SimulatedNetwork& network, bool with_data) {
  return Run(network, [&](StreamGroup& group) {
    SimulatedFrames frames(group, 1024);
    IdSet ids(1024);
    for (int32_t id = 0; id < 1024; id += 2) ids.Add(id);
    Proposal proposal{.ids = &ids};
    if (with_data) proposal = Proposal{.single = 1, .carries_data = true};
    frames.rounds().Enter(RoundId{1, 0});
    frames.rounds().Post(RoundId{1, 0}, proposal, with_data ? 4 : 0, [](uint8_t*) {}, -1);
    bool done = false;
    Check(frames.rounds().Await(spark_estimator::Time::max(), &done));
  });
}

// Inside the hosts as modelled above, across them for real.
Cost Hierarchical(SimulatedNetwork& network, int ranks_per_host, size_t bytes) {
  const auto in_host = static_cast<double>(bytes) * 2 / kSharedBytesPerSecond * ranks_per_host;
  const bool small = bytes <= Tuning{}.exchange_bytes;
  return Run(network, [&](StreamGroup& group) {
    const int local = group.rank() % ranks_per_host;
    network.Spend(group, kSharedHandOff + in_host / 2);
    if (!small || local == 0) {
      std::vector<int> members;
      for (int rank = local; rank < group.size(); rank += ranks_per_host) members.push_back(rank);
      SubGroup across(&group, members);
      const size_t share = small ? bytes : bytes / static_cast<size_t>(ranks_per_host);
      std::vector<float> data(share / sizeof(float), 1);
      Check(StreamAllreduce(across, data.data(), data.data(), data.size(), SE_FLOAT32, SE_SUM, Finish{}));
    }
    network.Spend(group, kSharedHandOff + in_host / 2);
  });
}

void Row(const std::string& what, const std::vector<std::string>& cells) {
  std::printf("| %s |", what.c_str());
  for (const std::string& cell : cells) std::printf(" %s |", cell.c_str());
  std::printf("\n");
  std::fflush(stdout);
}

void Heads(const std::string& what, const std::vector<std::string>& heads) {
  Row(what, heads);
  Row("---", std::vector<std::string>(heads.size(), "---"));
}

std::string Told(const Cost& cost) { return Time(cost.seconds) + ", " + std::to_string(cost.messages); }

void OneRankAHost() {
  std::printf("\nOne rank a host, 25 us and 25 Gbit/s between hosts, 1.5 us a call: time, messages of a rank\n\n");
  const std::vector<int> sizes = {2, 8, 64, 256, 1024};
  std::vector<std::string> heads;
  for (const int ranks : sizes) heads.push_back(std::to_string(ranks) + " ranks");
  Heads("what", heads);
  const auto row = [&](const char* what, const std::function<std::string(SimulatedNetwork&)>& cell) {
    std::vector<std::string> cells;
    for (const int ranks : sizes) {
      SimulatedNetwork network(NetworkModel{.hosts = ranks});
      cells.push_back(cell(network));
    }
    Row(what, cells);
  };
  row("agreement on 512 cached names", [](SimulatedNetwork& network) { return Told(Round(network, false)); });
  row("agreement with a scalar's data", [](SimulatedNetwork& network) { return Told(Round(network, true)); });
  const auto allreduce = [&](const char* what, AllreduceAlgorithm algorithm, size_t bytes, int most) {
    row(what, [&](SimulatedNetwork& network) {
      return network.size() > most ? std::string("-") : Told(Allreduce(network, algorithm, bytes));
    });
  };
  allreduce("4 B, exchange", AllreduceAlgorithm::kExchange, 4, 1024);
  allreduce("4 B, recursive doubling", AllreduceAlgorithm::kDoubling, 4, 1024);
  allreduce("4 KiB, recursive doubling", AllreduceAlgorithm::kDoubling, 4096, 1024);
  allreduce("64 KiB, recursive doubling", AllreduceAlgorithm::kDoubling, 64 << 10, 1024);
  allreduce("64 KiB, halving-doubling", AllreduceAlgorithm::kHalving, 64 << 10, 1024);
  allreduce("64 KiB, direct", AllreduceAlgorithm::kDirect, 64 << 10, 256);
  allreduce("64 KiB, ring", AllreduceAlgorithm::kRing, 64 << 10, 256);
  allreduce("1 MiB, halving-doubling", AllreduceAlgorithm::kHalving, 1 << 20, 256);
  allreduce("1 MiB, direct", AllreduceAlgorithm::kDirect, 1 << 20, 256);
  allreduce("1 MiB, ring", AllreduceAlgorithm::kRing, 1 << 20, 256);
  allreduce("16 MiB, halving-doubling", AllreduceAlgorithm::kHalving, 16 << 20, 8);
  allreduce("16 MiB, direct", AllreduceAlgorithm::kDirect, 16 << 20, 8);
  allreduce("16 MiB, ring", AllreduceAlgorithm::kRing, 16 << 20, 8);
}

void EightRanksAHost() {
  std::printf("\nEight ranks a host, else the same; shared memory 10 GB/s a host: time, bytes a host sends\n\n");
  const std::vector<int> hosts = {2, 8, 32, 128};
  std::vector<std::string> heads;
  for (const int number : hosts) heads.push_back(std::to_string(number) + " x 8");
  Heads("what", heads);
  for (const size_t bytes : {size_t{4}, size_t{64} << 10, size_t{1} << 20}) {
    for (const bool hierarchical : {false, true}) {
      std::vector<std::string> cells;
      for (const int number : hosts) {
        if (bytes > (64 << 10) && number > 32) {
          cells.push_back("-");
          continue;
        }
        SimulatedNetwork network(NetworkModel{.hosts = number, .ranks_per_host = 8});
        Situation situation{.bytes = bytes, .ranks = network.size(), .hosts = network.size()};
        const Cost cost =
            hierarchical ? Hierarchical(network, 8, bytes) : Allreduce(network, ChooseAllreduce(situation), bytes);
        int64_t across = 0;
        for (int rank = 0; rank < 8; ++rank) across += network.cost(rank).bytes_across;
        cells.push_back(Time(cost.seconds) + ", " + std::to_string(across));
      }
      Row(std::to_string(bytes) + " B, " + (hierarchical ? "hierarchical" : "flat, as chosen"), cells);
    }
  }
}

// What makes a cluster slower than the sum of its links: a table for each number of ranks.
void UnevenClusters() {
  std::printf(
      "\nOne rank a host, 4 KiB and 1 MiB as chosen: even; one host with a tenth of the rate; a rank that comes 1 ms "
      "late (time after it has come); a switch that carries a quarter of all links\n\n");
  Heads("ranks", {"4 KiB", "slow link", "late rank", "switch", "1 MiB", "slow link", "late rank", "switch"});
  for (const int ranks : {8, 64, 256, 1024, 4096}) {
    std::vector<std::string> cells;
    for (const size_t bytes : {size_t{4} << 10, size_t{1} << 20}) {
      for (int kind = 0; kind < 4; ++kind) {
        if (bytes > (4 << 10) && ranks > 256) {
          cells.emplace_back("-");
          continue;
        }
        NetworkModel model{.hosts = ranks};
        if (kind == 1) model.slow_host = ranks / 3;
        if (kind == 3) model.core_bytes_per_second = model.bytes_per_second * ranks / 4;
        const double late = kind == 2 ? 1e-3 : 0;
        SimulatedNetwork network(model);
        const AllreduceAlgorithm algorithm = ChooseAllreduce({.bytes = bytes, .ranks = ranks, .hosts = ranks});
        const Cost cost = Run(network, [&](StreamGroup& group) {
          if (late > 0 && group.rank() == ranks / 3) network.Spend(group, late);
          std::vector<float> data(bytes / sizeof(float), 1);
          Check(StreamAllreduce(group, algorithm, data.data(), data.data(), data.size(), SE_FLOAT32, SE_SUM, Finish{}));
        });
        cells.push_back(Time(cost.seconds - late));
      }
    }
    Row(std::to_string(ranks), cells);
  }
}

// Where one algorithm begins to be faster than another: the numbers behind the limits in algorithms/choose.cc.
void Crossovers() {
  const auto sizes = {size_t{1} << 10,   size_t{4} << 10, size_t{16} << 10, size_t{64} << 10,
                      size_t{256} << 10, size_t{1} << 20, size_t{4} << 20};
  std::printf("\nOne rank a host: the fastest algorithm by size, and what the engine chooses (if another)\n\n");
  std::vector<std::string> heads;
  for (const size_t bytes : sizes) heads.push_back(std::to_string(bytes >> 10) + " KiB");
  Heads("ranks", heads);
  for (const int ranks : {2, 4, 8, 16, 32, 64, 128}) {
    std::vector<std::string> cells;
    for (const size_t bytes : sizes) {
      if (bytes * static_cast<size_t>(ranks) > (size_t{128} << 20)) {
        cells.emplace_back("-");
        continue;
      }
      SimulatedNetwork network(NetworkModel{.hosts = ranks});
      const auto seconds = [&](AllreduceAlgorithm algorithm) { return Allreduce(network, algorithm, bytes).seconds; };
      const AllreduceAlgorithm chosen = ChooseAllreduce({.bytes = bytes, .ranks = ranks, .hosts = ranks});
      AllreduceAlgorithm best = chosen;
      double least = seconds(chosen);
      const double of_chosen = least;
      for (const AllreduceAlgorithm other :
           {AllreduceAlgorithm::kExchange, AllreduceAlgorithm::kDoubling, AllreduceAlgorithm::kHalving,
            AllreduceAlgorithm::kDirect, AllreduceAlgorithm::kRing}) {
        const double time = seconds(other);
        if (time < least) {
          least = time;
          best = other;
        }
      }
      std::string cell = std::string(Name(best)) + " " + Time(least);
      if (best != chosen) cell += " (" + std::string(Name(chosen)) + " " + Time(of_chosen) + ")";
      cells.push_back(cell);
    }
    Row(std::to_string(ranks), cells);
  }
}

double Number(const char* text) {
  char* end = nullptr;
  const double number = std::strtod(text, &end);
  if (*end != '\0' || end == text || number < 0) {
    std::fprintf(stderr, "%s: expected a number of 0 or more\n", text);
    std::exit(2);
  }
  return number;
}

// One line for each size, for `python -m benchmarks.hosts --model`.
int Predict(int count, char** arguments) {
  if (count < 5) {
    std::fprintf(stderr, "usage: simulated_costs HOSTS RANKS_PER_HOST GIGABITS LATENCY_US BYTES...\n");
    return 2;
  }
  NetworkModel model{.hosts = static_cast<int>(Number(arguments[0])),
                     .ranks_per_host = static_cast<int>(Number(arguments[1])),
                     .latency = Number(arguments[3]) * 1e-6,
                     .bytes_per_second = Number(arguments[2]) * 1e9 / 8};
  for (int place = 4; place < count; ++place) {
    const auto bytes = static_cast<size_t>(Number(arguments[place]));
    SimulatedNetwork network(model);
    const Situation situation{.bytes = bytes, .ranks = network.size(), .hosts = network.size()};
    const double flat = Allreduce(network, ChooseAllreduce(situation), bytes).seconds;
    const double hierarchical =
        model.ranks_per_host > 1 ? Hierarchical(network, model.ranks_per_host, bytes).seconds : flat;
    std::printf("%zu %.9f %.9f\n", bytes, flat, hierarchical);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) return Predict(count - 1, arguments + 1);
  OneRankAHost();
  EightRanksAHost();
  UnevenClusters();
  Crossovers();
  return 0;
}
