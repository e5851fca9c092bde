// The last ops of this rank, recorded at almost no cost, so that a failure can report what happened before it.
#ifndef SPARK_ESTIMATOR_ENGINE_FLIGHT_RECORDER_H_
#define SPARK_ESTIMATOR_ENGINE_FLIGHT_RECORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/clock.h"

namespace spark_estimator {

// One op as this rank saw it. A time that was not reached stays Time{}.
struct OpRecord {
  int64_t sequence = 0;  // the same on all ranks of the group; 0: it was never agreed on
  // Only read during the call that receives the record: it may point into the request.
  std::string_view name;
  int32_t num_requests = 1;    // names that ran as one operation; the record bears one of them
  int32_t op = 0;              // se_op
  int32_t dtype = 0;           // se_dtype
  int64_t bytes = 0;           // of this rank's input
  const char* algorithm = "";  // static storage
  Time submitted{};
  Time agreed{};   // all ranks have it
  Time started{};  // the algorithm began
  Time finished{};
  int32_t status = 0;  // se_status
  bool fast = false;   // agreed on without rank 0
};

// "ok", "mismatch", ...: a se_status for people.
const char* OutcomeName(int32_t status);

// All functions may be called from any thread.
class FlightRecorder {
 public:
  // Keeps the last `capacity` ops, at least one; all memory is taken here (128 bytes an op).
  explicit FlightRecorder(size_t capacity = 1000);

  // Tens of nanoseconds: an uncontended lock and two cache lines.
  void Add(const OpRecord& record);

  // One line an op, newest last: "#12  ended 3.1 ms ago  allreduce  float32  4096 B  cached  all ranks called
  // after 1.2 us  began after 80 ns  ran 3.4 us  one shot  ok  gradient.7". Long names lose their middle.
  std::string Text() const;

 private:
  static constexpr size_t kNameBytes = 60;

  struct alignas(64) Entry {
    int64_t sequence;
    int64_t bytes;
    Time submitted;
    Time agreed;
    Time started;
    Time finished;
    const char* algorithm;
    int32_t num_requests;
    int16_t op;
    int16_t dtype;
    int16_t status;
    bool fast;
    uint8_t name_bytes;  // kNameBytes + 1: cut, the halves of `name` are its beginning and its end
    std::array<char, kNameBytes> name;
  };
  static_assert(sizeof(Entry) == 128 && std::is_trivially_copyable_v<Entry>);

  std::vector<Entry> InOrder() const;
  static std::string NameOf(const Entry& entry);

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // a ring; `added_` modulo its size is the oldest
  uint64_t added_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_FLIGHT_RECORDER_H_
