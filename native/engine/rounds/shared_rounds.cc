#include "engine/rounds/shared_rounds.h"

#include <algorithm>
#include <cstring>

namespace spark_estimator {
namespace {

static_assert(sizeof(ProposalHeader) + kMaxCacheCapacity / 8 + kMostInLines * sizeof(int32_t) <=
              SegmentLayout::kProposalBytes);

const uint64_t* WordsOf(const ProposalHeader& header) {
  return reinterpret_cast<const uint64_t*>(reinterpret_cast<const uint8_t*>(&header) + sizeof(ProposalHeader));
}

// None when they cannot be read: it is another process's memory.
Lines LinesOf(const ProposalHeader& header, size_t num_words, size_t cache_capacity) {
  const uint64_t count = header.num_in_lines;
  if (count == 0 || count > kMostInLines) return {};
  const auto* packed = reinterpret_cast<const int32_t*>(WordsOf(header) + num_words);
  const std::vector<int32_t> copy(packed, packed + count);
  Lines lines;
  return Unpack(copy, cache_capacity, &lines) ? lines : Lines{};
}

}  // namespace

SharedRounds::SharedRounds(SharedGroup* group, size_t cache_capacity)
    : group_(group), cache_capacity_(std::min(cache_capacity, kMaxCacheCapacity)) {}

const ProposalHeader& SharedRounds::HeaderOf(int rank) const {
  return *reinterpret_cast<const ProposalHeader*>(group_->of(rank).round_slot(position_));
}

void SharedRounds::Post(RoundId round, const Proposal& proposal, size_t data_bytes, const WriteData& write_data,
                        int64_t arena_offset) {
  position_ = round.position;
  awaited_ = 0;
  uint8_t* slot = group_->mine().round_slot(position_);
  auto& header = *reinterpret_cast<ProposalHeader*>(slot);
  header.epoch = round.epoch;
  header.position = round.position;
  header.flags = (proposal.leaves_rounds ? ProposalHeader::kLeavesRounds : 0) |
                 (proposal.carries_data ? ProposalHeader::kCarriesData : 0) |
                 (arena_offset >= 0 ? ProposalHeader::kInArena : 0);
  header.single = proposal.single;
  header.num_words = 0;
  header.num_in_lines = 0;
  header.data_bytes = static_cast<uint32_t>(data_bytes);
  header.arena_offset = arena_offset >= 0 ? static_cast<uint64_t>(arena_offset) : 0;
  if (!proposal.leaves_rounds && proposal.single < 0) {
    const auto words = proposal.ids->words();
    header.num_words = static_cast<uint32_t>(words.size());
    std::memcpy(slot + sizeof(ProposalHeader), words.data(), words.size_bytes());
    if (proposal.lines != nullptr) {
      const std::vector<int32_t> packed = Pack(*proposal.lines);
      header.num_in_lines = packed.size();
      std::memcpy(slot + sizeof(ProposalHeader) + words.size_bytes(), packed.data(), packed.size() * sizeof(int32_t));
    }
  }
  if (data_bytes > 0) write_data(slot + SegmentLayout::kProposalBytes);
  spark_estimator::Post(group_->mine().round_posted(), position_ + 1);
}

Status SharedRounds::Await(Time deadline, bool* done) {
  *done = false;
  while (awaited_ < group_->size) {
    Flag& flag = group_->of(awaited_).round_posted();
    if (!Reached(flag, position_ + 1)) {
      bool reached = false;
      SE_RETURN_IF_ERROR(group_->AwaitFlagUntil(flag, position_ + 1, deadline, &reached));
      if (!reached) {
        SE_RETURN_IF_ERROR(group_->liveness->Check());
        // A rank may already have posted that the rounds end here, and then no rank need be waited for.
        for (int rank = 0; rank < group_->size; ++rank) {
          if (!Reached(group_->of(rank).round_posted(), position_ + 1)) continue;
          if ((HeaderOf(rank).flags & ProposalHeader::kLeavesRounds) == 0) continue;
          outcome_ = Outcome{};
          outcome_.leaves_rounds = true;
          *done = true;
          return Status::Ok();
        }
        return Status::Ok();
      }
    }
    ++awaited_;
  }
  Conclude();
  *done = true;
  return Status::Ok();
}

void SharedRounds::Conclude() {
  const ProposalHeader& first = HeaderOf(0);
  bool same = first.single >= 0;
  uint32_t any_flags = 0;
  uint32_t all_flags = ~uint32_t{0};
  for (int rank = 0; rank < group_->size; ++rank) {
    const ProposalHeader& header = HeaderOf(rank);
    // Another position in the slot: its rank has left the rounds and returned, so they ended here.
    if (header.position != position_) any_flags |= ProposalHeader::kLeavesRounds;
    same = same && header.single == first.single;
    any_flags |= header.flags;
    all_flags &= header.flags;
  }
  outcome_.leaves_rounds = (any_flags & ProposalHeader::kLeavesRounds) != 0;
  outcome_.single = -1;
  outcome_.carries_data = false;
  if (outcome_.leaves_rounds) return;
  if (same) {
    outcome_.single = first.single;
    outcome_.carries_data = (all_flags & ProposalHeader::kCarriesData) != 0;
    return;
  }
  ConcludeSets();
}

void SharedRounds::ConcludeSets() {
  outcome_.agreed = IdSet(cache_capacity_);
  outcome_.lines.clear();
  for (int rank = 0; rank < group_->size; ++rank) {
    const ProposalHeader& header = HeaderOf(rank);
    // Read once: it is another process's memory.
    const int32_t single = header.single;
    if (single >= 0) {
      IdSet singleton(cache_capacity_);
      if (static_cast<size_t>(single) < cache_capacity_) singleton.Add(single);
      if (rank == 0) {
        outcome_.agreed = singleton;
      } else {
        outcome_.agreed.Intersect(singleton.words());
      }
      outcome_.lines.clear();
      continue;
    }
    const std::span<const uint64_t> words(WordsOf(header), std::min<size_t>(header.num_words, kMaxCacheCapacity / 64));
    if (rank == 0 || !outcome_.lines.empty()) {
      Lines lines = LinesOf(header, words.size(), cache_capacity_);
      outcome_.lines = rank == 0 ? std::move(lines) : CommonPrefixes(outcome_.lines, lines);
    }
    if (rank == 0) {
      outcome_.agreed = IdSet::OfWords(std::vector<uint64_t>(words.begin(), words.end()));
    } else {
      outcome_.agreed.Intersect(words);
    }
  }
  // Nothing in common: only full negotiation can decide what to do.
  outcome_.leaves_rounds = outcome_.agreed.empty();
}

const uint8_t* SharedRounds::data_of(int rank) const {
  return group_->of(rank).round_slot(position_) + SegmentLayout::kProposalBytes;
}

size_t SharedRounds::data_bytes_of(int rank) const {
  return std::min<size_t>(HeaderOf(rank).data_bytes, SegmentLayout::kSmallBytes);
}

bool SharedRounds::InArenas(size_t bytes, std::vector<uint8_t*>* data_of) const {
  data_of->clear();
  for (int rank = 0; rank < group_->size; ++rank) {
    const ProposalHeader& header = HeaderOf(rank);
    Segment& segment = group_->of(rank);
    const uint64_t offset = header.arena_offset;
    if ((header.flags & ProposalHeader::kInArena) == 0 || segment.arena() == nullptr || bytes > segment.arena_bytes() ||
        offset > segment.arena_bytes() - bytes) {
      return false;
    }
    data_of->push_back(segment.arena() + offset);
  }
  return true;
}

}  // namespace spark_estimator
