// What a rank is ready to run at one position of the rounds: a set of cached ids, or "I cannot continue by rounds".
//
// All ranks post one proposal per position and all compute the same outcome from all of them, without a coordinator.
// Requests without a name are matched by their order: of each kind the set holds only the oldest, and those behind it
// are in a separate line. What all lines have in common from their beginnings on is agreed, too.
#ifndef SPARK_ESTIMATOR_ENGINE_PROPOSAL_H_
#define SPARK_ESTIMATOR_ENGINE_PROPOSAL_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spark_estimator {

// A set of small numbers as bits.
class IdSet {
 public:
  IdSet() = default;
  explicit IdSet(size_t capacity) : words_((capacity + 63) / 64, 0) {}
  static IdSet OfWords(std::vector<uint64_t> words) {
    IdSet set;
    set.words_ = std::move(words);
    return set;
  }

  void Add(int32_t id) { words_[Word(id)] |= Bit(id); }
  void Remove(int32_t id) { words_[Word(id)] &= ~Bit(id); }
  bool Has(int32_t id) const { return Word(id) < words_.size() && (words_[Word(id)] & Bit(id)) != 0; }
  bool empty() const {
    for (const uint64_t word : words_) {
      if (word != 0) return false;
    }
    return true;
  }
  void Intersect(std::span<const uint64_t> other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= i < other.size() ? other[i] : 0;
  }
  // The smallest id; -1 when empty.
  int32_t First() const {
    for (size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] != 0) return static_cast<int32_t>(i * 64) + std::countr_zero(words_[i]);
    }
    return -1;
  }
  void Clear() { words_.assign(words_.size(), 0); }
  std::span<const uint64_t> words() const { return words_; }

  // Calls visit(id) in ascending order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
        visit(static_cast<int32_t>(i * 64) + std::countr_zero(rest));
      }
    }
  }

 private:
  static size_t Word(int32_t id) { return static_cast<size_t>(id) / 64; }
  static uint64_t Bit(int32_t id) { return uint64_t{1} << (static_cast<size_t>(id) % 64); }

  std::vector<uint64_t> words_;
};

// Ids of unnamed requests of one kind, oldest first. At least two: the oldest is in the set as well.
using Line = std::vector<int32_t>;
using Lines = std::vector<Line>;

// As intersection is for sets: it does not mind the order in which it is done, nor hearing a thing twice.
Lines CommonPrefixes(const Lines& a, const Lines& b);
// Each line after its length.
std::vector<int32_t> Pack(const Lines& lines);
// False for what no Pack has made.
bool Unpack(std::span<const int32_t> packed, size_t cache_capacity, Lines* lines);
// Longest result of Pack that a proposal may have.
constexpr size_t kMostInLines = 224;

struct Proposal {
  bool leaves_rounds = false;
  int32_t single = -1;        // the only id, when there is just one; then `ids` is not looked at
  bool carries_data = false;  // this rank's data of `single` is sent with it
  const IdSet* ids = nullptr;
  const Lines* lines = nullptr;  // beside `ids`; null for none
};

struct Outcome {
  bool leaves_rounds = false;  // leave the rounds
  int32_t single = -1;         // all ranks proposed this one alone
  bool carries_data = false;   // ... and all data was sent with them
  IdSet agreed;                // else: what all proposed, not empty
  Lines lines;                 // ... and what is behind some of that
};

// A proposal as it is stored in a shared round slot, before the words of its set and its packed lines; the data begins
// at SegmentLayout::kProposalBytes.
struct ProposalHeader {
  uint32_t epoch;
  uint32_t position;
  uint32_t flags;
  int32_t single;
  uint32_t num_words;
  uint32_t data_bytes;
  uint64_t arena_offset;  // the offset of the tensor of `single` in its rank's arena, see kInArena
  uint64_t num_in_lines;

  static constexpr uint32_t kLeavesRounds = 1;
  static constexpr uint32_t kCarriesData = 2;
  static constexpr uint32_t kInArena = 4;
};
// Ids that fit the area before the data.
constexpr size_t kMaxCacheCapacity = 8192;

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_PROPOSAL_H_
