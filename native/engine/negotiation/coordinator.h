// Full negotiation as a pure state machine: from requests of all ranks to responses that all ranks obey.
//
// It runs on rank 0 and does no input or output. A name is ready when every rank that has not joined has asked for it;
// the order of the responses is the order of readiness, so ranks may submit in different orders. Requests of one name
// that contradict each other, or that no rank could carry out, become an error response: it fails everywhere and the
// group stays usable.
#ifndef SPARK_ESTIMATOR_ENGINE_COORDINATOR_H_
#define SPARK_ESTIMATOR_ENGINE_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/wire/message.h"

namespace spark_estimator {

// A name that some ranks have asked for and others have not, for too long.
struct Stall {
  std::string name;  // in full
  std::string op;
  double waited_seconds;
  std::vector<int> missing_ranks;  // in the group
  std::vector<int> missing_global_ranks;
  std::string Describe() const;
};

class Coordinator {
 public:
  // `global_ranks`: [size], what messages call the ranks of the group.
  Coordinator(std::vector<int> global_ranks, int64_t fusion_threshold_bytes);

  void Add(int rank, Signature request, Time now);
  // What has become ready since the last call, with small allreduces fused.
  std::vector<Response> TakeReady();
  // Names that wait longer than `age` and have not been reported yet.
  std::vector<Stall> TakeStalled(double age_seconds, Time now);
  // Turns names that wait longer than `age` into error responses.
  void FailStalled(double age_seconds, Time now);
  // What TakeReady would give.
  bool has_ready() const { return !ready_.empty() || all_joined_; }
  bool has_waiting() const { return !waiting_.empty() || !joined_.empty(); }

 private:
  struct Meeting {  // the requests of one name
    std::map<int, Signature> by_rank;
    Time first_asked;
    uint64_t order;  // of first asking, so that reports do not depend on hashing
    bool stall_reported = false;
  };
  struct Ready {
    Signature request;  // of the lowest rank
    std::string error;
    std::vector<int64_t> rows;
  };

  int size() const { return static_cast<int>(global_ranks_.size()); }
  void Join(int rank, const std::string& name);
  bool Complete(const Meeting& meeting) const;
  void ConcludeIfComplete(const std::string& name);
  Ready Conclude(const Meeting& meeting) const;
  std::string Impossible(const Signature& request) const;
  std::vector<int64_t> Rows(const Meeting& meeting) const;
  std::vector<int> Missing(const Meeting& meeting) const;
  std::vector<int> Global(const std::vector<int>& ranks) const;
  // "rank 0 has [2, 3]; ranks 1, 2 have [3, 2]", or nothing if all are equal.
  std::string Differences(const Meeting& meeting, const std::function<std::string(const Signature&)>& aspect) const;

  const std::vector<int> global_ranks_;
  int64_t fusion_threshold_bytes_;
  uint64_t next_order_ = 0;
  std::unordered_map<std::string, Meeting> waiting_;   // by full name
  std::unordered_map<std::string, int64_t> given_up_;  // by kind: unnamed requests up to this number
  std::map<int, std::string> joined_;                  // rank: the name of its join
  int last_joined_ = -1;
  bool all_joined_ = false;
  std::vector<Ready> ready_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_COORDINATOR_H_
