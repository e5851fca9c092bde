// Rounds and what they rest on: the response cache, and proposals that are sent by frames among any number of ranks.
#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "engine/requests/response_cache.h"
#include "engine/rounds/frame_rounds.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

std::shared_ptr<const Signature> Named(const std::string& name, int64_t elements = 4) {
  auto signature = std::make_shared<Signature>();
  signature->name = name;
  signature->op = SE_ALLREDUCE;
  signature->reduce_op = SE_SUM;
  signature->parts = {Part{SE_FLOAT32, {elements}}};
  return signature;
}

void CacheRemembersUpToItsCapacity() {
  ResponseCache cache(2);
  const uint64_t before = cache.generation();
  cache.Insert(Named("a"), {});
  cache.Insert(Named("b"), {1, 2});
  CHECK(cache.generation() != before);
  CHECK(cache.Find(*Named("a")) != nullptr);
  CHECK(cache.Find(*Named("a", 5)) == nullptr);  // another shape is another agreement
  const int32_t a = cache.Find(*Named("a"))->id;
  CHECK(cache.At(a)->signature->name == "a");
  cache.Touch(a);
  cache.Insert(Named("c"), {});  // b was used longest ago
  CHECK(cache.Find(*Named("b")) == nullptr && cache.Find(*Named("a")) != nullptr);
  cache.Insert(Named("a", 5), {});
  CHECK_EQ(cache.Find(*Named("a", 5))->id, a);  // the same name keeps its id
  CHECK(cache.Find(*Named("a")) == nullptr);
  cache.Erase("a");
  cache.Erase("never there");
  CHECK(cache.Find(*Named("a", 5)) == nullptr && cache.At(a) == nullptr);
  cache.Insert(Named("d"), {});
  CHECK_EQ(cache.Find(*Named("d"))->id, a);  // a free id is evicted first
  ResponseCache none(0);
  none.Insert(Named("a"), {});
  CHECK(none.Find(*Named("a")) == nullptr);
}

std::shared_ptr<const Signature> Unnamed(const std::string& kind, std::vector<int64_t> dims,
                                         int32_t op = SE_ALLREDUCE) {
  auto signature = std::make_shared<Signature>();
  signature->name = kind;
  signature->number = 0;
  signature->op = op;
  signature->parts = {Part{SE_FLOAT32, std::move(dims)}};
  return signature;
}

int32_t IdOf(const ResponseCache& cache, const std::shared_ptr<const Signature>& signature) {
  const auto* entry = cache.Find(*signature);
  return entry != nullptr ? entry->id : -1;
}

// Requests of a kind are cached by their forms, beside each other and beside names.
void CacheRemembersRequestsWithoutNames() {
  ResponseCache cache(4);
  cache.Insert(Named("kind", 4), {});
  cache.Insert(Unnamed("kind", {4}), {});
  cache.Insert(Unnamed("kind", {5}), {});
  cache.Insert(Unnamed("other", {4}), {});
  const int32_t four = IdOf(cache, Unnamed("kind", {4}));
  CHECK(four >= 0);
  CHECK(IdOf(cache, Unnamed("kind", {5})) != four && IdOf(cache, Unnamed("kind", {5})) >= 0);
  CHECK(IdOf(cache, Unnamed("other", {4})) != four && IdOf(cache, Named("kind", 4)) != four);
  CHECK_EQ(IdOf(cache, Unnamed("kind", {6})), -1);
  cache.Insert(Unnamed("kind", {4}), {});
  CHECK_EQ(IdOf(cache, Unnamed("kind", {4})), four);  // the same agreement keeps its id
  cache.Erase("kind");                                // a name; what has none stays
  CHECK_EQ(IdOf(cache, Named("kind", 4)), -1);
  CHECK_EQ(IdOf(cache, Unnamed("kind", {4})), four);
  for (int64_t count = 10; count < 100; ++count) cache.Insert(Unnamed("kind", {count}), {});
  int known = 0;
  for (int64_t count = 0; count < 100; ++count) known += cache.Find(*Unnamed("kind", {count})) != nullptr ? 1 : 0;
  CHECK_EQ(known, 4);
  CHECK(cache.Find(*Unnamed("kind", {99})) != nullptr && cache.Find(*Unnamed("other", {4})) == nullptr);
}

