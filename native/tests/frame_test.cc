// Control frames: whole ones arrive whatever the cuts, broken ones close the link before anything is allocated.
#include "transport/frame.h"

#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>

#include "base/bytes.h"
#include "check.h"
#include "engine/message.h"

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

// The bytes of one frame, as they would be on the wire.
std::string WireBytes(const std::string& payload) {
  Pair pair;
  ControlLink sender(std::move(pair.a));
  sender.Send(FrameType::kRequests, payload);
  std::string bytes(4096, '\0');
  const ssize_t n = read(pair.b.get(), bytes.data(), bytes.size());
  bytes.resize(static_cast<size_t>(n));
  return bytes;
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
  }
}

void MessagesSurviveTheWire() {
  Signature signature;
  signature.name = "grad/0";
  signature.op = SE_ALLREDUCE;
  signature.dims = {2, 3};
  signature.num_buffers = 1;
  signature.prescale = 0.5;
  std::vector<Signature> back;
  CHECK(Decode(Encode(std::vector<Signature>{signature, signature}), &back));
  CHECK_EQ(back.size(), size_t{2});
  CHECK_EQ(back[1].name, signature.name);
  CHECK(back[1].dims == signature.dims);
  Response response;
  response.sequence = 9;
  response.names = {"a", "b"};
  response.error = "why";
  response.rows = {1, 2, 3};
  std::vector<Response> responses;
  CHECK(Decode(Encode(std::vector<Response>{response}), &responses));
  CHECK(responses[0].names == response.names && responses[0].rows == response.rows);
}

// Cut or overlong messages are refused, and a count that promises too much allocates nothing.
void BrokenMessagesAreRefused() {
  Signature signature;
  signature.name = "grad";
  signature.dims = {4};
  const std::string good = Encode(std::vector<Signature>{signature});
  for (size_t length = 0; length < good.size(); ++length) {
    std::vector<Signature> out;
    CHECK(!Decode(std::string_view(good).substr(0, length), &out));
  }
  std::vector<Signature> out;
  CHECK(!Decode(good + "x", &out));
  out.clear();
  CHECK(!Decode(std::string("\xff\xff\xff\xff", 4), &out));
  CHECK(out.empty());
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    std::vector<Signature> requests;
    std::vector<Response> responses;
    (void)Decode(bytes, &requests);  // must not crash nor read past the end (the sanitizers watch)
    (void)Decode(bytes, &responses);
  }
}

}  // namespace

int main() {
  return RunTests({{"whole frames arrive", WholeFramesArrive},
                   {"every flipped bit is found", EveryFlippedBitIsFound},
                   {"garbage closes the link", GarbageClosesTheLink},
                   {"messages survive the wire", MessagesSurviveTheWire},
                   {"broken messages are refused", BrokenMessagesAreRefused}});
}
