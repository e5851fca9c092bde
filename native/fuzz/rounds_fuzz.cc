// Fuzzes the rounds over control frames: ranks that propose, and frames that are changed, doubled or made up in flight.
#include <deque>
#include <memory>
#include <vector>

#include "engine/rounds/frame_rounds.h"
#include "input.h"

using namespace spark_estimator;

namespace {

constexpr size_t kCapacity = 128;

struct Travelling {
  int from;
  int to;
  std::string payload;
};

// Everything that an engine reads of an outcome.
void ReadOutcome(const FrameRounds& rounds, int size, size_t data_bytes) {
  const Outcome& outcome = rounds.outcome();
  if (outcome.leaves_rounds) return;
  fuzz::Require(outcome.single >= 0 || !outcome.agreed.empty(), "an outcome to run names something to run");
  fuzz::Require(outcome.single < static_cast<int32_t>(kCapacity), "it names what can be cached");
  unsigned sum = 0;
  if (outcome.carries_data) {
    for (int rank = 0; rank < size; ++rank) {
      // What an engine insists on: its own rank's share is as large as everybody's.
      if (rounds.data_bytes_of(rank) != data_bytes) continue;
      for (size_t i = 0; i < data_bytes; ++i) sum += rounds.data_of(rank)[i];
    }
  }
  outcome.agreed.ForEach([&](int32_t id) { fuzz::Require(id < static_cast<int32_t>(kCapacity), "cached ids only"); });
  for (const Line& line : outcome.lines) {
    fuzz::Require(line.size() > 1, "a line goes on");
    for (const int32_t id : line) fuzz::Require(id >= 0 && id < static_cast<int32_t>(kCapacity), "cached ids only");
  }
  fuzz::Require(sum < 1u << 31, "");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length) {
  fuzz::Input input(data, length);
  const int size = 2 + input.Byte() % 5;
  std::deque<Travelling> wire;
  std::vector<std::unique_ptr<FrameRounds>> ranks;
  std::vector<size_t> data_bytes(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<FrameRounds>(
        rank, size, kCapacity,
        [&wire, rank](int to, std::string_view payload) { wire.push_back({rank, to, std::string(payload)}); },
        [](Time) { return Status::Ok(); }));
    ranks.back()->Enter(RoundId{0, 0});
  }
  RoundId round{};
  for (int position = 0; position < 3; ++position) {
    for (int rank = 0; rank < size; ++rank) {
      const auto index = static_cast<size_t>(rank);
      IdSet ids(kCapacity);
      Proposal proposal;
      const uint8_t kind = input.Byte();
      const Lines lines = {{5, kind % 8, 5}};
      proposal.leaves_rounds = kind % 16 == 0;
      if (kind % 2 == 1) {
        proposal.single = kind % 4;
        proposal.carries_data = kind % 8 != 1;
      } else {
        ids.Add(kind % static_cast<int32_t>(kCapacity));
        ids.Add(5);
        proposal.ids = &ids;
        if (kind % 4 == 0) proposal.lines = &lines;
      }
      // Honest ranks have as much data of one name; of those here one in eight has not.
      data_bytes[index] = proposal.carries_data ? (kind < 32 ? 1000 : 8) : 0;
      ranks[index]->Post(
          round, proposal, data_bytes[index], [&](uint8_t* target) { std::memset(target, rank, data_bytes[index]); },
          -1);
    }
    while (!wire.empty()) {
      Travelling frame = std::move(wire.front());
      wire.pop_front();
      const uint8_t what = input.empty() ? 0 : input.Byte();
      std::string& payload = frame.payload;
      if (what == 1) payload = input.Piece();
      if (what == 2) payload += input.Piece();
      if (what == 3 && !payload.empty()) payload.resize(input.Byte() % payload.size());
      if (what == 4 && !payload.empty()) payload[input.Byte() % payload.size()] = static_cast<char>(input.Byte());
      if (what == 5) frame.from = input.Byte() % size;
      if (what == 6) (void)ranks[static_cast<size_t>(frame.to)]->Take(frame.from, payload);
      // A frame that is refused ends its job; here the others are still checked.
      (void)ranks[static_cast<size_t>(frame.to)]->Take(frame.from, payload);
    }
    for (int rank = 0; rank < size; ++rank) {
      const auto index = static_cast<size_t>(rank);
      if (ranks[index]->done()) ReadOutcome(*ranks[index], size, data_bytes[index]);
    }
    ++round.position;
  }
  return 0;
}
