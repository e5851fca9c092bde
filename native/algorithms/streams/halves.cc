#include "algorithms/streams/halves.h"

#include <memory>
#include <utility>

#include "algorithms/streams/direct.h"
#include "algorithms/streams/ring.h"
#include "algorithms/streams/shares.h"
#include "base/dtype.h"
#include "base/kernels/halves.h"

namespace spark_estimator {
namespace {

// A reduction of float32 values, then an allgather of the rounded results. `reduction` leaves the finished values of
// the share of rank `finished` at `sums`.
class Halves : public StreamOperation {
 public:
  Halves(StreamGroup& group, Shares shares, int finished, uint8_t* results, int32_t dtype, bool in_ring)
      : group_(group),
        shares_(std::move(shares)),
        finished_(finished),
        results_(results),
        dtype_(dtype),
        in_ring_(in_ring) {}

  void Begin(std::unique_ptr<StreamOperation> reduction, const float* sums) {
    current_ = std::move(reduction);
    sums_ = sums;
  }
  // Memory for float32 values that lives as long as the operation.
  float* Floats(size_t count) {
    floats_ = std::make_unique_for_overwrite<float[]>(count);
    return floats_.get();
  }

  bool done() const override { return gathers_ && current_->done(); }

  Status Step(bool* progress) override {
    SE_RETURN_IF_ERROR(current_->Step(progress));
    if (gathers_ || !current_->done()) return Status::Ok();
    const size_t count = shares_.length(finished_) / DtypeBytes(dtype_);
    HalvesFromFloat32(dtype_, results_ + shares_.start(finished_), sums_, count);
    current_ = in_ring_ ? BeginRingSpreading(group_, results_, shares_) : BeginRingAllgather(group_, results_, shares_);
    gathers_ = true;
    *progress = true;
    return Status::Ok();
  }

  Status Await() override { return current_->Await(); }

 private:
  StreamGroup& group_;
  const Shares shares_;  // of the results
  const int finished_;
  uint8_t* const results_;
  const int32_t dtype_;
  const bool in_ring_;
  std::unique_ptr<float[]> floats_;
  const float* sums_ = nullptr;
  bool gathers_ = false;  // the sums are complete, and the results are exchanged
  std::unique_ptr<StreamOperation> current_;
};

Shares SharesOf(const StreamGroup& group, size_t count, size_t element) {
  return Shares(count * element, element, group.size());
}

void BeginInRing(Halves& halves, StreamGroup& group, float* sums, size_t count, int32_t reduce_op, Finish finish) {
  auto* bytes = reinterpret_cast<uint8_t*>(sums);
  const size_t start = SharesOf(group, count, sizeof(float)).start(FinishedInRing(group)) / sizeof(float);
  halves.Begin(BeginRingReduction(group, bytes, bytes, count, SE_FLOAT32, reduce_op, finish), sums + start);
}

}  // namespace

std::unique_ptr<StreamOperation> BeginHalvesAllreduce(StreamGroup& group, float* sums, uint8_t* results, size_t count,
                                                      int32_t dtype, int32_t reduce_op, Finish finish, bool in_ring) {
  Shares shares = SharesOf(group, count, DtypeBytes(dtype));
  const size_t own_count = shares.length(group.rank()) / DtypeBytes(dtype);
  const int finished = in_ring ? FinishedInRing(group) : group.rank();
  auto halves = std::make_unique<Halves>(group, std::move(shares), finished, results, dtype, in_ring);
  if (in_ring) {
    BeginInRing(*halves, group, sums, count, reduce_op, finish);
  } else {
    float* reduced = halves->Floats(own_count);
    halves->Begin(
        BeginDirectReducescatter(group, reinterpret_cast<const uint8_t*>(sums), SharesOf(group, count, sizeof(float)),
                                 reinterpret_cast<uint8_t*>(reduced), SE_FLOAT32, reduce_op, finish),
        reduced);
  }
  return halves;
}

std::unique_ptr<StreamOperation> BeginHalvesRingAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output,
                                                          size_t count, int32_t dtype, int32_t reduce_op,
                                                          Finish finish) {
  auto halves = std::make_unique<Halves>(group, SharesOf(group, count, DtypeBytes(dtype)), FinishedInRing(group),
                                         output, dtype, true);
  float* sums = halves->Floats(count);
  HalvesToFloat32(dtype, sums, input, count);
  BeginInRing(*halves, group, sums, count, reduce_op, finish);
  return halves;
}

}  // namespace spark_estimator
