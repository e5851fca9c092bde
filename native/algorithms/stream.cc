#include "algorithms/stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/dtype.h"

namespace spark_estimator {
namespace {

// Up to here latency decides: one exchange with everybody beats the ring's 2 (size - 1) steps.
constexpr size_t kExchangeBytes = 16 << 10;
// A root that sends everything to everybody is fastest while its link is not the bottleneck.
constexpr size_t kFlatBroadcastBytes = 64 << 10;

struct Shares {  // of `bytes` among `ranks`, in whole units
  size_t bytes;
  size_t unit;
  size_t share;
  Shares(size_t bytes_in, size_t unit_in, int ranks) : bytes(bytes_in), unit(unit_in) {
    const size_t units = bytes / unit;
    const auto n = static_cast<size_t>(ranks);
    share = (units + n - 1) / n * unit;
  }
  size_t start(int index) const { return std::min(bytes, share * static_cast<size_t>(index)); }
  size_t length(int index) const { return start(index + 1) - start(index); }
};

// Everybody's share at its place in `data` of everybody else.
Status GatherShares(StreamGroup& group, uint8_t* data, const Shares& shares) {
  std::vector<SendPart> sends;
  std::vector<ReceivePart> receives;
  for (int turn = 1; turn < group.size; ++turn) {
    const int to = (group.rank + turn) % group.size;
    const int from = (group.rank - turn + group.size) % group.size;
    sends.push_back({to, data + shares.start(group.rank), shares.length(group.rank)});
    receives.push_back({from, data + shares.start(from), shares.length(from)});
  }
  return group.Exchange(sends, receives);
}

// The ring's two phases as two cursors, one that sends and one that receives, so that a step begins while the one
// before is still running: a chunk may be passed on as far as it has arrived (and been reduced).
class Ring {
 public:
  Ring(StreamGroup& group, uint8_t* data, size_t count, int32_t dtype, int32_t reduce_op, Finish finish)
      : group_(group),
        data_(data),
        dtype_(dtype),
        reduce_op_(reduce_op),
        finish_(finish),
        element_(DtypeBytes(dtype)),
        shares_(count * element_, element_, group.size),
        steps_(2 * (group.size - 1)),
        next_((group.rank + 1) % group.size),
        previous_((group.rank + group.size - 1) % group.size) {}

  Status Run() {
    while (send_step_ < steps_ || receive_step_ < steps_) {
      bool progress = false;
      SE_RETURN_IF_ERROR(SendSome(&progress));
      SE_RETURN_IF_ERROR(ReceiveSome(&progress));
      if (progress) continue;
      const std::array<int, 1> to = {send_step_ < steps_ && Sendable() > sent_ ? next_ : -1};
      const std::array<int, 1> from = {receive_step_ < steps_ ? previous_ : -1};
      SE_RETURN_IF_ERROR(group_.AwaitReady(to, from));
    }
    return Status::Ok();
  }

 private:
  // In step s a rank passes on chunk (rank - s) and receives chunk (rank - s - 1): the first size - 1 steps reduce,
  // the others only spread what is reduced.
  int ChunkSent(int step) const { return Wrap(group_.rank - step); }
  int ChunkReceived(int step) const { return Wrap(group_.rank - step - 1); }
  int Wrap(int index) const { return ((index % group_.size) + group_.size) % group_.size; }
  bool Reduces(int step) const { return step < group_.size - 1; }

  // How much of the chunk of send_step_ is ready to be passed on: all of one's own, else what the step before brought.
  size_t Sendable() const {
    if (send_step_ == 0 || receive_step_ > send_step_ - 1) return shares_.length(ChunkSent(send_step_));
    return receive_step_ == send_step_ - 1 ? ready_ : 0;
  }

