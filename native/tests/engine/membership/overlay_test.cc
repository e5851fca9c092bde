// The overlay of a large group: who is connected, and how frames reach those who are not.
#include "engine/membership/overlay.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "engine/membership/peer_links.h"
#include "engine/membership/relayed_frame.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

const std::vector<int> kSizes = {2, 3, 5, 6, 9, 16, 17, 31, 64, 100};

void NeighboursAreMutualAndFew() {
  for (const int size : {2, 3, 5, 6, 9, 16, 17, 100, 1000, 1024, 4096}) {
    const int most = 2 * std::bit_width(static_cast<uint32_t>(size - 1));
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<int> neighbours = overlay::Neighbours(rank, size);
      CHECK(static_cast<int>(neighbours.size()) <= std::min(most, size - 1));
      CHECK(std::ranges::is_sorted(neighbours));
      for (const int peer : neighbours) {
        CHECK(peer != rank && peer >= 0 && peer < size);
        if (size <= 100) {
          const std::vector<int> theirs = overlay::Neighbours(peer, size);
          CHECK(std::ranges::binary_search(theirs, rank));
        }
      }
    }
  }
  CHECK_EQ(overlay::Neighbours(5, 1024).size(), 19u);
}

void PathsAreShortAndOverNeighbours() {
  for (const int size : kSizes) {
    for (int from = 0; from < size; ++from) {
      for (int to = 0; to < size; ++to) {
        if (from == to) continue;
        int steps = 0;
        for (int at = from; at != to; ++steps) {
          const int next = overlay::NextHop(at, to, size);
          const std::vector<int> neighbours = overlay::Neighbours(at, size);
          CHECK(std::ranges::binary_search(neighbours, next));
          at = next;
        }
        CHECK_EQ(steps, std::popcount(static_cast<uint32_t>(overlay::Distance(from, to, size))));
      }
    }
  }
}

// So that frames to all and to one stay in order.
void TheTreeIsThePathsToEach() {
  for (const int size : kSizes) {
    for (int source = 0; source < size; ++source) {
      std::map<int, int> parent_of;
      for (int rank = 0; rank < size; ++rank) {
        overlay::ForEachChild(source, rank, size, [&](int child) { CHECK(parent_of.emplace(child, rank).second); });
      }
      CHECK_EQ(parent_of.size(), static_cast<size_t>(size - 1));
      for (int rank = 0; rank < size; ++rank) {
        if (rank == source) continue;
        int before = source;
        for (int at = source; at != rank; at = overlay::NextHop(at, rank, size)) before = at;
        CHECK_EQ(parent_of.at(rank), before);
      }
    }
  }
}

// All ranks of a group in one thread.
class Group {
 public:
  explicit Group(int size) : size_(size), gone_(static_cast<size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      links_.push_back(std::make_unique<PeerLinks>(rank, size, true));
      CHECK(links_.back()->Open().ok());
    }
    for (int rank = 0; rank < size; ++rank) {
      for (const int peer : overlay::Neighbours(rank, size)) {
        if (peer < rank) continue;
        int ends[2];
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
        at(rank).Connect(peer, UniqueFd(ends[0]));
        at(peer).Connect(rank, UniqueFd(ends[1]));
      }
    }
  }
  PeerLinks& at(int rank) { return *links_[static_cast<size_t>(rank)]; }
  // It ends, with its connections.
  void Lose(int rank) {
    links_[static_cast<size_t>(rank)] = std::make_unique<PeerLinks>(rank, size_, true);
    gone_[static_cast<size_t>(rank)] = true;
  }
  // Until all that was sent has arrived.
  void Settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < size_; ++rank) {
        for (int peer = 0; peer < size_; ++peer) {
          if (!at(rank).is_open(peer)) continue;
          const int64_t before = at(rank).at(peer).bytes_received();
          at(rank).Receive(peer);
          moved |= at(rank).at(peer).bytes_received() > before;
        }
        at(rank).Flush();
        moved |= at(rank).HasUnsent();
      }
    }
  }
  // What `rank` has got of `source`, as one text.
  std::string TakeText(int rank, int source) {
    std::string text;
    for (const Frame& frame : at(rank).inbox(source)) text += frame.payload;
    at(rank).inbox(source).clear();
    return text;
  }
  void Flood(int rank, const std::string& payload) {
    const Frame frame = at(rank).Flood(FrameType::kNotice, payload);
    for (int peer = 0; peer < size_; ++peer) {
      if (at(rank).exists(peer)) at(rank).SendOver(peer, frame.type, frame.payload);
    }
  }
  bool gone(int rank) const { return gone_[static_cast<size_t>(rank)]; }

 private:
  const int size_;
  std::vector<std::unique_ptr<PeerLinks>> links_;
  std::vector<bool> gone_;
};

