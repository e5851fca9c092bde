// Fuzzes a whole engine of two with a peer that sends a valid hello and then any bytes: the engine ends with an error,
// never by a crash and never by waiting for ever.
#include <algorithm>
#include <iterator>
#include <thread>
#include <vector>

#include "engine/membership/relayed_frame.h"
#include "engine/wire/message.h"
#include "engine/wire/validity.h"
#include "input.h"
#include "scripted_peer.h"
#include "spark_estimator/engine.h"
#include "transport/frame.h"

using namespace spark_estimator;
using spark_estimator::testing::ScriptedPeer;

namespace {

// An engine would allocate all available memory for these, which the fuzzer does not have.
bool TakesMuchMemory(const Response& response) {
  return std::ranges::any_of(response.rows, [](int64_t rows) { return rows > 1 << 22 && rows < int64_t{1} << 50; }) ||
         std::ranges::any_of(response.signatures, [](const Signature& signature) {
           return IsPossible(signature, 2) && signature.Bytes() > 1 << 24;
         });
}

// Notices are for the log, and are not parsed. A goodbye that claims more operations than were done is accepted: a
// peer's operations may still be in flight, however slowly.
std::string FrameOf(FrameType type, std::string_view payload, bool overlay) {
  std::string bytes;
  RelayedFrame relayed;
  if (type == FrameType::kRelayed && overlay && Decode(payload, 2, &relayed)) {
    FrameParser parser;
    std::deque<Frame> inner;
    parser.Take(FrameOf(relayed.type, relayed.payload, overlay), &inner);
    if (inner.empty()) return bytes;
    relayed.payload = inner[0].payload;
    AppendFrame(type, Encode(relayed), &bytes);
    return bytes;
  }
  Goodbye goodbye;
  std::vector<Response> responses;
  if (type == FrameType::kResponses && Decode(payload, &responses) && std::ranges::any_of(responses, TakesMuchMemory)) {
    return bytes;
  }
  if (type == FrameType::kGoodbye && Decode(payload, &goodbye)) {
    goodbye.executed = 0;
    AppendFrame(type, Encode(goodbye), &bytes);
  } else if (type != FrameType::kNotice) {
    AppendFrame(type, payload, &bytes);
  }
  return bytes;
}

se_request RequestOf(const char* name, int32_t op, const se_tensor* tensors, int32_t count) {
  se_request request{};
  request.struct_bytes = sizeof(request);
  request.name = name;
  request.op = op;
  request.reduce_op = SE_SUM;
  request.num_tensors = count;
  request.tensors = tensors;
  request.prescale = request.postscale = 1;
  return request;
}

}  // namespace

// A size that no machine has is refused, as without the sanitizer.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length) {
  fuzz::Input input(data, length);
  const uint8_t group = input.Byte();
  const int own_rank = group % 2;
  const bool overlay = group / 2 % 2 == 1;
  ScriptedPeer peer(own_rank, 0, 0, overlay);
  se_engine* engine = peer.engine;
  float values[6] = {1, 2, 3, 4, 5, 6};
  float sums[6];
  const int64_t dims[2] = {2, 3};
  const se_tensor reduced{values, sums, 0, SE_FLOAT32, 2, dims, nullptr};
  const se_tensor gathered{values, nullptr, 0, SE_FLOAT32, 2, dims, nullptr};
  se_request unnamed = RequestOf("kind", SE_ALLREDUCE, &reduced, 1);
  unnamed.unnamed = 1;
  const se_request requests[] = {RequestOf("sum", SE_ALLREDUCE, &reduced, 1),
                                 RequestOf("rows", SE_ALLGATHER, &gathered, 1),
                                 RequestOf("shuffle", SE_ALLTOALL, &gathered, 1),
                                 RequestOf("join", SE_JOIN, nullptr, 0),
                                 unnamed,
                                 unnamed,
                                 RequestOf("more", SE_ALLREDUCE, &reduced, 1),
                                 RequestOf("share", SE_REDUCESCATTER, &reduced, 1)};
  constexpr size_t kRequests = std::size(requests);
  int64_t handles[kRequests] = {};
  const uint8_t submitted = input.Byte();
  for (size_t i = 0; i < kRequests; ++i) {
    if ((submitted >> i) % 2 == 0) continue;
    if (se_submit(engine, &requests[i], &handles[i]) != SE_OK) handles[i] = 0;
  }
  while (!input.empty()) {
    const uint8_t kind = input.Byte();
    const std::string_view payload = input.Piece();
    const std::string bytes = FrameOf(static_cast<FrameType>(kind % 16), payload, overlay);
    if (kind >= 128) peer.SayOnDataLink(std::string(payload));
    peer.SayBytes(bytes);
    if (kind % 4 == 3) std::this_thread::yield();
  }
  peer.HangUp();
  for (size_t i = 0; i < kRequests; ++i) {
    if (handles[i] > 0) fuzz::Require(se_wait(engine, handles[i], 15) != SE_IN_PROGRESS, "an end of every request");
  }
  return 0;
}