// Ranks with different rows must still compute the same ids.
void RanksGiveOneIdToAnAgreementWithoutAName() {
  std::mt19937 random(5);
  for (const size_t capacity : {1, 3, 8}) {
    std::vector<ResponseCache> ranks(3, ResponseCache(0));
    for (ResponseCache& cache : ranks) cache = ResponseCache(capacity);
    for (int i = 0; i < 500; ++i) {
      std::vector<int64_t> rows;
      for (size_t rank = 0; rank < ranks.size(); ++rank) rows.push_back(1 + static_cast<int64_t>(random() % 3));
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        ranks[rank].Insert(Unnamed("gather", {rows[rank], 2}, SE_ALLGATHER), rows);
      }
      const int32_t id = IdOf(ranks[0], Unnamed("gather", {rows[0], 2}, SE_ALLGATHER));
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        // The last agreement is found by what each rank knows of it, and every id means the same everywhere.
        CHECK_EQ(IdOf(ranks[rank], Unnamed("gather", {rows[rank], 2}, SE_ALLGATHER)), id);
        CHECK(ranks[rank].At(id)->rows == rows);
        for (int32_t other = 0; other < static_cast<int32_t>(capacity); ++other) {
          const auto* first = ranks[0].At(other);
          const auto* mine = ranks[rank].At(other);
          CHECK((first == nullptr) == (mine == nullptr) && (first == nullptr || first->rows == mine->rows));
        }
      }
    }
  }
}

void LinesHaveTheirBeginningsInCommon() {
  const Lines a = {{1, 2, 3, 1}, {7, 7, 7}, {9, 4}};
  const Lines b = {{9, 5}, {7, 7}, {1, 2, 4}};
  CHECK((CommonPrefixes(a, b) == Lines{{1, 2}, {7, 7}}));
  CHECK((CommonPrefixes(b, a) == Lines{{7, 7}, {1, 2}}));
  CHECK(CommonPrefixes(a, a) == a);
  CHECK(CommonPrefixes(a, {}).empty());
  Lines read;
  CHECK(Unpack(Pack(a), 10, &read));
  CHECK(read == a);
  CHECK(Unpack({}, 10, &read) && read.empty());
  for (const std::vector<int32_t>& nonsense :
       {std::vector<int32_t>{2}, {2, 1}, {1, 1}, {0}, {-1, 2, 3}, {2, 1, 10}, {2, 1, -1}, {2, 1, 3, 5, 1}}) {
    CHECK(!Unpack(nonsense, 10, &read));
  }
}

void IdSetsIntersect() {
  IdSet a(200);
  IdSet b(200);
  for (const int id : {0, 63, 64, 199}) a.Add(id);
  for (const int id : {63, 64, 100}) b.Add(id);
  a.Intersect(b.words());
  std::vector<int> ids;
  a.ForEach([&](int32_t id) { ids.push_back(id); });
  CHECK((ids == std::vector<int>{63, 64}));
  a.Remove(63);
  a.Remove(64);
  CHECK(a.empty() && b.Has(100) && !b.Has(101));
}

// Ranks whose frames are delivered from one pool in any order that keeps each pair's order.
class Bag {
 public:
  Bag(int size, size_t capacity, unsigned seed) : random_(seed) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<FrameRounds>(
          rank, size, capacity,
          [this, rank](int to, std::string_view payload) {
            ++sent_;
            frames_.push_back({rank, to, std::string(payload)});
          },
          [](Time) { return Status::Ok(); }));
    }
  }
  FrameRounds& of(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int sent() const { return sent_; }
  void DeliverAll() {
    while (!frames_.empty()) {
      // Any pair may be next, but not a pair's second frame before its first.
      const size_t pick = random_() % frames_.size();
      size_t first = pick;
      for (size_t i = 0; i < pick; ++i) {
        if (frames_[i].from == frames_[pick].from && frames_[i].to == frames_[pick].to) {
          first = i;
          break;
        }
      }
      const Frame frame = std::move(frames_[first]);
      frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(first));
      CHECK(of(frame.to).Take(frame.from, frame.payload));
    }
  }

 private:
  struct Frame {
    int from;
    int to;
    std::string payload;
  };
  std::mt19937 random_;
  std::vector<std::unique_ptr<FrameRounds>> ranks_;
  std::deque<Frame> frames_;
  int sent_ = 0;
};

int StepsOf(int size) {
  int steps = 0;
  while ((1 << steps) < size) ++steps;
  return steps;
}

