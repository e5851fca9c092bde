// An owner reduces its share block by block, as soon as a block has arrived from all ranks, and returns each block at
// once: with two ranks this is the ring, with more it has 2 steps instead of 2 (n - 1) and the same bytes.
#include "algorithms/streams/direct.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "algorithms/streams/peer_waits.h"
#include "base/dtype.h"

namespace spark_estimator {
namespace {

// Blocks of all peers together: they should still be in the cache when they are reduced.
constexpr size_t kBlocksBytes = 512 << 10;
constexpr size_t kMinBlockBytes = 4 << 10;
constexpr size_t kMaxBlockBytes = 256 << 10;

class Direct : public StreamOperation {
 public:
  // `spread`: owners return their shares, and `output` has the size of `input`; else `output` has the size of a share.
  Direct(StreamGroup& group, const uint8_t* input, uint8_t* output, Shares shares, bool spread)
      : group_(group),
        me_(group.rank()),
        input_(input),
        own_output_(spread ? output + shares.start(group.rank()) : output),
        output_(output),
        shares_(std::move(shares)),
        spread_(spread),
        peers_(static_cast<size_t>(group.size() - 1)) {
    for (size_t i = 0; i < peers_.size(); ++i) peers_[i].rank = (me_ + 1 + static_cast<int>(i)) % group.size();
    sources_.resize(static_cast<size_t>(group.size()));
    const size_t even = kBlocksBytes / peers_.size() / kMinBlockBytes * kMinBlockBytes;
    const size_t wanted = std::max(kMinBlockBytes, std::min(kMaxBlockBytes, even));
    block_bytes_ = std::min(wanted, (shares_.length(me_) + 63) / 64 * 64);  // a multiple of every element's size
    if (shares_.length(me_) > 0) BeginBlock();
  }

  void SetReduction(int32_t dtype, int32_t reduce_op, Finish finish) {
    dtype_ = dtype;
    reduce_op_ = reduce_op;
    finish_ = finish;
  }

  bool done() const override {
    return std::ranges::all_of(peers_, [&](const Peer& peer) { return Sent(peer) && Received(peer); });
  }

  Status Step(bool* progress) override {
    if (blocks_ == nullptr) SE_RETURN_IF_ERROR(group_.Scratch(block_bytes_ * peers_.size(), &blocks_));
    for (Peer& peer : peers_) {
      SE_RETURN_IF_ERROR(SendSome(peer, progress));
      SE_RETURN_IF_ERROR(ReceiveSome(peer, progress));
    }
    if (reduced_ < shares_.length(me_) && missing_ == 0) {
      ReduceBlock();
      *progress = true;
    }
    return Status::Ok();
  }

  Status Await() override {
    return waits_.Await(
        group_, peers_, [&](const Peer& peer) { return HasToSend(peer); },
        [&](const Peer& peer) { return HasToReceive(peer); });
  }

 private:
  struct Peer {
    int rank = 0;
    size_t sent = 0;       // of our input that is in its share
    size_t in_block = 0;   // of its input for the block that is being reduced
    size_t spread_to = 0;  // of our reduced share
    size_t taken = 0;      // of its reduced share
  };

  bool Sent(const Peer& peer) const {
    return peer.sent == shares_.length(peer.rank) && (!spread_ || peer.spread_to == shares_.length(me_));
  }
  bool Received(const Peer& peer) const {
    return reduced_ == shares_.length(me_) && (!spread_ || peer.taken == shares_.length(peer.rank));
  }

  // The end of the sendable data of each kind: the inputs are first in the stream.
  bool HasToSend(const Peer& peer) const {
    return peer.sent < shares_.length(peer.rank) || (spread_ && peer.spread_to < reduced_);
  }
  bool HasToReceive(const Peer& peer) const {
    if (reduced_ < shares_.length(me_)) return peer.in_block < this_block_;
    return spread_ && peer.taken < shares_.length(peer.rank);
  }

  Status SendSome(Peer& peer, bool* progress) {
    size_t moved = 0;
    const size_t all = shares_.length(peer.rank);
    if (peer.sent < all) {
      const uint8_t* from = input_ + shares_.start(peer.rank) + peer.sent;
      SE_RETURN_IF_ERROR(group_.TrySend(peer.rank, from, all - peer.sent, &moved));
      peer.sent += moved;
    }
    *progress |= moved > 0;
    if (peer.sent < all || !spread_ || peer.spread_to >= reduced_) return Status::Ok();
    SE_RETURN_IF_ERROR(group_.TrySend(peer.rank, own_output_ + peer.spread_to, reduced_ - peer.spread_to, &moved));
    peer.spread_to += moved;
    *progress |= moved > 0;
    return Status::Ok();
  }