void FramesToOneAndToAllStayInOrder() {
  for (const int size : {2, 6, 9, 17}) {
    Group group(size);
    for (int source = 0; source < size; ++source) {
      for (int turn = 0; turn < 3; ++turn) {
        group.at(source).SendToAll(FrameType::kNotice, "a" + std::to_string(turn));
        for (int rank = 0; rank < size; ++rank) {
          if (rank != source) group.at(source).Send(rank, FrameType::kNotice, "o" + std::to_string(turn));
        }
      }
    }
    group.Settle();
    for (int rank = 0; rank < size; ++rank) {
      for (int source = 0; source < size; ++source) {
        CHECK_EQ(group.TakeText(rank, source), std::string(rank == source ? "" : "a0o0a1o1a2o2"));
      }
    }
  }
}

void FloodsArriveOnceAndBeforeWhatFollows() {
  for (const int size : {2, 6, 9, 17}) {
    Group group(size);
    for (int source = 0; source < size; ++source) {
      group.Flood(source, "f1");
      group.Flood(source, "f2");
      for (int rank = 0; rank < size; ++rank) {
        if (rank != source) group.at(source).Send(rank, FrameType::kNotice, "!");
      }
    }
    group.Settle();
    for (int rank = 0; rank < size; ++rank) {
      for (int source = 0; source < size; ++source) {
        CHECK_EQ(group.TakeText(rank, source), std::string(rank == source ? "" : "f1f2!"));
      }
    }
  }
}

void FloodsGoRoundRanksThatHaveEnded() {
  constexpr int kSize = 17;
  Group group(kSize);
  for (const int rank : {1, 2, 4, 8}) group.Lose(rank);  // all on the paths of rank 0's frames
  group.at(0).SendToAll(FrameType::kNotice, "tree");
  group.Flood(0, "flood");
  group.Settle();
  for (int rank = 1; rank < kSize; ++rank) {
    const std::string text = group.TakeText(rank, 0);
    if (!group.gone(rank)) CHECK_CONTAINS(text, "flood");
  }
}

void ReceivedRanksAreNamed() {
  Group group(6);
  group.at(0).Send(3, FrameType::kNotice, "x");  // by rank 2
  group.at(2).Send(3, FrameType::kNotice, "y");
  std::vector<int> sources;
  for (int rank = 0; rank < 6; ++rank) {
    for (int peer = 0; peer < 6; ++peer) {
      if (!group.at(rank).is_open(peer)) continue;
      const std::span<const int> received = group.at(rank).Receive(peer);
      if (rank == 3) sources.insert(sources.end(), received.begin(), received.end());
    }
  }
  CHECK((std::set<int>(sources.begin(), sources.end()) == std::set<int>{0, 2}));
}

// A peer that sends what no rank sends is cut off, and nothing of it is passed on.
void ImpossibleFramesCloseTheLink() {
  const auto refused = [](const std::string& payload) {
    Group group(6);
    group.at(0).SendOver(1, FrameType::kRelayed, payload);
    group.at(1).Receive(0);
    CHECK(!group.at(1).is_open(0));
    CHECK_CONTAINS(group.at(1).at(0).closed_reason(), "cannot be passed on");
    group.Settle();
    for (int rank = 2; rank < 6; ++rank) CHECK_EQ(group.TakeText(rank, 0), std::string());
  };
  refused("");
  refused("short");
  refused(Encode(RelayedFrame{0, 6, 0, FrameType::kNotice, "x"}));
  refused(Encode(RelayedFrame{0, -3, 0, FrameType::kNotice, "x"}));
  refused(Encode(RelayedFrame{-1, 3, 0, FrameType::kNotice, "x"}));
  refused(Encode(RelayedFrame{6, 3, 0, FrameType::kNotice, "x"}));
  refused(Encode(RelayedFrame{0, 0, 0, FrameType::kNotice, "x"}));
  refused(Encode(RelayedFrame{1, 3, 0, FrameType::kNotice, "x"}));  // of the receiver itself
  refused(Encode(RelayedFrame{0, 3, 0, FrameType::kRelayed, "x"}));
}

}  // namespace

int main() {
  return RunTests({{"neighbours are mutual and few", NeighboursAreMutualAndFew},
                   {"paths are short and over neighbours", PathsAreShortAndOverNeighbours},
                   {"the tree is the paths to each", TheTreeIsThePathsToEach},
                   {"frames to one and to all stay in order", FramesToOneAndToAllStayInOrder},
                   {"floods arrive once and before what follows", FloodsArriveOnceAndBeforeWhatFollows},
                   {"floods go round ranks that have ended", FloodsGoRoundRanksThatHaveEnded},
                   {"received ranks are named", ReceivedRanksAreNamed},
                   {"impossible frames close the link", ImpossibleFramesCloseTheLink}});
}
