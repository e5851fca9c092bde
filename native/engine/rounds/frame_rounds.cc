#include "engine/rounds/frame_rounds.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace spark_estimator {
namespace {

constexpr uint8_t kLeavesRounds = 1;
constexpr uint8_t kCarriesData = 2;
// Peers are at most one position ahead, and one epoch: anything beyond is invalid.
constexpr size_t kMostEarly = 256;

uint64_t Order(RoundId round) { return uint64_t{round.epoch} << 32 | round.position; }

}  // namespace

FrameRounds::FrameRounds(int rank, int size, size_t cache_capacity, Send send, AwaitFrames await_frames)
    : rank_(rank),
      size_(size),
      cache_capacity_(std::min(cache_capacity, kMaxCacheCapacity)),
      send_(std::move(send)),
      await_frames_(std::move(await_frames)) {}

int FrameRounds::steps() const {
  int steps = 0;
  while ((1 << steps) < size_) ++steps;
  return steps;
}

void FrameRounds::Enter(RoundId round) {
  round_ = round;
  posted_ = false;
  early_.erase(early_.begin(), early_.lower_bound({Order(round), 0}));
}

std::string FrameRounds::Encode(uint8_t step) const {
  ByteWriter writer;
  writer.Number(round_.epoch);
  writer.Number(round_.position);
  writer.Number(step);
  writer.Number(
      static_cast<uint8_t>((joined_.leaves_rounds ? kLeavesRounds : 0) | (joined_.carries_data ? kCarriesData : 0)));
  writer.Number(joined_.single);
  if (joined_.leaves_rounds) return writer.Take();
  if (joined_.single < 0) {
    writer.Number(static_cast<uint32_t>(joined_.ids.words().size()));
    for (const uint64_t word : joined_.ids.words()) writer.Number(word);
    const std::vector<int32_t> packed = Pack(joined_.lines);
    writer.Number(static_cast<uint32_t>(packed.size()));
    for (const int32_t number : packed) writer.Number(number);
  }
  if (joined_.carries_data) {
    // The receiver already knows the ranks beyond `needed`.
    const size_t needed = std::min(joined_.data.size(), static_cast<size_t>(size_) - (size_t{1} << step));
    writer.Number(static_cast<uint32_t>(needed));
    for (size_t i = 0; i < needed; ++i) writer.Text(joined_.data[i]);
  }
  return writer.Take();
}

bool FrameRounds::Decode(std::string_view payload, Heard* heard) const {
  ByteReader reader(payload);
  heard->round.epoch = reader.Number<uint32_t>();
  heard->round.position = reader.Number<uint32_t>();
  heard->step = reader.Number<uint8_t>();
  const auto flags = reader.Number<uint8_t>();
  heard->leaves_rounds = (flags & kLeavesRounds) != 0;
  heard->carries_data = (flags & kCarriesData) != 0;
  heard->single = reader.Number<int32_t>();
  if (heard->step >= steps() || heard->single >= static_cast<int32_t>(cache_capacity_)) return false;
  if (heard->leaves_rounds) return reader.AtEnd();
  if (heard->single < 0) {
    const auto count = reader.Number<uint32_t>();
    if (count > kMaxCacheCapacity / 64) return false;
    std::vector<uint64_t> words(count);
    for (uint64_t& word : words) word = reader.Number<uint64_t>();
    heard->ids = IdSet::OfWords(std::move(words));
    const auto in_lines = reader.Number<uint32_t>();
    if (in_lines > kMostInLines) return false;
    std::vector<int32_t> packed(in_lines);
    for (int32_t& number : packed) number = reader.Number<int32_t>();
    if (!reader.ok() || !Unpack(packed, cache_capacity_, &heard->lines)) return false;
  }
  if (heard->carries_data) {
    const auto count = reader.Number<uint32_t>();
    if (heard->single < 0 || count > static_cast<uint32_t>(size_)) return false;
    for (uint32_t i = 0; i < count && reader.ok(); ++i) heard->data.push_back(reader.Text());
  }
  return reader.AtEnd();
}

bool FrameRounds::Take(int from, std::string_view payload) {
  Heard heard;
  if (!Decode(payload, &heard)) return false;
  const int sender = ((rank_ - (1 << heard.step)) % size_ + size_) % size_;
  if (from != sender) return false;
  // A late frame is about a position at which the rounds ended.
  if (Order(heard.round) < Order(round_)) return true;
  if (early_.size() >= kMostEarly) return false;
  const std::pair<uint64_t, uint8_t> key{Order(heard.round), heard.step};
  early_.insert_or_assign(key, std::move(heard));
  if (posted_ && !done_) {
    CheckForLeavers();
    Advance();
  }
  return true;
}