void AllRanksComeToTheSame() {
  std::mt19937 random(7);
  for (int size = 1; size <= 17; ++size) {
    Bag bag(size, 128, static_cast<unsigned>(size));
    for (uint32_t position = 0; position < 30; ++position) {
      std::vector<IdSet> proposed(static_cast<size_t>(size), IdSet(128));
      IdSet common(128);
      for (int32_t id = 0; id < 128; ++id) {
        bool everybody = true;
        for (IdSet& set : proposed) {
          if (random() % 8 != 0 || id == 5) {
            set.Add(id);
          } else {
            everybody = false;
          }
        }
        if (everybody) common.Add(id);
      }
      const int sent_before = bag.sent();
      for (int rank = 0; rank < size; ++rank) {
        Proposal proposal;
        proposal.ids = &proposed[static_cast<size_t>(rank)];
        bag.of(rank).Post(RoundId{0, position}, proposal, 0, nullptr, -1);
      }
      bag.DeliverAll();
      for (int rank = 0; rank < size; ++rank) {
        CHECK(bag.of(rank).done());
        const Outcome& outcome = bag.of(rank).outcome();
        CHECK(!outcome.leaves_rounds && outcome.single < 0);
        CHECK(std::equal(outcome.agreed.words().begin(), outcome.agreed.words().end(), common.words().begin()));
      }
      CHECK_EQ(bag.sent() - sent_before, size * StepsOf(size));  // ceil(log2 n) for each rank
    }
  }
}

// Ranks at different positions, and one with another proposal: all compute the common part.
void AllRanksAgreeOnLines() {
  std::mt19937 random(11);
  for (int size = 2; size <= 9; ++size) {
    Bag bag(size, 64, static_cast<unsigned>(size));
    for (uint32_t position = 0; position < 40; ++position) {
      Line whole(20);
      for (int32_t& id : whole) id = static_cast<int32_t>(random() % 4);
      std::vector<Lines> lines(static_cast<size_t>(size));
      std::vector<IdSet> ids(static_cast<size_t>(size), IdSet(64));
      Line common = whole;
      for (int rank = 0; rank < size; ++rank) {
        Line mine(whole.begin(), whole.begin() + 2 + static_cast<std::ptrdiff_t>(random() % 19));
        if (random() % 4 == 0) mine.back() = 63;
        common.resize(static_cast<size_t>(std::ranges::mismatch(common, mine).in1 - common.begin()));
        ids[static_cast<size_t>(rank)].Add(mine.front());
        ids[static_cast<size_t>(rank)].Add(40);
        lines[static_cast<size_t>(rank)] = {mine, {50, 51}};
      }
      for (int rank = 0; rank < size; ++rank) {
        Proposal proposal;
        proposal.ids = &ids[static_cast<size_t>(rank)];
        proposal.lines = &lines[static_cast<size_t>(rank)];
        bag.of(rank).Post(RoundId{0, position}, proposal, 0, nullptr, -1);
      }
      bag.DeliverAll();
      for (int rank = 0; rank < size; ++rank) {
        const Outcome& outcome = bag.of(rank).outcome();
        const Lines expected = common.size() > 1 ? Lines{common, {50, 51}} : Lines{{50, 51}};
        CHECK(outcome.lines == expected);
        CHECK(outcome.agreed.Has(whole[0]) && outcome.agreed.Has(40));
      }
    }
  }
}

void DataComesAlong() {
  for (int size = 2; size <= 9; ++size) {
    Bag bag(size, 64, static_cast<unsigned>(size));
    for (uint32_t position = 0; position < 4; ++position) {
      for (int rank = 0; rank < size; ++rank) {
        Proposal proposal;
        proposal.single = 3;
        proposal.carries_data = true;
        const auto bytes = static_cast<size_t>(rank * 5);  // ragged, one of them empty
        bag.of(rank).Post(
            RoundId{0, position}, proposal, bytes,
            [&](uint8_t* place) { std::fill(place, place + bytes, static_cast<uint8_t>(rank + 1)); }, -1);
      }
      bag.DeliverAll();
      for (int rank = 0; rank < size; ++rank) {
        CHECK_EQ(bag.of(rank).outcome().single, 3);
        CHECK(bag.of(rank).outcome().carries_data);
        for (int other = 1; other < size; ++other) {
          CHECK_EQ(static_cast<int>(bag.of(rank).data_of(other)[other * 5 - 1]), other + 1);
        }
      }
    }
  }
}

