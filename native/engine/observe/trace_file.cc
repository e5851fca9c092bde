#include "engine/observe/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/dtype.h"
#include "base/utf8.h"
#include "engine/observe/flight_recorder.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace {

// Some programs number their names without limit. Beyond this number, new ones share a row.
constexpr int kMaxRows = 50'000;
constexpr size_t kMaxRowNameBytes = size_t{8} << 20;
constexpr int kCycleRow = 0;
constexpr int kOtherRow = 1;
constexpr int kFirstRow = 2;
constexpr size_t kBlockBytes = size_t{256} << 10;

// Indexed by se_op.
constexpr std::array<std::string_view, 7> kOps = {"ALLREDUCE", "ALLGATHER",     "BROADCAST", "BARRIER",
                                                  "ALLTOALL",  "REDUCESCATTER", "JOIN"};
std::string_view TraceName(int16_t op) {
  return op >= 0 && static_cast<size_t>(op) < kOps.size() ? kOps[static_cast<size_t>(op)] : "OP";
}

}  // namespace

TraceBuffer::TraceBuffer(size_t max_events, size_t max_name_bytes)
    : max_events_(max_events), max_name_bytes_(max_name_bytes) {
  events_.reserve(max_events);
  names_.reserve(max_name_bytes);
}

bool TraceBuffer::Add(TraceEvent event, std::string_view name) {
  if (events_.size() == max_events_ || name.size() > max_name_bytes_ - names_.size()) {
    dropped_ += 1;
    return false;
  }
  event.name_begins = names_.size();
  event.name_bytes = static_cast<uint32_t>(name.size());
  names_.insert(names_.end(), name.begin(), name.end());
  events_.push_back(event);
  return true;
}

void TraceBuffer::Clear() {
  events_.clear();
  names_.clear();
  dropped_ = 0;
}

bool TraceBuffer::half_full() const {
  return events_.size() >= max_events_ / 2 || names_.size() >= max_name_bytes_ / 2;
}

Status TraceFile::Open(const std::string& path, const TraceOwner& owner) {
  path_ = path;
  rank_ = owner.rank;
  fd_.Reset(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd_.valid()) return Status::System("the timeline " + path_ + " cannot be created", errno);
  text_.reserve(kBlockBytes + 4096);
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const Time origin = Clock::now();
  text_ = "[\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":";
  AppendNumber(rank_);
  text_ += ",\"args\":{\"name\":";
  AppendString("rank " + std::to_string(rank_) + ", " + owner.name);
  text_ += ",\"spark_estimator\":{\"format\":1,\"rank\":";
  AppendNumber(rank_);
  text_ += ",\"size\":";
  AppendNumber(owner.size);
  text_ += ",\"process_set\":";
  AppendNumber(owner.process_set);
  text_ += ",\"process\":";
  AppendString(owner.name);
  text_ += ",\"pid\":";
  AppendNumber(getpid());
  text_ += ",\"origin_us\":";
  AppendMicroseconds(origin.time_since_epoch());
  text_ += ",\"origin_wall_clock_us\":";
  AppendMicroseconds(std::chrono::duration_cast<Clock::duration>(wall));
  text_ += "},\"start_time_since_epoch_in_micros\":";  // Horovod's name, which programs look for
  AppendNumber(std::chrono::duration_cast<std::chrono::microseconds>(wall).count());
  text_ += "}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":";
  AppendNumber(rank_);
  text_ += ",\"args\":{\"sort_index\":";
  AppendNumber(rank_);
  text_ += "}},\n";
  LabelRow(kCycleRow, "cycles");
  num_rows_ = kFirstRow;
  const Status status = Flush();
  if (!status.ok()) fd_.Reset(-1);
  return status;
}

Status TraceFile::Write(const TraceBuffer& buffer) {
  for (const TraceEvent& event : buffer.events()) {
    if (event.kind == TraceEvent::Kind::kCycle) {
      text_ += "{\"ph\":\"i\",\"name\":\"CYCLE_START\",\"s\":\"p\",\"ts\":";
      AppendMicroseconds(event.started.time_since_epoch());
      text_ += ",\"pid\":";
      AppendNumber(rank_);
      text_ += ",\"tid\":0},\n";
    } else {
      AppendOp(event, RowOf(event.op, buffer.NameOf(event)));
    }
    if (text_.size() >= kBlockBytes) SE_RETURN_IF_ERROR(Flush());
  }
  dropped_ += buffer.dropped();
  return Flush();
}

Status TraceFile::Close() {
  // A second sort index, because viewers warn of metadata that they do not know.
  text_ += "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":";
  AppendNumber(rank_);
  text_ += ",\"args\":{\"sort_index\":";
  AppendNumber(rank_);
  text_ += ",\"spark_estimator_end\":{\"dropped_events\":";
  AppendNumber(dropped_);
  text_ += "}}}\n]\n";
  Status status = Flush();
  // Some file systems report a full disk only now.
  if (close(fd_.Release()) != 0 && status.ok()) {
    status = Status::System("the timeline " + path_ + " cannot be completed", errno);
  }
  return status;
}

