#include "algorithms/streams/halves.h"

#include <vector>

#include "algorithms/streams/direct.h"
#include "algorithms/streams/ring.h"
#include "algorithms/streams/shares.h"
#include "base/dtype.h"
#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

class Halves : public StreamOperation {
 public:
  Halves(StreamGroup& group, const float* sums, uint8_t* results, size_t count, int32_t dtype, int32_t reduce_op,
         Finish finish)
      : group_(group),
        dtype_(dtype),
        results_(results),
        shares_(count * DtypeBytes(dtype), DtypeBytes(dtype), group.size()),
        reduced_(shares_.length(group.rank()) / DtypeBytes(dtype)),
        current_(BeginDirectReducescatter(group, reinterpret_cast<const uint8_t*>(sums),
                                          Shares(count * sizeof(float), sizeof(float), group.size()),
                                          reinterpret_cast<uint8_t*>(reduced_.data()), SE_FLOAT32, reduce_op, finish)) {
  }

  bool done() const override { return gathers_ && current_->done(); }

  Status Step(bool* progress) override {
    SE_RETURN_IF_ERROR(current_->Step(progress));
    if (gathers_ || !current_->done()) return Status::Ok();
    HalvesFromFloat32(dtype_, results_ + shares_.start(group_.rank()), reduced_.data(), reduced_.size());
    current_ = BeginRingAllgather(group_, results_, shares_);
    gathers_ = true;
    *progress = true;
    return Status::Ok();
  }

  Status Await() override { return current_->Await(); }

 private:
  StreamGroup& group_;
  const int32_t dtype_;
  uint8_t* const results_;
  const Shares shares_;         // of the results
  std::vector<float> reduced_;  // this rank's share
  bool gathers_ = false;        // the sums are complete, and the results are exchanged
  std::unique_ptr<StreamOperation> current_;
};

}  // namespace

std::unique_ptr<StreamOperation> BeginHalvesAllreduce(StreamGroup& group, const float* sums, uint8_t* results,
                                                      size_t count, int32_t dtype, int32_t reduce_op, Finish finish) {
  return std::make_unique<Halves>(group, sums, results, count, dtype, reduce_op, finish);
}

}  // namespace spark_estimator