void FrameRounds::Post(RoundId round, const Proposal& proposal, size_t data_bytes, const WriteData& write_data,
                       int64_t) {
  Enter(round);
  posted_ = true;
  done_ = false;
  step_ = 0;
  joined_ = Heard{};
  joined_.leaves_rounds = proposal.leaves_rounds;
  joined_.single = proposal.single;
  joined_.carries_data = proposal.carries_data;
  if (!proposal.leaves_rounds && proposal.single < 0) {
    joined_.ids = *proposal.ids;
    if (proposal.lines != nullptr) joined_.lines = *proposal.lines;
  }
  if (proposal.carries_data) {
    std::string data(data_bytes, '\0');
    if (data_bytes > 0) write_data(reinterpret_cast<uint8_t*>(data.data()));
    joined_.data.push_back(std::move(data));
  }
  if (steps() > 0) SendStep(0);
  CheckForLeavers();
  Advance();
}

// The notice of a rank that leaves the rounds may arrive in a later step than the awaited one: then no rank is awaited.
void FrameRounds::CheckForLeavers() {
  const auto end = early_.upper_bound({Order(round_), UINT8_MAX});
  for (auto entry = early_.lower_bound({Order(round_), 0}); entry != end; ++entry) {
    joined_.leaves_rounds = joined_.leaves_rounds || entry->second.leaves_rounds;
  }
}

void FrameRounds::SendStep(uint8_t step) { send_((rank_ + (1 << step)) % size_, Encode(step)); }

void FrameRounds::Join(Heard heard) {
  joined_.leaves_rounds = joined_.leaves_rounds || heard.leaves_rounds;
  const bool both_single = joined_.single >= 0 && joined_.single == heard.single;
  joined_.carries_data = joined_.carries_data && heard.carries_data && both_single;
  if (joined_.carries_data) {
    for (std::string& data : heard.data) joined_.data.push_back(std::move(data));
  }
  if (joined_.leaves_rounds || both_single) return;
  const auto set_of = [&](const Heard& proposal) {
    if (proposal.single < 0) return proposal.ids;
    IdSet set(cache_capacity_);
    set.Add(proposal.single);
    return set;
  };
  IdSet set = set_of(joined_);
  set.Intersect(set_of(heard).words());
  joined_.ids = std::move(set);
  joined_.lines = CommonPrefixes(joined_.lines, heard.lines);
  joined_.single = -1;
}

void FrameRounds::Advance() {
  while (!done_) {
    if (joined_.leaves_rounds) {
      // Those that would wait for this rank's further steps must not.
      for (auto step = static_cast<uint8_t>(step_ + 1); step < steps(); ++step) SendStep(step);
      return Conclude();
    }
    if (step_ == steps()) return Conclude();
    const auto next = early_.find({Order(round_), step_});
    if (next == early_.end()) return;
    Heard heard = std::move(next->second);
    early_.erase(next);
    Join(std::move(heard));
    ++step_;
    if (step_ < steps() && !joined_.leaves_rounds) SendStep(step_);
    // From here on, a rank that leaves the rounds notifies the others of all ranks that left, itself included.
    if (joined_.leaves_rounds) --step_;
  }
}

void FrameRounds::Conclude() {
  outcome_ = Outcome{};
  outcome_.leaves_rounds = joined_.leaves_rounds;
  if (!joined_.leaves_rounds && joined_.single >= 0) {
    outcome_.single = joined_.single;
    outcome_.carries_data = joined_.carries_data && joined_.data.size() >= static_cast<size_t>(size_);
  } else if (!joined_.leaves_rounds) {
    outcome_.agreed = joined_.ids;
    outcome_.lines = joined_.lines;
    outcome_.leaves_rounds = outcome_.agreed.empty();
  }
  done_ = true;
}

Status FrameRounds::Await(Time deadline, bool* done) {
  while (!done_) {
    SE_RETURN_IF_ERROR(await_frames_(deadline));
    if (!done_ && Clock::now() >= deadline) break;
  }
  *done = done_;
  return Status::Ok();
}

const std::string& FrameRounds::DataOf(int rank) const {
  const int distance = ((rank_ - rank) % size_ + size_) % size_;
  return joined_.data[static_cast<size_t>(distance)];
}

const uint8_t* FrameRounds::data_of(int rank) const { return reinterpret_cast<const uint8_t*>(DataOf(rank).data()); }

size_t FrameRounds::data_bytes_of(int rank) const { return DataOf(rank).size(); }

}  // namespace spark_estimator
