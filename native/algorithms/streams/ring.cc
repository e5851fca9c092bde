// Each step of the ring begins while the one before runs: a chunk is forwarded as far as it has arrived.
#include "algorithms/streams/ring.h"

#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "base/dtype.h"

namespace spark_estimator {
namespace {

// What is received at once to be reduced: it should still be in the cache when it is read again.
constexpr size_t kPieceBytes = 256 << 10;

// Two cursors over the steps, one that sends and one that receives. In step s the rank at position p of the ring passes
// on the chunk of the rank at position first + p - s, and receives that of the rank before; the first `reducing` steps
// add this rank's part, the `spreading` ones after them only pass on. The chunk that a rank has reduced last is that of
// the next rank, so that spreading alone begins there, at 1, and all else at 0.
class Ring : public StreamOperation {
 public:
  Ring(StreamGroup& group, const uint8_t* input, uint8_t* output, Shares shares, int reducing, int spreading,
       int first = 0)
      : group_(group),
        input_(input),
        output_(output),
        shares_(std::move(shares)),
        reducing_steps_(reducing),
        steps_(reducing + spreading),
        first_(first),
        position_(group.ring_order().PositionOf(group.rank())),
        next_(group.ring_order().RankAt(position_ + 1)),
        previous_(group.ring_order().RankAt(position_ - 1)) {}

  void SetReduction(int32_t dtype, int32_t reduce_op, Finish finish) {
    dtype_ = dtype;
    reduce_op_ = reduce_op;
    finish_ = finish;
    element_ = DtypeBytes(dtype);
  }

  bool done() const override { return send_step_ >= steps_ && receive_step_ >= steps_; }

  Status Step(bool* progress) override {
    SE_RETURN_IF_ERROR(SendSome(progress));
    return ReceiveSome(progress);
  }

  Status Await() override {
    const std::array<int, 1> to = {send_step_ < steps_ && Sendable() > sent_ ? next_ : -1};
    const std::array<int, 1> from = {receive_step_ < steps_ ? previous_ : -1};
    return group_.AwaitReady(to, from);
  }

 private:
  int ChunkSent(int step) const { return group_.ring_order().RankAt(first_ + position_ - step % group_.size()); }
  int ChunkReceived(int step) const { return ChunkSent(step + 1); }

  // How much of the chunk of send_step_ is ready to be sent: all of the rank's own, else what the step before has
  // received.
  size_t Sendable() const {
    if (send_step_ == 0 || receive_step_ > send_step_ - 1) return shares_.length(ChunkSent(send_step_));
    return receive_step_ == send_step_ - 1 ? ready_ : 0;
  }

  Status SendSome(bool* progress) {
    if (send_step_ >= steps_) return Status::Ok();
    const int chunk = ChunkSent(send_step_);
    const size_t ready = Sendable();
    if (ready > sent_) {
      const uint8_t* from = (send_step_ == 0 ? input_ : output_) + shares_.start(chunk);
      size_t moved = 0;
      SE_RETURN_IF_ERROR(group_.TrySend(next_, from + sent_, ready - sent_, &moved));
      sent_ += moved;
      *progress |= moved > 0;
    }
    if (sent_ == shares_.length(chunk) && ready == sent_ && (send_step_ == 0 || receive_step_ >= send_step_)) {
      ++send_step_;
      sent_ = 0;
      *progress = true;
    }
    return Status::Ok();
  }

  Status ReceiveSome(bool* progress) {
    if (receive_step_ >= steps_) return Status::Ok();
    const int chunk = ChunkReceived(receive_step_);
    const size_t length = shares_.length(chunk);
    if (arrived_ < length) {
      size_t moved = 0;
      if (receive_step_ < reducing_steps_) {
        SE_RETURN_IF_ERROR(ReceiveAndReduce(shares_.start(chunk), length, &moved));
      } else {
        SE_RETURN_IF_ERROR(
            group_.TryReceive(previous_, output_ + shares_.start(chunk) + arrived_, length - arrived_, &moved));
        arrived_ += moved;
        ready_ = arrived_;
      }
      *progress |= moved > 0;
    }
    if (arrived_ == length) {
      ++receive_step_;
      arrived_ = ready_ = 0;
      *progress = true;
    }
    return Status::Ok();
  }