  Status SendSome(bool* progress) {
    if (send_step_ >= steps_) return Status::Ok();
    const int chunk = ChunkSent(send_step_);
    const size_t ready = Sendable();
    if (ready > sent_) {
      size_t moved = 0;
      SE_RETURN_IF_ERROR(group_.TrySend(next_, data_ + shares_.start(chunk) + sent_, ready - sent_, &moved));
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
    uint8_t* place = data_ + shares_.start(chunk);
    if (arrived_ < length) {
      size_t moved = 0;
      if (Reduces(receive_step_)) {
        // `partial_` bytes of an element that arrived in two pieces wait at the scratch's start.
        const size_t room = std::min(scratch_.size() - partial_, length - arrived_);
        SE_RETURN_IF_ERROR(group_.TryReceive(previous_, scratch_.data() + partial_, room, &moved));
        arrived_ += moved;
        const size_t here = partial_ + moved;
        const size_t whole = here / element_ * element_;
        ReduceInto(place + ready_, whole, receive_step_ == group_.size - 2);
        ready_ += whole;
        partial_ = here - whole;
        if (partial_ > 0 && whole > 0) std::memmove(scratch_.data(), scratch_.data() + whole, partial_);
      } else {
        SE_RETURN_IF_ERROR(group_.TryReceive(previous_, place + arrived_, length - arrived_, &moved));
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

  void ReduceInto(uint8_t* place, size_t bytes, bool last) {
    if (bytes == 0) return;
    const void* sources[2] = {place, scratch_.data()};
    GetKernels().combine(dtype_, reduce_op_, place, sources, 2, bytes / element_, last ? finish_ : Finish{});
  }

  StreamGroup& group_;
  uint8_t* data_;
  const int32_t dtype_;
  const int32_t reduce_op_;
  const Finish finish_;
  const size_t element_;
  const Shares shares_;
  const int steps_;
  const int next_;
  const int previous_;
  std::vector<uint8_t> scratch_ = std::vector<uint8_t>(256 << 10);
  int send_step_ = 0;
  int receive_step_ = 0;
  size_t sent_ = 0;     // bytes of the chunk of send_step_
  size_t arrived_ = 0;  // bytes of the chunk of receive_step_
  size_t ready_ = 0;    // of those, how many may be passed on
  size_t partial_ = 0;
};

}  // namespace

Status ExchangeAllreduce(StreamGroup& group, void* data, size_t count, int32_t dtype, int32_t reduce_op,
                         Finish finish) {
  const size_t bytes = count * DtypeBytes(dtype);
  const auto ranks = static_cast<size_t>(group.size);
  std::vector<uint8_t> all(bytes * ranks);
  const std::vector<size_t> bytes_of(ranks, bytes);
  SE_RETURN_IF_ERROR(StreamAllgather(group, data, bytes_of, all.data()));
  std::vector<const void*> sources;
  for (size_t rank = 0; rank < ranks; ++rank) sources.push_back(all.data() + bytes * rank);
  GetKernels().combine(dtype, reduce_op, data, sources.data(), group.size, count, finish);
  return Status::Ok();
}

Status RingAllreduce(StreamGroup& group, void* data, size_t count, int32_t dtype, int32_t reduce_op, Finish finish) {
  return Ring(group, static_cast<uint8_t*>(data), count, dtype, reduce_op, finish).Run();
}

Status StreamAllreduce(StreamGroup& group, void* data, size_t count, int32_t dtype, int32_t reduce_op, Finish finish) {
  if (count == 0) return Status::Ok();
  if (count * DtypeBytes(dtype) <= kExchangeBytes)
    return ExchangeAllreduce(group, data, count, dtype, reduce_op, finish);
  return RingAllreduce(group, data, count, dtype, reduce_op, finish);
}

Status StreamBroadcast(StreamGroup& group, int root, void* data, size_t bytes) {
  if (bytes == 0) return Status::Ok();
  auto* out = static_cast<uint8_t*>(data);
  const bool is_root = group.rank == root;
  const bool flat = bytes <= kFlatBroadcastBytes || group.size == 2;
  // Large: the root deals out one share to each rank, then all exchange shares, so that every link carries as much as
  // the root's (scatter and allgather, after van de Geijn).
  const Shares shares(bytes, 1, group.size);
  std::vector<SendPart> sends;
  std::vector<ReceivePart> receives;
  if (is_root) {
    for (int peer = 0; peer < group.size; ++peer) {
      if (peer == group.rank) continue;
      if (flat) {
        sends.push_back({peer, out, bytes});
      } else {
        sends.push_back({peer, out + shares.start(peer), shares.length(peer)});
      }
    }
  } else if (flat) {
    receives.push_back({root, out, bytes});
  } else {
    receives.push_back({root, out + shares.start(group.rank), shares.length(group.rank)});
  }
  SE_RETURN_IF_ERROR(group.Exchange(sends, receives));
  return flat ? Status::Ok() : GatherShares(group, out, shares);
}

Status StreamAllgather(StreamGroup& group, const void* input, std::span<const size_t> bytes_of, void* output) {
  std::vector<size_t> start_of(bytes_of.size() + 1, 0);
  for (size_t rank = 0; rank < bytes_of.size(); ++rank) start_of[rank + 1] = start_of[rank] + bytes_of[rank];
  const auto me = static_cast<size_t>(group.rank);
  auto* out = static_cast<uint8_t*>(output);
  const auto* in = static_cast<const uint8_t*>(input);
  if (bytes_of[me] > 0) std::memcpy(out + start_of[me], in, bytes_of[me]);
  std::vector<SendPart> sends;
  std::vector<ReceivePart> receives;
  for (int turn = 1; turn < group.size; ++turn) {
    const int to = (group.rank + turn) % group.size;
    const int from = (group.rank - turn + group.size) % group.size;
    sends.push_back({to, in, bytes_of[me]});
    receives.push_back({from, out + start_of[static_cast<size_t>(from)], bytes_of[static_cast<size_t>(from)]});
  }
  return group.Exchange(sends, receives);
}

// Dissemination barrier (Hensgen, Finkel, Manber 1988): in round k a rank tells the one 2^k further on; after
// log2(size) rounds everybody has heard of everybody.
Status StreamBarrier(StreamGroup& group) {
  for (int distance = 1; distance < group.size; distance *= 2) {
    const uint8_t token = 1;
    uint8_t heard = 0;
    const std::array<SendPart, 1> sends = {{{(group.rank + distance) % group.size, &token, 1}}};
    const std::array<ReceivePart, 1> receives = {{{(group.rank - distance + group.size) % group.size, &heard, 1}}};
    SE_RETURN_IF_ERROR(group.Exchange(sends, receives));
  }
  return Status::Ok();
}

}  // namespace spark_estimator
