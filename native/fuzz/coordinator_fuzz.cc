// Fuzzes the negotiation with requests that no honest rank would send: rank 0 survives them, and what it answers fits.
#include "engine/negotiation/coordinator.h"
#include "engine/wire/validity.h"
#include "input.h"

using namespace spark_estimator;

namespace {

void Check(const Response& response, int size) {
  const std::string bytes = Encode(std::vector<Response>{response});
  std::vector<Response> again;
  fuzz::Require(Decode(bytes, &again) && IsPossible(again[0], size), "a response is taken by whom it is for");
  if (response.kind != Response::Kind::kRun) return;
  fuzz::Require(!response.names.empty(), "a response to run has a name");
  fuzz::Require(response.rows.size() % static_cast<size_t>(size) == 0, "rows are as many as ranks");
  for (const int64_t rows : response.rows) fuzz::Require(rows >= 0, "no tensor has fewer than no rows");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length) {
  fuzz::Input input(data, length);
  const int size = 1 + input.Byte() % 4;
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank * 3);
  Coordinator coordinator(ranks, input.Number());
  Time now{};
  while (!input.empty()) {
    const int rank = input.Byte() % size;
    Requests requests;
    if (!Decode(input.Piece(), &requests)) continue;
    for (Signature& request : requests.signatures) {
      if (IsPossible(request, size)) coordinator.Add(rank, std::move(request), now);
    }
    now += std::chrono::seconds(1);
    if (rank == 0) (void)coordinator.TakeStalled(2, now);
    if (input.Byte() % 8 == 0) coordinator.FailStalled(3, now);
    for (const Response& response : coordinator.TakeReady()) Check(response, size);
  }
  return 0;
}
