// The negotiation, as a pure state machine: requests of all ranks go in, responses that all ranks obey come out.
//
// It runs on rank 0 and does no input or output. A name is ready when every rank has asked for it; the order of the
// responses is the order of readiness, so ranks may submit in different orders. Requests of one name that contradict
// each other, or that no rank could carry out, become an error response: it fails everywhere and the ring stays usable.
#ifndef SPARK_ESTIMATOR_ENGINE_COORDINATOR_H_
#define SPARK_ESTIMATOR_ENGINE_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/message.h"

namespace spark_estimator {

// A name that some ranks have asked for and others have not, for too long.
struct Stall {
  std::string name;
  std::string op;
  double waited_seconds;
  std::vector<int> missing_ranks;
  std::string Describe() const;
};

class Coordinator {
 public:
  Coordinator(int size, int64_t fusion_threshold_bytes);

  void Add(int rank, Signature request, Time now);
  // What has become ready since the last call, numbered on from the last, with small allreduces fused.
  std::vector<Response> TakeReady();
  // Names that wait longer than `age` and have not been told of yet.
  std::vector<Stall> TakeStalled(double age_seconds, Time now);
  // Turns names that wait longer than `age` into error responses.
  void FailStalled(double age_seconds, Time now);
  bool has_waiting() const { return !waiting_.empty(); }

 private:
  struct Meeting {  // the requests of one name
    std::map<int, Signature> by_rank;
    Time first_asked;
    uint64_t order;  // of first asking, so that reports do not depend on hashing
    bool stall_told = false;
  };
  struct Ready {
    Signature request;  // of rank 0's or the lowest rank's
    std::string error;
    std::vector<int64_t> rows;
  };

  Ready Conclude(const Meeting& meeting) const;
  std::vector<int> Missing(const Meeting& meeting) const;
  bool CanFuse(const Signature& a, const Signature& b) const;

  const int size_;
  const int64_t fusion_threshold_bytes_;
  uint64_t next_order_ = 0;
  int64_t next_sequence_ = 1;
  std::unordered_map<std::string, Meeting> waiting_;
  std::vector<Ready> ready_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_COORDINATOR_H_