  Status ReceiveSome(Peer& peer, bool* progress) {
    if (!HasToReceive(peer)) return Status::Ok();
    size_t moved = 0;
    if (reduced_ < shares_.length(me_)) {
      SE_RETURN_IF_ERROR(
          group_.TryReceive(peer.rank, BlockOf(peer) + peer.in_block, this_block_ - peer.in_block, &moved));
      peer.in_block += moved;
      if (moved > 0 && peer.in_block == this_block_) --missing_;
    } else {
      // In place this overwrites this rank's input, of which the owner cannot have reduced more than was sent.
      uint8_t* to = output_ + shares_.start(peer.rank) + peer.taken;
      SE_RETURN_IF_ERROR(group_.TryReceive(peer.rank, to, shares_.length(peer.rank) - peer.taken, &moved));
      peer.taken += moved;
    }
    *progress |= moved > 0;
    return Status::Ok();
  }

  uint8_t* BlockOf(const Peer& peer) const {
    return blocks_ + block_bytes_ * static_cast<size_t>(&peer - peers_.data());
  }

  void BeginBlock() {
    this_block_ = std::min(block_bytes_, shares_.length(me_) - reduced_);
    missing_ = peers_.size();
    for (Peer& peer : peers_) peer.in_block = 0;
  }

  void ReduceBlock() {
    sources_[static_cast<size_t>(me_)] = input_ + shares_.start(me_) + reduced_;
    for (const Peer& peer : peers_) sources_[static_cast<size_t>(peer.rank)] = BlockOf(peer);
    GetKernels().combine(dtype_, reduce_op_, own_output_ + reduced_, sources_.data(), group_.size(),
                         this_block_ / DtypeBytes(dtype_), finish_);
    reduced_ += this_block_;
    BeginBlock();
  }

  StreamGroup& group_;
  const int me_;
  const uint8_t* input_;
  uint8_t* own_output_;
  uint8_t* output_;
  const Shares shares_;
  const bool spread_;
  std::vector<Peer> peers_;  // the next rank first, so that not everybody begins with rank 0
  std::vector<const void*> sources_;
  PeerWaits waits_;
  int32_t dtype_ = SE_UINT8;
  int32_t reduce_op_ = SE_SUM;
  Finish finish_;
  uint8_t* blocks_ = nullptr;
  size_t block_bytes_ = 0;
  size_t this_block_ = 0;  // bytes of the block that is being collected
  size_t missing_ = 0;     // peers of whom it is not complete
  size_t reduced_ = 0;     // bytes of this rank's share
};

}  // namespace

std::unique_ptr<StreamOperation> BeginDirectAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output,
                                                      size_t count, int32_t dtype, int32_t reduce_op, Finish finish) {
  const size_t element = DtypeBytes(dtype);
  auto direct = std::make_unique<Direct>(group, input, output, Shares(count * element, element, group.size()), true);
  direct->SetReduction(dtype, reduce_op, finish);
  return direct;
}

Status DirectAllreduce(StreamGroup& group, const uint8_t* input, uint8_t* output, size_t count, int32_t dtype,
                       int32_t reduce_op, Finish finish) {
  return BeginDirectAllreduce(group, input, output, count, dtype, reduce_op, finish)->Complete();
}

std::unique_ptr<StreamOperation> BeginDirectReducescatter(StreamGroup& group, const uint8_t* input,
                                                          const Shares& shares, uint8_t* output, int32_t dtype,
                                                          int32_t reduce_op, Finish finish) {
  auto direct = std::make_unique<Direct>(group, input, output, shares, false);
  direct->SetReduction(dtype, reduce_op, finish);
  return direct;
}

Status DirectReducescatter(StreamGroup& group, const uint8_t* input, const Shares& shares, uint8_t* output,
                           int32_t dtype, int32_t reduce_op, Finish finish) {
  return BeginDirectReducescatter(group, input, shares, output, dtype, reduce_op, finish)->Complete();
}

}  // namespace spark_estimator
