// Writes the inputs that fuzzing starts from, one folder a target: real messages, so that they follow every change of
// the format.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "engine/membership/relayed_frame.h"
#include "engine/wire/message.h"
#include "engine/wire/proposal.h"
#include "transport/frame.h"

using namespace spark_estimator;

namespace {

std::filesystem::path folder;
int written = 0;

void Write(const std::string& target, const std::string& bytes) {
  std::filesystem::create_directories(folder / target);
  std::ofstream(folder / target / ("seed" + std::to_string(written++)), std::ios::binary) << bytes;
}

std::string Piece(const std::string& bytes) {
  const auto length = static_cast<uint16_t>(bytes.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + bytes;
}

void WriteFrames(const std::vector<std::string>& payloads) {
  std::string stream;
  std::string frames;
  for (const std::string& payload : payloads) {
    AppendFrame(FrameType::kRequests, payload, &stream);
    frames += std::string(1, static_cast<char>(FrameType::kRequests)) + Piece(payload);
  }
  Write("frame_fuzz", std::string(1, '\0') + Piece(stream));
  const size_t cut = stream.size() / 3;
  Write("frame_fuzz", std::string(1, '\0') + Piece(stream.substr(0, cut)) + Piece(stream.substr(cut)));
  const std::string count(1, static_cast<char>(payloads.size()));
  for (const char damaged : {0, 1}) Write("frame_fuzz", std::string("\1") + damaged + "abcd\x10" + count + frames);
}

Signature Asking(const std::string& name, int32_t op, std::vector<Part> parts) {
  Signature signature;
  signature.name = name;
  signature.op = op;
  signature.reduce_op = SE_SUM;
  signature.parts = std::move(parts);
  return signature;
}

Requests SomeRequests() {
  Requests requests;
  requests.signatures = {Asking("gradients", SE_ALLREDUCE, {{SE_FLOAT32, {3, 4}}, {SE_FLOAT16, {}}}),
                         Asking("loss", SE_ALLREDUCE, {{SE_FLOAT32, {}}}),
                         Asking("rows", SE_ALLGATHER, {{SE_INT64, {2, 5}}}),
                         Asking("weights", SE_BROADCAST, {{SE_UINT8, {7}}}),
                         Asking("shuffle", SE_ALLTOALL, {{SE_FLOAT64, {3}}}),
                         Asking("share", SE_REDUCESCATTER, {{SE_BFLOAT16, {6, 2}}}),
                         Asking("barrier", SE_BARRIER, {}),
                         Asking("join", SE_JOIN, {})};
  return requests;
}

template <typename Message>
void WriteMessage(char kind, const Message& message) {
  Write("message_fuzz", kind + Encode(message));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: seeds FOLDER\n";
    return 2;
  }
  folder = argv[1];
  const Requests requests = SomeRequests();
  WriteFrames({});
  WriteFrames({Encode(requests)});
  WriteFrames({"", "one", std::string(300, 'x')});
  Response run;
  run.names = {"gradients", "loss"};
  run.rows = {1, 2};
  run.signatures = {requests.signatures[0]};
  Response failure;
  failure.kind = Response::Kind::kFail;
  failure.names = {"loss"};
  failure.text = "the ranks disagree";
  Response late = failure;
  late.names = {"kind.1"};
  late.number = 1;
  WriteMessage(0, requests);
  WriteMessage(1, std::vector<Response>{run, failure, late});
  WriteMessage(2, Hello{SE_ABI_VERSION, 0, 2, {0, 1}, {1 << 20, 1024, -1, 2}, "host (pid 7)"});
  WriteMessage(3, Goodbye{3, 1});
  WriteMessage(4, Abort{1, "it died"});
  WriteMessage(5, RoundId{1, 7});
  WriteMessage(6, QuestionMessage{1, "here"});

  // Hellos: the number of ranks, then each rank's; of one host, of two, and some that are refused.
  const auto greet = [](const std::vector<std::vector<int64_t>>& visible) {
    const auto size = static_cast<int32_t>(visible.size());
    std::string hellos(1, static_cast<char>(size - 1));
    for (int32_t rank = 0; rank < size; ++rank) {
      const std::vector<int64_t>& seen = visible[static_cast<size_t>(rank)];
      hellos += Piece(Encode(Hello{SE_ABI_VERSION, rank, size, seen, {1 << 20, 1024, -1, 2}, "host (pid 7)"}));
    }
    Write("hello_fuzz", hellos);
  };
  greet({{}});
  greet({{0, 1}, {0, 1}});
  greet({{0, 1}, {0, 1}, {2, 3}, {2, 3}});
  greet({{0, 2}, {1}, {0, 1, 2}});
  greet({{-1}, {0, std::numeric_limits<int64_t>::max()}, {0, 0, 3}});

  // Coordinator: the number of ranks, a fusion threshold, then (rank, requests, whether to give up late ranks)
  // repeatedly.
  for (const char ranks : {0, 1, 2}) {
    std::string talk = ranks + std::string("\0\0\1\0", 4);
    for (char rank = 0; rank <= ranks; ++rank) talk += rank + Piece(Encode(requests)) + "\1";
    Write("coordinator_fuzz", talk);
    for (const Signature& signature : requests.signatures) {
      std::string alone = ranks + std::string("\0\0\1\0", 4);
      for (char rank = 0; rank <= ranks; ++rank) alone += rank + Piece(Encode(Requests{0, 0, {signature}})) + "\1";
      Write("coordinator_fuzz", alone);
    }
  }
  // Rounds: the number of ranks, a proposal of each, then the fate of each frame.
  for (const char ranks : {0, 1, 3}) {
    for (const char kind : {1, 2, 3, 16, 32}) {
      for (const char harm : {0, 1, 2, 3, 4, 5, 6}) {
        Write("rounds_fuzz", ranks + std::string(static_cast<size_t>(ranks) + 2, kind) + harm + "\3\1\0abcdef");
      }
    }
  }
  // Rounds in shared memory: the number of ranks, a proposal, then the content of each peer's slot and how valid it is.
  for (const int32_t single : {-1, 2, 4, 1 << 30}) {
    for (const char kind : {0, 1, 2, 4, 15}) {
      ProposalHeader header{1, 3, ProposalHeader::kInArena | ProposalHeader::kCarriesData, single, 2, 8, 1 << 20, 3};
      std::string slot(reinterpret_cast<const char*>(&header), sizeof(header));
      slot += std::string(16, '\xff') + std::string("\2\0\0\0\4\0\0\0\5\0\0\0", 12);
      Write("shared_rounds_fuzz", std::string(1, '\0') + kind + (kind % 2 == 1 ? "abcde" : "") + Piece(slot) + '\1');
      Write("shared_rounds_fuzz", std::string(1, '\0') + kind + (kind % 2 == 1 ? "abcde" : "") + Piece(slot) + '\2');
    }
  }

  // Engine: its rank, what it has submitted (bits), then (frame type, payload) again and again.
  const auto say = [](FrameType type, const std::string& payload) {
    return std::string(1, static_cast<char>(type)) + Piece(payload);
  };
  Response both;
  both.names = {"sum"};
  Response rows;
  rows.names = {"rows"};
  rows.rows = {2, 2};
  Response shuffle;
  shuffle.names = {"shuffle"};
  shuffle.rows = {1, 1, 1, 1};
  // Fused, as they may be and as they may not; the last two for a rank that has joined.
  const Signature sum = Asking("sum", SE_ALLREDUCE, {{SE_FLOAT32, {2, 3}}});
  const Signature more = Asking("more", SE_ALLREDUCE, {{SE_FLOAT32, {2, 3}}});
  std::vector<Response> fused(5, both);
  fused[0].names = {"sum", "more"};
  fused[1].names = {"sum", "rows"};
  fused[2].names = {"share", "more"};
  fused[3].names = {"sum", "more"};
  fused[3].signatures = {sum, more};
  fused[4].names = {"sum", "share"};
  fused[4].signatures = {sum, Asking("share", SE_REDUCESCATTER, {{SE_FLOAT32, {2, 3}}})};
  Response resume;
  resume.kind = Response::Kind::kResume;
  resume.position = 3;
  const auto leave = say(FrameType::kEnterFullNegotiation, Encode(RoundId{0, 0}));
  for (const Response& response : fused) {
    for (const char* submitted : {"\xff", "\xc3", "\x08", "\x49"}) {
      Write("engine_fuzz", '\1' + std::string(submitted) + leave +
                               say(FrameType::kResponses, Encode(std::vector<Response>{response, resume})));
    }
  }
  for (const char submitted : {0, 1, 2, 4, 8, 16, 48, 63}) {
    Write("engine_fuzz", std::string(1, '\0') + submitted + say(FrameType::kRequests, Encode(requests)) +
                             say(FrameType::kRoundStalled, Encode(RoundId{0, 0})) +
                             say(FrameType::kAnswer, Encode(QuestionMessage{1, "a"})));
    Write("engine_fuzz",
          '\1' + std::string(1, submitted) +
              say(FrameType::kResponses, Encode(std::vector<Response>{both, rows, shuffle, late, resume})) +
              say(FrameType::kEnterFullNegotiation, Encode(RoundId{0, 1})) +
              say(FrameType::kAsk, Encode(QuestionMessage{1, "q"})));
    Write("engine_fuzz", '\1' + std::string(1, submitted) + say(FrameType::kGoodbye, Encode(Goodbye{1, 0})));
    Write("engine_fuzz", '\0' + std::string(1, submitted) + say(FrameType::kRound, std::string(13, '\0')) +
                             say(FrameType::kAbort, Encode(Abort{1, "it died"})));
  }
  // The same with an overlay: messages that were passed on, to one rank, to all and as a flood.
  for (const int32_t destination : {RelayedFrame::kFlood, RelayedFrame::kToAll, 0, 1}) {
    for (const char own_rank : {0, 1}) {
      const auto relay = [&](FrameType type, const std::string& payload) {
        return say(FrameType::kRelayed, Encode(RelayedFrame{1 - own_rank, destination, 1, type, payload}));
      };
      Write("engine_fuzz", std::string(1, static_cast<char>(2 + own_rank)) + '\xff' +
                               relay(FrameType::kRequests, Encode(requests)) +
                               relay(FrameType::kResponses, Encode(std::vector<Response>{both, resume})) +
                               relay(FrameType::kGoodbye, Encode(Goodbye{1, 0})) +
                               relay(FrameType::kAbort, Encode(Abort{1, "it died"})));
    }
  }
  // Relays: size, rank, then (neighbour, whether it is wrapped, source, destination, number, type, payload) repeatedly.
  for (const char size : {0, 1, 7, 15, 30}) {
    for (const char rank : {0, 1}) {
      for (const char destination : {0, 1, 2, 3, 4, 11}) {
        std::string frames{size, rank};
        for (const char neighbour : {0, 1, 2}) {
          for (const char source : {0, 1, 5}) {
            frames +=
                std::string{neighbour, 1, source, destination, 1, static_cast<char>(FrameType::kNotice)} + Piece("x");
          }
        }
        frames += std::string{0, 0, 0, 0, 0, static_cast<char>(FrameType::kRelayed)};
        Write("relay_fuzz", frames + Piece(Encode(RelayedFrame{1, RelayedFrame::kToAll, 0, FrameType::kNotice, "x"})));
      }
    }
  }
  return 0;
}
