// The table of choices, row by row, and that no field of a situation is ignored where it must matter.
#include "algorithms/choose.h"

#include <string>
#include <vector>

#include "check.h"

namespace {

using namespace spark_estimator;

constexpr size_t kMegabyte = 1 << 20;

struct AllreduceRow {
  const char* what;
  Situation situation;
  AllreduceAlgorithm chosen;
};

void Allreduces() {
  using enum AllreduceAlgorithm;
  const Situation one_host{.ranks = 4, .ranks_per_host = 4, .shared = true};
  const Situation apart{.ranks = 4, .hosts = 4};
  const Situation many{.ranks = 64, .hosts = 64};
  const Situation pairs{.ranks = 4, .hosts = 2, .ranks_per_host = 2};
  const auto with = [](Situation situation, size_t bytes) {
    situation.bytes = bytes;
    return situation;
  };
  const auto int8 = [&](Situation situation, size_t bytes) {
    situation.int8 = true;
    return with(situation, bytes);
  };
  Situation arena = with(one_host, kMegabyte);
  arena.in_arena = true;
  Situation small_in_arena = with(one_host, 4);
  small_in_arena.in_arena = true;
  Situation half = with(apart, 64 * kMegabyte);
  half.dtype = SE_BFLOAT16;
  Situation half_in_ring = half;
  half_in_ring.tuning.halves_in_ring = true;
  Situation short_half = with(half_in_ring, 256 << 10);
  Situation flat = with(pairs, 64 * kMegabyte);
  flat.tuning.hierarchical = 0;
  Situation uneven = with(pairs, 64 * kMegabyte);
  uneven.ranks = 5;
  uneven.ranks_per_host = 0;
  Situation forced = with(apart, 64 * kMegabyte);
  forced.tuning.hierarchical = 1;
  Situation tuned = with(apart, kMegabyte);
  tuned.tuning.ring_bytes = 2 * kMegabyte;
  const std::vector<AllreduceRow> table = {
      {"nobody else", {.bytes = kMegabyte}, kAlone},
      {"one host, at the limit", with(one_host, 8192), kSharedOneShot},
      {"one host, above", with(one_host, 8193), kSharedPipeline},
      {"one host, in shared tensors", arena, kSharedInArena},
      {"one host, a few bytes in shared tensors", small_in_arena, kSharedOneShot},
      {"hosts, a few bytes", with(apart, 4), kExchange},
      {"hosts, too much for everybody at once", with(apart, 8192), kDoubling},
      {"int8 between hosts", int8(apart, kMegabyte), kInt8},
      {"int8 by hosts", int8(pairs, kMegabyte), kHierarchicalInt8},
      {"not int8 inside a host", int8(one_host, kMegabyte), kSharedPipeline},
      {"not int8 of a share that is too short", int8(apart, 65536), kDirect},
      {"not int8 of what may travel with a proposal", int8({.ranks = 2, .hosts = 2}, 32768), kDirect},
      {"two hosts exchange up to the limit", with({.ranks = 2, .hosts = 2}, 16384), kExchange},
      {"many hosts, a few bytes", with(many, 4), kDoubling},
      {"hosts, middle", with(apart, 100 << 10), kDirect},
      {"many hosts, middle", with(many, 100 << 10), kHalving},
      {"many hosts that are no power of two, middle", with({.ranks = 100, .hosts = 100}, 100 << 10), kDirect},
      {"a ring's steps would be too short", with(many, kMegabyte), kHalving},
      {"hosts, large", with(apart, 64 * kMegabyte), kRing},
      {"many hosts, large", with(many, 64 * kMegabyte), kRing},
      {"no partial sum of a bfloat16 travels", half, kDirect},
      {"16-bit in a ring", half_in_ring, kRing},
      {"16-bit, too short for a ring", short_half, kDirect},
      {"hosts of several ranks", with(pairs, 64 * kMegabyte), kHierarchical},
      {"hosts of several ranks, a few bytes", with(pairs, 4), kHierarchical},
      {"hosts of different numbers of ranks", uneven, kHierarchical},
      {"hierarchical turned off", flat, kRing},
      {"hierarchical where every rank is a host", forced, kRing},
      {"another limit", tuned, kDirect},
  };
  for (const AllreduceRow& row : table) {
    const AllreduceAlgorithm chosen = ChooseAllreduce(row.situation);
    if (chosen != row.chosen) {
      testing::Fail(__FILE__, __LINE__, std::string(row.what) + ": " + Name(chosen) + " is not " + Name(row.chosen));
    }
  }
}

void Broadcasts() {
  using enum BroadcastAlgorithm;
  CHECK(ChooseBroadcast({.bytes = 100}) == kAlone);
  CHECK(ChooseBroadcast({.bytes = kMegabyte, .ranks = 4, .ranks_per_host = 4, .shared = true}) == kShared);
  CHECK(ChooseBroadcast({.bytes = kMegabyte, .ranks = 2, .hosts = 2}) == kTree);
  CHECK(ChooseBroadcast({.bytes = 4, .ranks = 64, .hosts = 64}) == kTree);
  CHECK(ChooseBroadcast({.bytes = kMegabyte, .ranks = 4, .hosts = 4}) == kChain);
  CHECK(ChooseBroadcast({.bytes = kMegabyte, .ranks = 64, .hosts = 64}) == kScatterAllgather);
  CHECK(ChooseBroadcast({.bytes = kMegabyte, .ranks = 1000, .hosts = 1000}) == kTree);
  CHECK(ChooseBroadcast({.bytes = 4, .ranks = 4, .hosts = 2, .ranks_per_host = 2}) == kHierarchical);
}

void Allgathers() {
  using enum AllgatherAlgorithm;
  CHECK(ChooseAllgather({.bytes = 100}) == kAlone);
  CHECK(ChooseAllgather({.bytes = kMegabyte, .ranks = 4, .ranks_per_host = 4, .shared = true}) == kShared);
  CHECK(ChooseAllgather({.bytes = kMegabyte, .ranks = 4, .hosts = 4}) == kExchange);
  CHECK(ChooseAllgather({.bytes = 64 << 10, .ranks = 64, .hosts = 64}) == kBruck);
  CHECK(ChooseAllgather({.bytes = 64 * kMegabyte, .ranks = 64, .hosts = 64}) == kRing);
  Situation several{.bytes = 100, .ranks = 4, .hosts = 2, .ranks_per_host = 2, .hosts_in_rank_order = true};
  CHECK(ChooseAllgather(several) == kHierarchical);
  CHECK(ReducescatterByHosts(several));
  several.dtype = SE_BFLOAT16;
  CHECK(!ReducescatterByHosts(several));
  several.tuning.hierarchical = 0;
  CHECK(ChooseAllgather(several) == kExchange);
  CHECK(!ReducescatterByHosts({.bytes = 100, .ranks = 4, .hosts = 2, .ranks_per_host = 2}));
}

}  // namespace

int main() {
  return testing::RunTests({{"allreduces", Allreduces}, {"broadcasts", Broadcasts}, {"allgathers", Allgathers}});
}
