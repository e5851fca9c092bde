// A Chrome trace on disk: what was recorded of ops becomes JSON, one event a line, in the rows and by the names that
// Horovod's timeline has.
#ifndef SPARK_ESTIMATOR_ENGINE_TRACE_FILE_H_
#define SPARK_ESTIMATOR_ENGINE_TRACE_FILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace spark_estimator {

struct TraceEvent {
  enum class Kind : uint8_t {
    kOp,
    kCycle,  // at `started`
  };
  Kind kind = Kind::kOp;
  bool fast = false;
  int16_t op = 0;
  int16_t dtype = 0;
  int16_t status = 0;
  int32_t num_requests = 0;
  uint32_t name_bytes = 0;
  size_t name_begins = 0;  // in TraceBuffer::names
  const char* label = "";  // the algorithm; static storage
  int64_t sequence = 0;
  int64_t bytes = 0;
  Time submitted{};
  Time agreed{};
  Time started{};
  Time finished{};
};

// Events and the bytes of their names, in memory that is taken once.
class TraceBuffer {
 public:
  TraceBuffer(size_t max_events, size_t max_name_bytes);

  // False, and a drop more, when there is no room.
  bool Add(TraceEvent event, std::string_view name);
  void Clear();
  bool empty() const { return events_.empty() && dropped_ == 0; }
  bool half_full() const;
  const std::vector<TraceEvent>& events() const { return events_; }
  std::string_view NameOf(const TraceEvent& event) const {
    return {names_.data() + event.name_begins, event.name_bytes};
  }
  int64_t dropped() const { return dropped_; }

 private:
  const size_t max_events_;
  const size_t max_name_bytes_;
  std::vector<TraceEvent> events_;
  std::vector<char> names_;
  int64_t dropped_ = 0;
};

// Whose trace it is.
struct TraceOwner {
  int rank = 0;  // in the job
  int size = 1;
  int process_set = 0;
  std::string name;  // "host (pid 123)"
};

// For one thread at a time.
class TraceFile {
 public:
  // Creates or overwrites `path` and writes this rank and the offset of its clock to the wall clock.
  Status Open(const std::string& path, const TraceOwner& owner);
  // Appends. After an error the file ends with its last whole event, as far as it can be cut there.
  Status Write(const TraceBuffer& buffer);
  // Completes the JSON, writes how many events were dropped, closes.
  Status Close();
  const std::string& path() const { return path_; }
  int64_t dropped() const { return dropped_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Rows = std::unordered_map<std::string, int, Hash, std::equal_to<>>;

  // The row of an op's name, with a line that labels it when it is new.
  int RowOf(int16_t op, std::string_view name);
  void LabelRow(int row, std::string_view label);
  void AppendOp(const TraceEvent& event, int row);
  // An event that lasts, without its end, so that arguments can follow.
  void BeginSpan(std::string_view prefix, std::string_view name, Time begin, Time end, int row);
  void AppendOpArguments(const TraceEvent& event);
  void AppendNumber(int64_t number);
  void AppendMicroseconds(Clock::duration time);
  void AppendString(std::string_view text);
  Status Flush();

  std::string path_;
  UniqueFd fd_;
  int rank_ = 0;
  std::string text_;  // not written yet
  int64_t written_ = 0;
  int64_t dropped_ = 0;
  std::array<Rows, 8> rows_;  // by op
  int num_rows_ = 0;
  size_t row_name_bytes_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_TRACE_FILE_H_
