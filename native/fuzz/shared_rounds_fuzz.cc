// Fuzzes the rounds in shared memory: a rank reads the slots of peers that hold anything, and stays within its memory.
#include <cstring>
#include <memory>
#include <vector>

#include "engine/rounds/shared_rounds.h"
#include "input.h"
#include "transport/shared_group.h"

using namespace spark_estimator;

namespace {

constexpr size_t kCapacity = 100;
constexpr size_t kTensorBytes = 4096;

class Alive : public Liveness {
 public:
  Status Check() override { return Status::Ok(); }
};

// Mapped once: making segments takes longer than everything else.
SharedGroup& GroupOf(int size) {
  static Alive alive;
  static std::vector<std::unique_ptr<SharedGroup>> groups(5);
  std::unique_ptr<SharedGroup>& group = groups[static_cast<size_t>(size)];
  if (group) return *group;
  group = std::make_unique<SharedGroup>();
  group->size = size;
  group->rank = size - 1;
  group->liveness = &alive;
  group->waiting = Waiting(size, 1, 0);
  for (int rank = 0; rank < size; ++rank) {
    UniqueFd fd;
    Segment segment;
    fuzz::Require(Segment::Create(size, &fd).ok() && segment.Map(fd.get(), size).ok(), "memory for segments");
    group->segments.push_back(std::move(segment));
  }
  return *group;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length) {
  fuzz::Input input(data, length);
  SharedGroup& group = GroupOf(2 + input.Byte() % 3);
  SharedRounds rounds(&group, kCapacity);
  RoundId round{1, 3};
  rounds.Enter(round);
  IdSet ids(kCapacity);
  Lines lines;
  Proposal proposal;
  const uint8_t kind = input.Byte();
  proposal.leaves_rounds = kind % 16 == 15;
  if (kind % 2 == 0) {
    proposal.single = kind % 8;
    proposal.carries_data = kind % 4 == 0;
  } else {
    for (int count = 0; count < 5; ++count) ids.Add(input.Byte() % static_cast<int32_t>(kCapacity));
    proposal.ids = &ids;
    ids.ForEach([&](int32_t id) {
      if (lines.empty()) lines.push_back({id, id, 3, id});
    });
    proposal.lines = &lines;
  }
  for (int rank = 0; rank + 1 < group.size; ++rank) {
    uint8_t* slot = group.of(rank).round_slot(round.position);
    const std::string_view bytes = input.Piece();
    std::memcpy(slot, bytes.data(), std::min(bytes.size(), SegmentLayout::kRoundBytes));
    auto& header = *reinterpret_cast<ProposalHeader*>(slot);
    const uint8_t honest = input.Byte();
    if (honest % 8 != 0) header.position = round.position;
    if (honest % 4 == 1) header.single = proposal.single;
    if (honest % 16 < 8) header.flags &= ~ProposalHeader::kLeavesRounds;
    group.of(rank).round_posted().value = round.position + 1;
  }
  rounds.Post(
      round, proposal, proposal.carries_data ? 8 : 0, [](uint8_t* target) { std::memset(target, 1, 8); },
      kind % 8 == 2 ? 0 : -1);
  bool done = false;
  fuzz::Require(rounds.Await(Clock::now(), &done).ok() && done, "all have posted");
  const Outcome& outcome = rounds.outcome();
  if (outcome.leaves_rounds) return 0;
  unsigned sum = 0;
  if (outcome.single >= 0) {
    fuzz::Require(outcome.single == proposal.single, "what all propose this rank has proposed");
  } else {
    fuzz::Require(!outcome.agreed.empty(), "an outcome to run names something to run");
    outcome.agreed.ForEach([&](int32_t id) {
      fuzz::Require(proposal.ids == nullptr ? id == proposal.single : ids.Has(id), "nor anything else in a set");
    });
    for (const Line& line : outcome.lines) {
      const bool begins = line.size() <= lines[0].size() && std::equal(line.begin(), line.end(), lines[0].begin());
      fuzz::Require(begins, "nor anything else in a line");
    }
  }
  if (outcome.carries_data) {
    for (int rank = 0; rank < group.size; ++rank) {
      for (size_t i = 0; i < rounds.data_bytes_of(rank); ++i) sum += rounds.data_of(rank)[i];
    }
  }
  std::vector<uint8_t*> in_arenas;
  if (rounds.InArenas(kTensorBytes, &in_arenas)) {
    for (const uint8_t* tensor : in_arenas) sum += tensor[0] + tensor[kTensorBytes - 1];
  }
  fuzz::Require(sum < 1u << 31, "what was read was read");
  return 0;
}