  Status ReceiveAndReduce(size_t start, size_t length, size_t* moved) {
    if (piece_ == nullptr) SE_RETURN_IF_ERROR(group_.Scratch(kPieceBytes, &piece_));
    // `partial_` bytes of an element that arrived in two pieces wait at the piece's start.
    const size_t room = std::min(kPieceBytes - partial_, length - arrived_);
    SE_RETURN_IF_ERROR(group_.TryReceive(previous_, piece_ + partial_, room, moved));
    arrived_ += *moved;
    const size_t here = partial_ + *moved;
    const size_t whole = here / element_ * element_;
    if (whole > 0) {
      const void* sources[2] = {piece_, input_ + start + ready_};
      GetKernels().combine(dtype_, reduce_op_, output_ + start + ready_, sources, 2, whole / element_,
                           receive_step_ == reducing_steps_ - 1 ? finish_ : Finish{});
      ready_ += whole;
      partial_ = here - whole;
      if (partial_ > 0) std::memmove(piece_, piece_ + whole, partial_);
    } else {
      partial_ = here;
    }
    return Status::Ok();
  }

  StreamGroup& group_;
  const uint8_t* input_;
  uint8_t* output_;
  const Shares shares_;
  const int reducing_steps_;
  const int steps_;
  const int first_;
  const int position_;
  const int next_;
  const int previous_;
  int32_t dtype_ = SE_UINT8;
  int32_t reduce_op_ = SE_SUM;
  Finish finish_;
  size_t element_ = 1;
  uint8_t* piece_ = nullptr;
  int send_step_ = 0;
  int receive_step_ = 0;
  size_t sent_ = 0;     // bytes of the chunk of send_step_
  size_t arrived_ = 0;  // bytes of the chunk of receive_step_
  size_t ready_ = 0;    // of those, how many may be passed on
  size_t partial_ = 0;
};

std::unique_ptr<StreamOperation> BeginReduction(StreamGroup& group, const uint8_t* input, uint8_t* output, size_t count,
                                                int32_t dtype, int32_t reduce_op, Finish finish, int spreading) {
  const size_t element = DtypeBytes(dtype);
  auto ring = std::make_unique<Ring>(group, input, output, Shares(count * element, element, group.size()),
                                     group.size() - 1, spreading);
  ring->SetReduction(dtype, reduce_op, finish);
  return ring;
}

}  // namespace

std::unique_ptr<StreamOperation> BeginRingAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output,
                                                    size_t count, int32_t dtype, int32_t reduce_op, Finish finish) {
  return BeginReduction(group, input, output, count, dtype, reduce_op, finish, group.size() - 1);
}

std::unique_ptr<StreamOperation> BeginRingAllgather(StreamGroup& group, uint8_t* output, const Shares& shares) {
  return std::make_unique<Ring>(group, output, output, shares, 0, group.size() - 1);
}

std::unique_ptr<StreamOperation> BeginRingReduction(StreamGroup& group, const uint8_t* input, uint8_t* output,
                                                    size_t count, int32_t dtype, int32_t reduce_op, Finish finish) {
  return BeginReduction(group, input, output, count, dtype, reduce_op, finish, 0);
}

std::unique_ptr<StreamOperation> BeginRingSpreading(StreamGroup& group, uint8_t* output, const Shares& shares) {
  return std::make_unique<Ring>(group, output, output, shares, 0, group.size() - 1, 1);
}

int FinishedInRing(const StreamGroup& group) {
  return group.ring_order().RankAt(group.ring_order().PositionOf(group.rank()) + 1);
}

Status RingAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output, size_t count, int32_t dtype,
                     int32_t reduce_op, Finish finish) {
  return BeginRingAllreduce(group, input, output, count, dtype, reduce_op, finish)->Complete();
}

Status RingAllgather(StreamGroup& group, uint8_t* output, const Shares& shares) {
  return BeginRingAllgather(group, output, shares)->Complete();
}

}  // namespace spark_estimator
