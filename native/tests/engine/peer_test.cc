// An engine's reaction to a peer that sends nothing, or data that no correct peer sends: an error that names it, soon.
#include <chrono>
#include <functional>
#include <thread>

#include "check.h"
#include "scripted_peer.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

// An allreduce, or another op, of two rows of three floats that the engine is asked for.
class Asking {
 public:
  Asking(ScriptedPeer& peer, const char* name, int32_t op) : engine_(peer.engine) {
    const bool makes_memory = op == SE_ALLGATHER || op == SE_ALLTOALL;
    const se_tensor tensor{values_, makes_memory ? nullptr : sums_, 0, SE_FLOAT32, 2, dims_, nullptr};
    se_request request{};
    request.struct_bytes = sizeof(request);
    request.name = name;
    request.op = op;
    request.reduce_op = SE_SUM;
    request.num_tensors = 1;
    request.tensors = &tensor;
    request.prescale = request.postscale = 1;
    submitted_ = se_submit(engine_, &request, &handle_);
  }
  // The error that it ends in: at once when the peer was found to be lost before.
  std::string Error(se_status status = SE_PEER_LOST) {
    CHECK_EQ(submitted_ == SE_OK ? se_wait(engine_, handle_, 60) : submitted_, static_cast<int32_t>(status));
    return se_last_error();
  }

 private:
  se_engine* engine_;
  int32_t submitted_;
  int64_t handle_ = 0;
  float values_[6] = {};
  float sums_[6] = {};
  int64_t dims_[2] = {2, 3};
};

Signature Wanted(const std::string& name, int32_t op) {
  Signature signature;
  signature.name = name;
  signature.op = op;
  signature.reduce_op = SE_SUM;
  signature.parts = {Part{SE_FLOAT32, {2, 3}}};
  return signature;
}

Response Run(const std::string& name, std::vector<int64_t> rows = {}) {
  Response response;
  response.names = {name};
  response.rows = std::move(rows);
  return response;
}

std::string Responses(const Response& response) { return Encode(std::vector<Response>{response}); }

void ASilentPeerIsLost() {
  for (const int own_rank : {0, 1}) {
    ScriptedPeer peer(own_rank, 0.02, 0.3);
    Asking asking(peer, "sum", SE_ALLREDUCE);
    const std::string error = asking.Error();
    CHECK_CONTAINS(error, "rank " + std::to_string(1 - own_rank) + " on there is lost");
    CHECK_CONTAINS(error, "no heartbeat for 0.");
    CHECK_CONTAINS(error, "'sum'");
  }
}

void ASilentPeerIsLostWhileNothingIsAsked() {
  ScriptedPeer peer(0, 0.02, 0.3);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  peer.Say(FrameType::kHeartbeat, "");
  Asking asking(peer, "sum", SE_ALLREDUCE);
  CHECK_CONTAINS(asking.Error(), "no heartbeat");
}

