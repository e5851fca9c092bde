// Fuzzes the parser of control frames: no bytes may break it, and valid frames are found however the stream is cut.
#include "input.h"
#include "transport/frame.h"

using namespace spark_estimator;

namespace {

// Any bytes at all, in pieces: nothing is made of them that did not arrive, and a refusal is final.
void TakeStrangeBytes(fuzz::Input* input) {
  FrameParser parser;
  std::deque<Frame> inbox;
  size_t arrived = 0;
  bool refused = false;
  while (!input->empty()) {
    const std::string_view piece = input->Piece();
    arrived += piece.size();
    const bool taken = parser.Take(piece, &inbox);
    fuzz::Require(!(refused && taken), "a refused stream was taken up again");
    refused = !taken;
    fuzz::Require(refused == !parser.refusal().empty(), "a refusal has a reason");
  }
  size_t made = 0;
  for (const Frame& frame : inbox) made += frame.payload.size();
  fuzz::Require(made <= arrived, "payloads are made of what has arrived");
}

// Frames of any content, in pieces: all are returned unchanged. One wrong byte may hide the rest, but changes nothing.
void TakeFrames(fuzz::Input* input) {
  std::deque<Frame> sent;
  std::string stream;
  const bool damaged = input->Byte() % 2 == 0;
  const uint32_t where = input->Number();
  const uint8_t flip = input->Byte();
  for (int count = input->Byte() % 8; count > 0; --count) {
    sent.push_back({static_cast<FrameType>(input->Byte()), std::string(input->Piece())});
    AppendFrame(sent.back().type, sent.back().payload, &stream);
  }
  const bool changed = damaged && flip != 0 && !stream.empty();
  if (changed) stream[where % stream.size()] = static_cast<char>(stream[where % stream.size()] ^ flip);

  FrameParser parser;
  std::deque<Frame> inbox;
  for (std::string_view rest = stream; !rest.empty();) {
    const size_t cut = std::min<size_t>(rest.size(), input->empty() ? rest.size() : 1 + input->Byte());
    parser.Take(rest.substr(0, cut), &inbox);
    rest.remove_prefix(cut);
  }
  fuzz::Require(changed ? inbox.size() < sent.size() : inbox.size() == sent.size(), "as many frames as were whole");
  for (size_t i = 0; i < inbox.size(); ++i) {
    fuzz::Require(inbox[i].type == sent[i].type && inbox[i].payload == sent[i].payload, "a frame is what was sent");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  if (input.Byte() % 2 == 0) {
    TakeStrangeBytes(&input);
  } else {
    TakeFrames(&input);
  }
  return 0;
}