// One rank cannot continue: all learn it, also those whose other partners never post.
void OneSlowRankEndsTheRounds() {
  for (int size = 2; size <= 9; ++size) {
    for (int slow = 0; slow < size; ++slow) {
      for (int absent = -1; absent < size; ++absent) {
        if (absent == slow) continue;
        Bag bag(size, 64, static_cast<unsigned>(slow));
        for (int rank = 0; rank < size; ++rank) {
          if (rank == absent) continue;
          Proposal proposal;
          proposal.leaves_rounds = rank == slow;
          proposal.single = rank == slow ? -1 : 9;
          bag.of(rank).Post(RoundId{0, 0}, proposal, 0, nullptr, -1);
        }
        bag.DeliverAll();
        CHECK(bag.of(slow).done() && bag.of(slow).outcome().leaves_rounds);
        if (absent >= 0) {
          // It is late, and finds the frames that it has received meanwhile.
          Proposal proposal;
          proposal.single = 9;
          bag.of(absent).Post(RoundId{0, 0}, proposal, 0, nullptr, -1);
          bag.DeliverAll();
        }
        for (int rank = 0; rank < size; ++rank) CHECK(bag.of(rank).done() && bag.of(rank).outcome().leaves_rounds);
        // What was left over of this position does not disturb the next epoch.
        for (int rank = 0; rank < size; ++rank) {
          Proposal proposal;
          proposal.single = 4;
          bag.of(rank).Enter(RoundId{1, 3});
          bag.of(rank).Post(RoundId{1, 3}, proposal, 0, nullptr, -1);
        }
        bag.DeliverAll();
        for (int rank = 0; rank < size; ++rank) CHECK_EQ(bag.of(rank).outcome().single, 4);
      }
    }
  }
}

void DisjointProposalsAreSlow() {
  Bag bag(3, 64, 1);
  for (int rank = 0; rank < 3; ++rank) {
    Proposal proposal;
    proposal.single = rank == 1 ? 2 : 1;
    bag.of(rank).Post(RoundId{0, 0}, proposal, 0, nullptr, -1);
  }
  bag.DeliverAll();
  for (int rank = 0; rank < 3; ++rank) CHECK(bag.of(rank).outcome().leaves_rounds);
}

// A single id meets a set that holds it: agreed, but its data is not available.
void SingleMeetsSet() {
  Bag bag(2, 64, 1);
  IdSet set(64);
  set.Add(1);
  set.Add(2);
  Proposal single;
  single.single = 2;
  single.carries_data = true;
  Proposal several;
  several.ids = &set;
  bag.of(0).Post(RoundId{0, 0}, single, 4, [](uint8_t* place) { std::fill(place, place + 4, uint8_t{1}); }, -1);
  bag.of(1).Post(RoundId{0, 0}, several, 0, nullptr, -1);
  bag.DeliverAll();
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(!bag.of(rank).outcome().carries_data && !bag.of(rank).outcome().leaves_rounds);
    CHECK(bag.of(rank).outcome().agreed.Has(2) && !bag.of(rank).outcome().agreed.Has(1));
  }
}

void NonsenseIsRefused() {
  Bag bag(4, 64, 1);
  std::string good;
  FrameRounds other(
      1, 4, 64, [&](int, std::string_view payload) { good = payload; }, [](Time) { return Status::Ok(); });
  Proposal proposal;
  proposal.single = 7;
  proposal.carries_data = true;
  other.Post(RoundId{0, 5}, proposal, 3, [](uint8_t* place) { std::fill(place, place + 3, uint8_t{9}); }, -1);
  CHECK(!bag.of(2).Take(3, good));  // step 0 is received from the neighbour
  for (size_t length = 0; length < good.size(); ++length)
    CHECK(!bag.of(2).Take(1, std::string_view(good).substr(0, length)));
  CHECK(!bag.of(2).Take(1, good + "x"));
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    (void)bag.of(2).Take(1, bytes);  // must not crash nor read past the end (the sanitizers watch)
  }
}

}  // namespace

int main() {
  return RunTests({{"cache remembers up to its capacity", CacheRemembersUpToItsCapacity},
                   {"cache remembers requests without names", CacheRemembersRequestsWithoutNames},
                   {"ranks give one id to an agreement without a name", RanksGiveOneIdToAnAgreementWithoutAName},
                   {"lines have their beginnings in common", LinesHaveTheirBeginningsInCommon},
                   {"id sets intersect", IdSetsIntersect},
                   {"all ranks come to the same", AllRanksComeToTheSame},
                   {"all ranks agree on lines", AllRanksAgreeOnLines},
                   {"data comes along", DataComesAlong},
                   {"one slow rank ends the rounds", OneSlowRankEndsTheRounds},
                   {"disjoint proposals are slow", DisjointProposalsAreSlow},
                   {"single meets set", SingleMeetsSet},
                   {"nonsense is refused", NonsenseIsRefused}});
}
