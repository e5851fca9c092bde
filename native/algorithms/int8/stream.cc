// A piece is encoded when the stream has room for it, and processed when it has arrived: the wire is busy meanwhile.
#include "algorithms/int8/stream.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "algorithms/streams/peer_waits.h"

namespace spark_estimator {
namespace {

// Two ranks: each sends all of its data, and both add up the same two numbers. In place: an output holds the rank's own
// rounded input until the other rank's arrives.
class Exchange : public StreamOperation {
 public:
  Exchange(StreamGroup& group, const Int8Pieces& pieces, float prescale, float factor)
      : group_(group), pieces_(pieces), prescale_(prescale), factor_(factor), peer_(1 - group.rank()) {}

  bool done() const override { return sent_pieces_ == pieces_.count() && added_ == pieces_.count(); }

  Status Step(bool* progress) override {
    if (sending_ == nullptr) {
      SE_RETURN_IF_ERROR(group_.Scratch(2 * pieces_.largest_bytes(), &sending_));
      receiving_ = sending_ + pieces_.largest_bytes();
    }
    SE_RETURN_IF_ERROR(SendSome(progress));
    return ReceiveSome(progress);
  }

  Status Await() override {
    const std::array<int, 1> to = {sent_pieces_ < pieces_.count() ? peer_ : -1};
    const std::array<int, 1> from = {added_ < pieces_.count() && !Whole() ? peer_ : -1};
    return group_.AwaitReady(to, from);
  }

 private:
  bool Whole() const { return received_ == pieces_.bytes(added_); }

  Status SendSome(bool* progress) {
    if (sent_pieces_ == pieces_.count()) return Status::Ok();
    if (encoded_ == sent_pieces_) {
      pieces_.Encode(encoded_++, prescale_, sending_, true);
      *progress = true;
    }
    const size_t bytes = pieces_.bytes(sent_pieces_);
    size_t moved = 0;
    SE_RETURN_IF_ERROR(group_.TrySend(peer_, sending_ + sent_, bytes - sent_, &moved));
    sent_ += moved;
    *progress |= moved > 0;
    if (sent_ == bytes) {
      ++sent_pieces_;
      sent_ = 0;
    }
    return Status::Ok();
  }

  // A piece that the other rank has encoded first waits for the own one.
  Status ReceiveSome(bool* progress) {
    if (added_ == pieces_.count()) return Status::Ok();
    if (!Whole()) {
      size_t moved = 0;
      SE_RETURN_IF_ERROR(group_.TryReceive(peer_, receiving_ + received_, pieces_.bytes(added_) - received_, &moved));
      received_ += moved;
      *progress |= moved > 0;
    }
    if (Whole() && added_ < encoded_) {
      pieces_.Decode(added_++, receiving_, factor_, true);
      received_ = 0;
      *progress = true;
    }
    return Status::Ok();
  }

  StreamGroup& group_;
  const Int8Pieces& pieces_;
  const float prescale_;
  const float factor_;
  const int peer_;
  uint8_t* sending_ = nullptr;
  uint8_t* receiving_ = nullptr;
  size_t encoded_ = 0;      // pieces
  size_t sent_pieces_ = 0;  // of those, sent in full
  size_t sent_ = 0;         // bytes of the one after them
  size_t received_ = 0;     // bytes of the piece added_
  size_t added_ = 0;        // pieces
};

// More ranks: an owner adds up its share, piece by piece, as soon as a piece has arrived from all ranks, and returns it
// at once.
class Direct : public StreamOperation {
 public:
  Direct(StreamGroup& group, const Int8Pieces& pieces, float prescale, float factor)
      : group_(group),
        pieces_(pieces),
        prescale_(prescale),
        factor_(factor),
        own_share_(ShareOf(group.rank())),
        reduced_(own_share_.begin),
        peers_(static_cast<size_t>(group.size() - 1)) {
    for (size_t i = 0; i < peers_.size(); ++i) {
      Peer& peer = peers_[i];
      peer.rank = (group.rank() + 1 + static_cast<int>(i)) % group.size();
      peer.share = ShareOf(peer.rank);
      peer.input = peer.result = peer.share.begin;
      peer.spread = own_share_.begin;
    }
  }

  bool done() const override {
    if (reduced_ < own_share_.end) return false;
    return std::ranges::all_of(peers_, [&](const Peer& peer) {
      return peer.input == peer.share.end && peer.spread == own_share_.end && peer.result == peer.share.end;
    });
  }