void APeerThatGivesSignsOfLifeIsWaitedFor() {
  ScriptedPeer peer(0, 0.02, 1.0);
  Asking asking(peer, "sum", SE_ALLREDUCE);
  for (int i = 0; i < 100; ++i) {
    peer.Say(FrameType::kHeartbeat, "");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  peer.Say(FrameType::kAbort, Encode(Abort{1, "enough"}));
  CHECK_CONTAINS(asking.Error(), "enough");
}

// A frame that cannot be read, or not from this rank, ends the group, and the sender is named.
void NonsenseNamesItsSender() {
  const std::string nonsense = "?";
  const auto says = [&](int own_rank, FrameType type, const std::string& payload, const std::string& expected) {
    ScriptedPeer peer(own_rank);
    Asking asking(peer, "sum", SE_ALLREDUCE);
    peer.Say(type, payload);
    const std::string error = asking.Error();
    CHECK_CONTAINS(error, "rank " + std::to_string(1 - own_rank) + " on there sent");
    CHECK_CONTAINS(error, expected);
  };
  for (const FrameType type : {FrameType::kRequests, FrameType::kRound, FrameType::kRoundStalled, FrameType::kWakePeer,
                               FrameType::kGoodbye, FrameType::kAbort, FrameType::kAnswer}) {
    says(0, type, nonsense, "cannot be read");
  }
  for (const FrameType type : {FrameType::kResponses, FrameType::kEnterFullNegotiation, FrameType::kAsk}) {
    says(1, type, nonsense, "cannot be read");
  }
  says(0, static_cast<FrameType>(999), "", "type 999");
  // The coordinator is rank 0: only that is asked, and only that answers.
  says(0, FrameType::kResponses, Responses(Run("sum")), "cannot be read");
  says(0, FrameType::kEnterFullNegotiation, Encode(RoundId{}), "cannot be read");
  says(0, FrameType::kAsk, Encode(QuestionMessage{}), "cannot be read");
  says(1, FrameType::kRequests, Encode(Requests{}), "cannot be read");
  says(1, FrameType::kRoundStalled, Encode(RoundId{}), "cannot be read");
  says(1, FrameType::kAnswer, Encode(QuestionMessage{}), "cannot be read");
  says(0, FrameType::kGoodbye, Encode(Goodbye{0, 2}), "cannot be read");
  // What can be read, and cannot be true.
  Signature impossible = Wanted("sum", SE_ALLREDUCE);
  impossible.parts[0].dims = {-1};
  says(0, FrameType::kRequests, Encode(Requests{0, 0, {impossible}}), "cannot be read");
  says(1, FrameType::kResponses, Responses(Run("")).substr(0, 9), "cannot be read");
}

void ResponsesMustFitWhatWasAsked() {
  const auto answered = [](int32_t op, const Response& response) {
    ScriptedPeer peer(1);
    Asking asking(peer, "it", op);
    // Rank 0 continues by full requests, and answers with the following.
    peer.Say(FrameType::kEnterFullNegotiation, Encode(RoundId{0, 0}));
    peer.Say(FrameType::kResponses, Responses(response));
    int32_t status = se_wait(peer.engine, 1, 60);
    CHECK(status == SE_PEER_LOST || status == SE_INTERNAL);
    return std::string(se_last_error());
  };
  CHECK_CONTAINS(answered(SE_ALLGATHER, Run("it", {2, 3})), "rows that cannot be");
  CHECK_CONTAINS(answered(SE_ALLGATHER, Run("it")), "rows that cannot be");
  CHECK_CONTAINS(answered(SE_ALLTOALL, Run("it", {1, 1, 9, 9})), "rows that cannot be");
  CHECK_CONTAINS(answered(SE_ALLREDUCE, Run("it", {1, 1})), "rows that cannot be");
  CHECK_CONTAINS(answered(SE_ALLREDUCE, Run("another")), "'another', which this rank never submitted");
  // What was taken up beside it is not forgotten.
  Response both = Run("it");
  both.names.push_back("another");
  CHECK_CONTAINS(answered(SE_ALLREDUCE, both), "'another', which this rank never submitted");
}

// Each of these is requested, and none of them has the memory that the others' algorithm requires.
void OnlyAlikeAllreducesAreFused() {
  const auto answered = [](const char* first, const char* second, std::vector<int64_t> rows = {}) {
    ScriptedPeer peer(1);
    Asking sum(peer, "sum", SE_ALLREDUCE);
    Asking gathered(peer, "rows", SE_ALLGATHER);
    Asking shuffled(peer, "shuffle", SE_ALLTOALL);
    Asking share(peer, "share", SE_REDUCESCATTER);
    peer.Say(FrameType::kEnterFullNegotiation, Encode(RoundId{0, 0}));
    Response response = Run(first, std::move(rows));
    response.names.push_back(second);
    peer.Say(FrameType::kResponses, Responses(response));
    peer.SayOnDataLink(std::string(4096, '\0'));
    return sum.Error();
  };
  for (const char* other : {"rows", "shuffle", "share"}) {
    CHECK_CONTAINS(answered("sum", other), "rank 0 on there sent a response that makes one operation of allreduce");
    CHECK_CONTAINS(answered(other, "sum"), "cannot be fused");
  }
  CHECK_CONTAINS(answered("rows", "shuffle", {2, 2}), "cannot be fused");
}

void APeerThatHangsUpIsLost() {
  ScriptedPeer peer(0);
  Asking asking(peer, "sum", SE_ALLREDUCE);
  peer.HangUp();
  CHECK_CONTAINS(asking.Error(), "its process died");
}

void APeerThatLeavesIsNotLost() {
  ScriptedPeer peer(0, 0.02, 0.2);
  peer.Say(FrameType::kGoodbye, Encode(Goodbye{0, 1}));
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // silent since, as those are who have left
  Asking asking(peer, "sum", SE_ALLREDUCE);
  CHECK_CONTAINS(asking.Error(SE_SHUT_DOWN), "has left the job");
}

}  // namespace

int main() {
  return RunTests({{"a silent peer is lost", ASilentPeerIsLost},
                   {"a silent peer is lost while nothing is asked", ASilentPeerIsLostWhileNothingIsAsked},
                   {"a peer that gives signs of life is waited for", APeerThatGivesSignsOfLifeIsWaitedFor},
                   {"nonsense names its sender", NonsenseNamesItsSender},
                   {"responses must fit what was asked", ResponsesMustFitWhatWasAsked},
                   {"only alike allreduces are fused", OnlyAlikeAllreducesAreFused},
                   {"a peer that hangs up is lost", APeerThatHangsUpIsLost},
                   {"a peer that leaves is not lost", APeerThatLeavesIsNotLost}});
}