int TraceFile::RowOf(int16_t op, std::string_view name) {
  Rows& rows = rows_[std::min<size_t>(static_cast<size_t>(std::max<int16_t>(op, 0)), rows_.size() - 1)];
  const auto known_row = rows.find(name);
  if (known_row != rows.end()) return known_row->second;
  if (num_rows_ == kMaxRows || row_name_bytes_ + name.size() > kMaxRowNameBytes) {
    if (row_name_bytes_ <= kMaxRowNameBytes) LabelRow(kOtherRow, "other names");
    row_name_bytes_ = kMaxRowNameBytes + 1;  // from now on all new names are others
    return kOtherRow;
  }
  const int row = num_rows_++;
  row_name_bytes_ += name.size();
  rows.emplace(name, row);
  const std::string prefix = OpName(op) + ".";
  LabelRow(row, name.starts_with(prefix) ? std::string(name) : prefix + std::string(name));
  return row;
}

void TraceFile::LabelRow(int row, std::string_view label) {
  text_ += "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":";
  AppendNumber(rank_);
  text_ += ",\"tid\":";
  AppendNumber(row);
  text_ += ",\"args\":{\"name\":";
  AppendString(label);
  text_ += "}},\n";
}

void TraceFile::AppendOp(const TraceEvent& event, int row) {
  const std::string_view op = TraceName(event.op);
  const bool was_agreed = event.agreed != Time{};
  if (event.submitted != Time{}) {
    BeginSpan("NEGOTIATE_", op, event.submitted, was_agreed ? event.agreed : event.finished, row);
    if (!was_agreed) AppendOpArguments(event);
    text_ += "},\n";
  }
  if (!was_agreed) return;
  BeginSpan("", op, event.agreed, event.finished, row);
  AppendOpArguments(event);
  text_ += "},\n";
  if (event.started == Time{} || event.label[0] == '\0') return;
  // Behind other ops, or for a GPU's stream.
  BeginSpan("", "WAIT_FOR_DATA", event.agreed, event.started, row);
  text_ += "},\n";
  BeginSpan("", event.label, event.started, event.finished, row);
  text_ += "},\n";
}

void TraceFile::BeginSpan(std::string_view prefix, std::string_view name, Time begin, Time end, int row) {
  text_ += "{\"ph\":\"X\",\"name\":\"";
  text_ += prefix;
  text_ += name;
  text_ += "\",\"ts\":";
  AppendMicroseconds(begin.time_since_epoch());
  text_ += ",\"dur\":";
  AppendMicroseconds(std::max(end - begin, Clock::duration::zero()));
  text_ += ",\"pid\":";
  AppendNumber(rank_);
  text_ += ",\"tid\":";
  AppendNumber(row);
}

void TraceFile::AppendOpArguments(const TraceEvent& event) {
  text_ += ",\"args\":{\"sequence\":";
  AppendNumber(event.sequence);
  text_ += ",\"bytes\":";
  AppendNumber(event.bytes);
  if (event.bytes > 0) {
    text_ += ",\"dtype\":";
    AppendString(DtypeName(event.dtype));
  }
  if (event.num_requests > 1) {
    text_ += ",\"fused_names\":";
    AppendNumber(event.num_requests);
  }
  text_ += event.fast ? ",\"negotiation\":\"fast\"" : ",\"negotiation\":\"slow\"";
  if (event.status != SE_OK) {
    text_ += ",\"outcome\":";
    AppendString(OutcomeName(event.status));
  }
  text_ += '}';
}

void TraceFile::AppendNumber(int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  text_.append(digits, end);
}

void TraceFile::AppendMicroseconds(Clock::duration time) {
  const int64_t nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  AppendNumber(nanoseconds / 1000);
  const int64_t rest = nanoseconds % 1000;
  const char decimals[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                           static_cast<char>('0' + rest % 10)};
  text_.append(decimals, sizeof(decimals));
}

void TraceFile::AppendString(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  text_ += '"';
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = Utf8CharacterBytes(text, &character);
    if (bytes == 0) {
      text_ += "\\ufffd";
    } else if (character == '"' || character == '\\') {
      text_ += '\\';
      text_ += static_cast<char>(character);
    } else if (character < 0x20 || character == 0x7F) {
      text_ += "\\u00";
      text_ += kHex[character >> 4];
      text_ += kHex[character & 15];
    } else {
      text_ += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  text_ += '"';
}

Status TraceFile::Flush() {
  std::string_view rest = text_;
  while (!rest.empty()) {
    const ssize_t written = write(fd_.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      [[maybe_unused]] const int ignored = ftruncate(fd_.get(), written_);
      text_.clear();
      return Status::System("the timeline " + path_ + " cannot be written", error);
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  written_ += static_cast<int64_t>(text_.size());
  text_.clear();
  return Status::Ok();
}

}  // namespace spark_estimator