  Status Step(bool* progress) override {
    if (!allocated_) SE_RETURN_IF_ERROR(Allocate());
    for (Peer& peer : peers_) {
      SE_RETURN_IF_ERROR(SendSome(peer, progress));
      SE_RETURN_IF_ERROR(ReceiveSome(peer, progress));
    }
    if (reduced_ < own_share_.end && AllHere()) {
      ReducePiece();
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
  struct Share {
    size_t begin = 0;
    size_t end = 0;
  };
  struct Peer {
    int rank = 0;
    Share share;
    uint8_t* sending = nullptr;    // a piece of its share, as this rank has encoded it
    uint8_t* receiving = nullptr;  // a piece that it has sent
    size_t input = 0;              // the next piece of its share to be sent to it
    bool encoded = false;          // ... which is in `sending`
    size_t spread = 0;             // the next piece of the own share to be handed back to it
    size_t sent = 0;               // bytes of the piece that is being sent
    size_t received = 0;           // bytes of the piece that is being received
    size_t result = 0;             // the next piece of its share that it hands back
  };

  Share ShareOf(int rank) const { return {pieces_.share_begin(rank), pieces_.share_begin(rank + 1)}; }

  Status Allocate() {
    const size_t piece = pieces_.largest_bytes();
    uint8_t* scratch = nullptr;
    SE_RETURN_IF_ERROR(
        group_.Scratch(piece * 2 * peers_.size() + pieces_.bytes(own_share_.begin, own_share_.end), &scratch));
    for (Peer& peer : peers_) {
      peer.sending = scratch;
      peer.receiving = scratch + piece;
      scratch += 2 * piece;
    }
    size_t at = 0;
    for (size_t i = own_share_.begin; i < own_share_.end; ++i) {
      results_.push_back(scratch + at);
      at += pieces_.bytes(i);
    }
    allocated_ = true;
    return Status::Ok();
  }

  // What was added up is handed back to a peer behind what it is to add up itself.
  bool HasToSend(const Peer& peer) const { return peer.input < peer.share.end || peer.spread < reduced_; }
  bool HasToReceive(const Peer& peer) const {
    return reduced_ < own_share_.end ? !IsHere(peer) : peer.result < peer.share.end;
  }
  bool IsHere(const Peer& peer) const { return peer.received == pieces_.bytes(reduced_); }
  bool AllHere() const {
    for (const Peer& peer : peers_) {
      if (!IsHere(peer)) return false;
    }
    return true;
  }
  Status SendSome(Peer& peer, bool* progress) {
    if (!HasToSend(peer)) return Status::Ok();
    const bool input = peer.input < peer.share.end;
    if (input && !peer.encoded) {
      pieces_.Encode(peer.input, prescale_, peer.sending, false);
      peer.encoded = true;
      *progress = true;
    }
    const uint8_t* from = input ? peer.sending : results_[peer.spread - own_share_.begin];
    const size_t bytes = pieces_.bytes(input ? peer.input : peer.spread);
    size_t moved = 0;
    SE_RETURN_IF_ERROR(group_.TrySend(peer.rank, from + peer.sent, bytes - peer.sent, &moved));
    peer.sent += moved;
    *progress |= moved > 0;
    if (peer.sent < bytes) return Status::Ok();
    peer.sent = 0;
    if (input) {
      ++peer.input;
      peer.encoded = false;
    } else {
      ++peer.spread;
    }
    return Status::Ok();
  }

  Status ReceiveSome(Peer& peer, bool* progress) {
    if (!HasToReceive(peer)) return Status::Ok();
    const bool input = reduced_ < own_share_.end;
    const size_t bytes = pieces_.bytes(input ? reduced_ : peer.result);
    size_t moved = 0;
    SE_RETURN_IF_ERROR(group_.TryReceive(peer.rank, peer.receiving + peer.received, bytes - peer.received, &moved));
    peer.received += moved;
    *progress |= moved > 0;
    if (input || peer.received < bytes) return Status::Ok();
    pieces_.Decode(peer.result++, peer.receiving, factor_, false);
    peer.received = 0;
    return Status::Ok();
  }

  void ReducePiece() {
    sources_.clear();  // the next rank's first: an owner adds up alone, so any order that stays the same will do
    for (const Peer& peer : peers_) sources_.push_back(peer.receiving);
    pieces_.Reduce(reduced_, prescale_, sources_, factor_, results_[reduced_ - own_share_.begin]);
    for (Peer& peer : peers_) peer.received = 0;
    ++reduced_;
  }

  StreamGroup& group_;
  const Int8Pieces& pieces_;
  const float prescale_;
  const float factor_;
  const Share own_share_;
  size_t reduced_;  // the piece of the own share that is being collected
  std::vector<Peer> peers_;
  bool allocated_ = false;         // the memory that the peers' pieces and the results need
  std::vector<uint8_t*> results_;  // of the own share, by piece, until all peers have them
  std::vector<const uint8_t*> sources_;
  PeerWaits waits_;
};

// With the memory that the operation on them refers to.
class Owning final : public StreamOperation {
 public:
  Owning(StreamGroup& group, std::vector<Int8Part> parts, float prescale, float factor)
      : parts_(std::move(parts)), pieces_(parts_, group.size()) {
    if (pieces_.count() == 0) return;
    if (group.size() == 2) {
      operation_ = std::make_unique<Exchange>(group, pieces_, prescale, factor);
    } else {
      operation_ = std::make_unique<Direct>(group, pieces_, prescale, factor);
    }
  }

  bool done() const override { return !operation_ || operation_->done(); }
  Status Step(bool* progress) override { return operation_ ? operation_->Step(progress) : Status::Ok(); }
  Status Await() override { return operation_->Await(); }

 private:
  const std::vector<Int8Part> parts_;
  const Int8Pieces pieces_;
  std::unique_ptr<StreamOperation> operation_;
};

}  // namespace

std::unique_ptr<StreamOperation> BeginInt8Allreduce(StreamGroup& group, std::vector<Int8Part> parts, float prescale,
                                                    Finish finish) {
  return std::make_unique<Owning>(group, std::move(parts), prescale, FactorOf(finish));
}

Status Int8Allreduce(StreamGroup& group, std::span<const Int8Part> parts, float prescale, Finish finish) {
  return BeginInt8Allreduce(group, {parts.begin(), parts.end()}, prescale, finish)->Complete();
}

}  // namespace spark_estimator
