// The collectives over streams that move bytes and reduce nothing.
#include "algorithms/streams/stream.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "algorithms/streams/ring.h"
#include "algorithms/streams/shares.h"

namespace spark_estimator {
namespace {

// With this number of peers at a time a rank is busy even if some are late, and no rank receives from all others at
// once.
constexpr int kConcurrentTurns = 8;
// A chain forwards received data in units of at least this number of bytes, which limits the system calls.
constexpr size_t kChainTurnBytes = 32 << 10;

int Wrap(const StreamGroup& group, int rank) { return (rank + group.size()) % group.size(); }

// In turn t a rank sends to the one t further on and receives from the one t before (pairwise exchange).
template <typename SendTo, typename ReceiveFrom>
Status Pairwise(StreamGroup& group, SendTo send_to, ReceiveFrom receive_from) {
  std::array<SendPart, kConcurrentTurns> sends;
  std::array<ReceivePart, kConcurrentTurns> receives;
  for (int turn = 1; turn < group.size(); turn += kConcurrentTurns) {
    const int turns = std::min(kConcurrentTurns, group.size() - turn);
    for (int i = 0; i < turns; ++i) {
      const auto index = static_cast<size_t>(i);
      sends[index] = send_to(Wrap(group, group.rank() + turn + i));
      receives[index] = receive_from(Wrap(group, group.rank() - turn - i));
    }
    const auto used = static_cast<size_t>(turns);
    SE_RETURN_IF_ERROR(group.Exchange(std::span(sends).first(used), std::span(receives).first(used)));
  }
  return Status::Ok();
}

// Binomial tree: with ranks counted from the root, each gets its data from the rank that lacks its lowest set bit and
// gives it to those that have one lower bit more, the farthest first.
Status TreeBroadcast(StreamGroup& group, int root, uint8_t* data, size_t bytes) {
  const auto number = static_cast<unsigned>(Wrap(group, group.rank() - root));
  const auto size = static_cast<unsigned>(group.size());
  const unsigned own_bit = number == 0 ? std::bit_ceil(size) : number & (~number + 1);
  if (number != 0) {
    const int parent = Wrap(group, static_cast<int>(number - own_bit) + root - group.size());
    const std::array<ReceivePart, 1> receives = {{{parent, data, bytes}}};
    SE_RETURN_IF_ERROR(group.Exchange({}, receives));
  }
  std::vector<SendPart> sends;
  for (unsigned bit = own_bit / 2; bit > 0; bit /= 2) {
    if (number + bit < size)
      sends.push_back({Wrap(group, static_cast<int>(number + bit) + root - group.size()), data, bytes});
  }
  return group.Exchange(sends, {});
}

// Each rank forwards the data that has arrived while the rest is in flight.
Status ChainBroadcast(StreamGroup& group, int root, uint8_t* data, size_t bytes) {
  const RingOrder& order = group.ring_order();
  const int position = order.PositionOf(group.rank());
  const int number = Wrap(group, position - order.PositionOf(root));
  const bool receives = number > 0;
  const bool sends = number + 1 < group.size();
  const int previous = order.RankAt(position - 1);
  const int next = order.RankAt(position + 1);
  size_t here = receives ? 0 : bytes;
  size_t passed = sends ? 0 : bytes;
  while (here < bytes || passed < bytes) {
    size_t received = 0;
    size_t sent = 0;
    if (here < bytes) SE_RETURN_IF_ERROR(group.TryReceive(previous, data + here, bytes - here, &received));
    here += received;
    const bool turn = passed < here && (here == bytes || here - passed >= kChainTurnBytes);
    if (turn) SE_RETURN_IF_ERROR(group.TrySend(next, data + passed, here - passed, &sent));
    passed += sent;
    if (received > 0 || sent > 0) continue;
    const std::array<int, 1> to = {turn ? next : -1};
    const std::array<int, 1> from = {here < bytes ? previous : -1};
    SE_RETURN_IF_ERROR(group.AwaitReady(to, from));
  }
  return Status::Ok();
}

// The root sends one share to each rank, then all exchange shares, so that every link carries as much as the root's
// (van de Geijn).
Status ScatterAllgatherBroadcast(StreamGroup& group, int root, uint8_t* data, size_t bytes) {
  const Shares shares(bytes, 1, group.size());
  std::vector<SendPart> sends;
  std::vector<ReceivePart> receives;
  for (int turn = 1; turn < group.size() && group.rank() == root; ++turn) {
    const int peer = Wrap(group, root + turn);
    sends.push_back({peer, data + shares.start(peer), shares.length(peer)});
  }
  if (group.rank() != root) receives.push_back({root, data + shares.start(group.rank()), shares.length(group.rank())});
  SE_RETURN_IF_ERROR(group.Exchange(sends, receives));
  return RingAllgather(group, data, shares);
}

// Bruck and others, "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997:
// after step k a rank holds the rows of the 2^k ranks from itself on.
Status BruckAllgather(StreamGroup& group, const uint8_t* input, const Shares& shares, uint8_t* output) {
  const int size = group.size();
  const int rank = group.rank();
  uint8_t* rows = nullptr;  // in the order of ranks that begins with this one
  SE_RETURN_IF_ERROR(group.Scratch(shares.total(), &rows));
  // Bytes of the rows of `count` ranks from `first` on.
  const auto bytes_from = [&](int first, int count) {
    const int wrapped = std::max(0, first + count - size);
    return shares.start(first + count - wrapped) - shares.start(first) + shares.start(wrapped);
  };
  if (shares.length(rank) > 0) std::memcpy(rows, input, shares.length(rank));
  for (int held = 1; held < size; held *= 2) {
    const int more = std::min(held, size - held);
    const int to = Wrap(group, rank - held);
    const int from = Wrap(group, rank + held);
    const std::array<SendPart, 1> sends = {{{to, rows, bytes_from(rank, more)}}};
    const std::array<ReceivePart, 1> receives = {{{from, rows + bytes_from(rank, held), bytes_from(from, more)}}};
    SE_RETURN_IF_ERROR(group.Exchange(sends, receives));
  }
  const size_t to_the_end = shares.total() - shares.start(rank);
  if (to_the_end > 0) std::memcpy(output + shares.start(rank), rows, to_the_end);
  if (rank > 0 && shares.start(rank) > 0) std::memcpy(output, rows + to_the_end, shares.start(rank));
  return Status::Ok();
}

}  // namespace

Status StreamBroadcast(StreamGroup& group, BroadcastAlgorithm algorithm, int root, void* data, size_t bytes) {
  if (bytes == 0 || group.size() == 1) return Status::Ok();
  auto* out = static_cast<uint8_t*>(data);
  switch (algorithm) {
    case BroadcastAlgorithm::kTree:
      return TreeBroadcast(group, root, out, bytes);
    case BroadcastAlgorithm::kChain:
      return ChainBroadcast(group, root, out, bytes);
    case BroadcastAlgorithm::kScatterAllgather:
      return ScatterAllgatherBroadcast(group, root, out, bytes);
    default:
      return Status(SE_INTERNAL, std::string("broadcast by '") + Name(algorithm) + "' does not go over streams");
  }
}

Status StreamBroadcast(StreamGroup& group, int root, void* data, size_t bytes) {
  Situation situation;
  situation.bytes = bytes;
  situation.ranks = situation.hosts = group.size();
  return StreamBroadcast(group, ChooseBroadcast(situation), root, data, bytes);
}

Status StreamAllgather(StreamGroup& group, AllgatherAlgorithm algorithm, const void* input,
                       std::span<const size_t> bytes_of, void* output) {
  const Shares shares(bytes_of);
  const int rank = group.rank();
  const auto* in = static_cast<const uint8_t*>(input);
  auto* out = static_cast<uint8_t*>(output);
  const bool among_others = group.size() > 1 && shares.total() > 0;
  if (among_others && algorithm == AllgatherAlgorithm::kBruck) return BruckAllgather(group, in, shares, out);
  if (shares.length(rank) > 0) std::memcpy(out + shares.start(rank), in, shares.length(rank));
  if (!among_others) return Status::Ok();
  if (algorithm == AllgatherAlgorithm::kRing) return RingAllgather(group, out, shares);
  if (algorithm != AllgatherAlgorithm::kExchange) {
    return Status(SE_INTERNAL, std::string("allgather by '") + Name(algorithm) + "' does not go over streams");
  }
  return Pairwise(
      group, [&](int to) { return SendPart{to, in, shares.length(rank)}; },
      [&](int from) { return ReceivePart{from, out + shares.start(from), shares.length(from)}; });
}

Status StreamAllgather(StreamGroup& group, const void* input, std::span<const size_t> bytes_of, void* output) {
  Situation situation;
  for (const size_t bytes : bytes_of) situation.bytes += bytes;
  situation.ranks = situation.hosts = group.size();
  return StreamAllgather(group, ChooseAllgather(situation), input, bytes_of, output);
}

Status StreamAlltoall(StreamGroup& group, const void* input, std::span<const size_t> send_bytes, void* output,
                      std::span<const size_t> receive_bytes) {
  const Shares out_of(send_bytes);
  const Shares into(receive_bytes);
  const auto* in = static_cast<const uint8_t*>(input);
  auto* out = static_cast<uint8_t*>(output);
  const int rank = group.rank();
  if (out_of.length(rank) > 0) std::memcpy(out + into.start(rank), in + out_of.start(rank), out_of.length(rank));
  return Pairwise(
      group, [&](int to) { return SendPart{to, in + out_of.start(to), out_of.length(to)}; },
      [&](int from) { return ReceivePart{from, out + into.start(from), into.length(from)}; });
}

// Dissemination barrier (Hensgen, Finkel, Manber 1988): in round k a rank notifies the one 2^k further on; after
// log2(size) rounds all ranks know of all.
Status StreamBarrier(StreamGroup& group) {
  for (int distance = 1; distance < group.size(); distance *= 2) {
    const uint8_t token = 1;
    uint8_t heard = 0;
    const std::array<SendPart, 1> sends = {{{Wrap(group, group.rank() + distance - group.size()), &token, 1}}};
    const std::array<ReceivePart, 1> receives = {{{Wrap(group, group.rank() - distance), &heard, 1}}};
    SE_RETURN_IF_ERROR(group.Exchange(sends, receives));
  }
  return Status::Ok();
}

}  // namespace spark_estimator
