// Control frames: complete ones arrive however the stream is cut, broken ones close the link before anything is
// allocated.
#include "transport/frame.h"

#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>

#include "base/bytes.h"
#include "check.h"
#include "engine/wire/message.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

struct Pair {
  UniqueFd a;
  UniqueFd b;
  Pair() {
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    a.Reset(fds[0]);
    b.Reset(fds[1]);
  }
};

void WholeFramesArrive() {
  Pair pair;
  ControlLink sender(std::move(pair.a));
  ControlLink receiver(std::move(pair.b));
  std::deque<Frame> inbox;
  const std::string large(3 << 20, 'x');  // more than a socket buffer
  sender.Send(FrameType::kRequests, "one");
  sender.Send(FrameType::kResponses, large);
  sender.Send(FrameType::kGoodbye, "");
  for (int i = 0; i < 10000 && inbox.size() < 3; ++i) {
    sender.Flush();
    receiver.Receive(&inbox);
  }
  CHECK_EQ(inbox.size(), size_t{3});
  CHECK_EQ(inbox[0].payload, std::string("one"));
  CHECK(inbox[1].payload == large);
  CHECK(inbox[2].type == FrameType::kGoodbye);
  sender.FinishSending();
  receiver.Receive(&inbox);
  CHECK(!receiver.open());
}

std::string WireBytes(const std::string& payload) {
  std::string bytes;
  AppendFrame(FrameType::kRequests, payload, &bytes);
  return bytes;
}

void FramesAreTheSameWhateverTheCuts() {
  const std::vector<std::string> payloads = {"one", "", std::string(70000, 'x'), "two", std::string(1, '\0')};
  std::string stream;
  for (const std::string& payload : payloads) stream += WireBytes(payload);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    FrameParser parser;
    std::deque<Frame> inbox;
    for (size_t at = 0; at < stream.size();) {
      const size_t cut = round == 0 ? stream.size() : 1 + random() % (random() % 2 == 0 ? 30 : 20000);
      CHECK(parser.Take(std::string_view(stream).substr(at, cut), &inbox));
      at += cut;
    }
    CHECK_EQ(inbox.size(), payloads.size());
    for (size_t i = 0; i < payloads.size(); ++i) CHECK(inbox[i].payload == payloads[i]);
  }
}

// What stood before the first wrong byte counts, and nothing after it, however well formed.
void NothingCountsAfterARefusal() {
  FrameParser parser;
  std::deque<Frame> inbox;
  std::string wrong = WireBytes("wrong");
  wrong.back() = static_cast<char>(wrong.back() ^ 1);
  CHECK(!parser.Take(WireBytes("good") + wrong + WireBytes("late"), &inbox));
  CHECK_CONTAINS(parser.refusal(), "checksum");
  CHECK(!parser.Take(WireBytes("later"), &inbox));
  CHECK_EQ(inbox.size(), size_t{1});
  CHECK_EQ(inbox[0].payload, std::string("good"));
}

void EveryFlippedBitIsFound() {
  const std::string good = WireBytes("payload");
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    Pair pair;
    ControlLink receiver(std::move(pair.b));
    CHECK_EQ(write(pair.a.get(), bad.data(), bad.size()), static_cast<ssize_t>(bad.size()));
    pair.a.Reset(-1);
    std::deque<Frame> inbox;
    receiver.Receive(&inbox);
    CHECK(inbox.empty());
    CHECK(!receiver.open());
  }
}

void GarbageClosesTheLink() {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Pair pair;
    ControlLink receiver(std::move(pair.b));
    std::string bytes(1 + random() % 4000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    CHECK(write(pair.a.get(), bytes.data(), bytes.size()) > 0);
    pair.a.Reset(-1);
    std::deque<Frame> inbox;
    receiver.Receive(&inbox);
    CHECK(inbox.empty() && !receiver.open());
    if (bytes.size() >= 20) CHECK_CONTAINS(receiver.closed_reason(), "no control frame");  // a header, and no end
  }
}

Requests SomeRequests() {
  Signature signature;
  signature.name = "grad/0";
  signature.op = SE_ALLREDUCE;
  signature.parts = {Part{SE_FLOAT32, {2, 3}}, Part{SE_INT64, {}}};
  signature.prescale = 0.5;
  signature.splits = {1, 2};
  return Requests{4, 17, {signature, signature}};
}

void MessagesSurviveTheWire() {
  const Requests requests = SomeRequests();
  Requests back;
  CHECK(Decode(Encode(requests), &back));
  CHECK_EQ(back.epoch, 4u);
  CHECK_EQ(back.position, 17u);
  CHECK(back.signatures == requests.signatures);
  Response response;
  response.kind = Response::Kind::kFail;
  response.names = {"a", "b"};
  response.text = "why";
  response.rows = {1, 2, 3};
  response.signatures = requests.signatures;
  response.last_joined = 3;
  response.position = 9;
  std::vector<Response> responses;
  CHECK(Decode(Encode(std::vector<Response>{response}), &responses));
  CHECK(responses[0].names == response.names && responses[0].rows == response.rows);
  CHECK(responses[0].signatures == response.signatures);
  CHECK(responses[0].kind == response.kind && responses[0].text == "why");
  CHECK(responses[0].last_joined == 3 && responses[0].position == 9u);
}

// Cut or overlong messages are refused, and a count that promises too much allocates nothing.
void BrokenMessagesAreRefused() {
  const std::string good = Encode(SomeRequests());
  for (size_t length = 0; length < good.size(); ++length) {
    Requests out;
    CHECK(!Decode(std::string_view(good).substr(0, length), &out));
  }
  Requests out;
  CHECK(!Decode(good + "x", &out));
  Requests none;
  CHECK(!Decode(std::string("\0\0\0\0\0\0\0\0\xff\xff\xff\xff", 12), &none));
  CHECK(none.signatures.empty());
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    Requests requests;
    std::vector<Response> responses;
    (void)Decode(bytes, &requests);  // must not crash nor read past the end (the sanitizers watch)
    (void)Decode(bytes, &responses);
  }
}

}  // namespace

int main() {
  return RunTests({{"whole frames arrive", WholeFramesArrive},
                   {"frames are the same whatever the cuts", FramesAreTheSameWhateverTheCuts},
                   {"nothing counts after a refusal", NothingCountsAfterARefusal},
                   {"every flipped bit is found", EveryFlippedBitIsFound},
                   {"garbage closes the link", GarbageClosesTheLink},
                   {"messages survive the wire", MessagesSurviveTheWire},
                   {"broken messages are refused", BrokenMessagesAreRefused}});
}
