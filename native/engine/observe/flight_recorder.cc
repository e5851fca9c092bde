#include "engine/observe/flight_recorder.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/dtype.h"
#include "base/utf8.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace {

constexpr size_t kColumns = 12;
using Row = std::array<std::string, kColumns>;

std::string Duration(Clock::duration duration) {
  const double seconds = Seconds(duration).count();
  const double size = seconds < 0 ? -seconds : seconds;
  char text[32];
  if (size < 1e-6) {
    std::snprintf(text, sizeof(text), "%.0f ns", seconds * 1e9);
  } else if (size < 1e-3) {
    std::snprintf(text, sizeof(text), "%.1f us", seconds * 1e6);
  } else if (size < 1) {
    std::snprintf(text, sizeof(text), "%.2f ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.2f s", seconds);
  }
  return text;
}

// How long it took from one time to the next; "-" when one of them was not reached.
std::string Between(const char* what, Time begin, Time end) {
  return std::string(what) + " " + (begin == Time{} || end == Time{} ? "-" : Duration(end - begin));
}

// What breaks a line in some viewer, or is invisible, becomes '?', as does what is no UTF-8.
void AppendPrintable(std::string_view text, std::string* line) {
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = Utf8CharacterBytes(text, &character);
    const bool control = character < 0x20 || (character >= 0x7F && character < 0xA0);
    if (bytes == 0 || control || character == 0x2028 || character == 0x2029) {
      line->push_back('?');
    } else {
      line->append(text.substr(0, bytes));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
}

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Columns that hold figures are flush right.
bool IsFigure(size_t column) { return column == 0 || column == 1 || column == 4; }

}  // namespace

const char* OutcomeName(int32_t status) {
  switch (status) {
    case SE_OK:
      return "ok";
    case SE_IN_PROGRESS:
      return "in progress";
    case SE_INVALID_ARGUMENT:
      return "invalid argument";
    case SE_DUPLICATE_NAME:
      return "duplicate name";
    case SE_MISMATCH:
      return "mismatch";
    case SE_PEER_LOST:
      return "peer lost";
    case SE_SHUT_DOWN:
      return "shut down";
    case SE_TIMED_OUT:
      return "timed out";
    case SE_NO_MEMORY:
      return "no memory";
    case SE_SYSTEM_ERROR:
      return "system error";
    case SE_INTERNAL:
      return "internal error";
    default:
      return "unknown status";
  }
}

FlightRecorder::FlightRecorder(size_t capacity) : entries_(std::max<size_t>(capacity, 1)) {}

void FlightRecorder::Add(const OpRecord& record) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[added_ % entries_.size()];
  added_ += 1;
  entry.sequence = record.sequence;
  entry.bytes = record.bytes;
  entry.submitted = record.submitted;
  entry.agreed = record.agreed;
  entry.started = record.started;
  entry.finished = record.finished;
  entry.algorithm = record.algorithm;
  entry.num_requests = record.num_requests;
  entry.op = static_cast<int16_t>(record.op);
  entry.dtype = static_cast<int16_t>(record.dtype);
  entry.status = static_cast<int16_t>(record.status);
  entry.fast = record.fast;
  const std::string_view name = record.name;
  if (name.size() <= kNameBytes) {
    entry.name_bytes = static_cast<uint8_t>(name.size());
    if (!name.empty()) std::memcpy(entry.name.data(), name.data(), name.size());
  } else {
    constexpr size_t kHalf = kNameBytes / 2;
    entry.name_bytes = kNameBytes + 1;
    std::memcpy(entry.name.data(), name.data(), kHalf);
    std::memcpy(entry.name.data() + kHalf, name.data() + name.size() - kHalf, kHalf);
  }
}

std::vector<FlightRecorder::Entry> FlightRecorder::InOrder() const {
  // The copy is made outside Add's lock as far as possible: the memory is allocated before.
  std::vector<Entry> entries;
  entries.reserve(entries_.size());
  const std::lock_guard lock(mutex_);
  const uint64_t kept = std::min<uint64_t>(added_, entries_.size());
  for (uint64_t i = added_ - kept; i < added_; ++i) entries.push_back(entries_[i % entries_.size()]);
  return entries;
}

std::string FlightRecorder::NameOf(const Entry& entry) {
  std::string name;
  const std::string_view kept(entry.name.data(), std::min<size_t>(entry.name_bytes, kNameBytes));
  if (entry.name_bytes <= kNameBytes) {
    AppendPrintable(kept, &name);
    return name;
  }
  std::string_view head = kept.substr(0, kNameBytes / 2);
  std::string_view tail = kept.substr(kNameBytes / 2);
  // A character that the cut divides is left out on both sides.
  size_t last = head.size() - 1;
  while (last > 0 && head.size() - last < 4 && IsContinuation(head[last])) last -= 1;
  uint32_t character = 0;
  if (Utf8CharacterBytes(head.substr(last), &character) == 0) head = head.substr(0, last);
  for (int i = 0; i < 3 && IsContinuation(tail[0]); ++i) tail.remove_prefix(1);
  AppendPrintable(head, &name);
  name += "...";
  AppendPrintable(tail, &name);
  return name;
}

std::string FlightRecorder::Text() const {
  const std::vector<Entry> entries = InOrder();
  const Time now = Clock::now();
  std::vector<Row> rows;
  rows.reserve(entries.size());
  std::array<size_t, kColumns> widths{};
  for (const Entry& entry : entries) {
    std::string name = NameOf(entry);
    if (entry.num_requests > 1) name += " and " + std::to_string(entry.num_requests - 1) + " more";
    const bool began = entry.algorithm[0] != '\0';  // a failure before that is recorded without an algorithm
    Row& row = rows.emplace_back(
        Row{"#" + std::to_string(entry.sequence),
            entry.finished == Time{} ? "not ended" : "ended " + Duration(now - entry.finished) + " ago",
            OpName(entry.op), entry.bytes > 0 ? DtypeName(entry.dtype) : "", std::to_string(entry.bytes) + " B",
            entry.fast ? "cached" : "negotiated",
            began ? Between("all ranks called after", entry.submitted, entry.agreed)
                  : Between("waited", entry.submitted, entry.finished),
            Between("began after", began ? entry.agreed : Time{}, entry.started),
            Between("ran", began ? entry.started : Time{}, entry.finished), entry.algorithm, OutcomeName(entry.status),
            std::move(name)});
    for (size_t column = 0; column < kColumns; ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t column = 0; column < kColumns; ++column) {
      const std::string padding(widths[column] - row[column].size(), ' ');
      if (column > 0) text += "  ";
      if (IsFigure(column)) text += padding;
      text += row[column];
      if (!IsFigure(column) && column + 1 < kColumns) text += padding;
    }
    text += '\n';
  }
  return text;
}

}  // namespace spark_estimator
