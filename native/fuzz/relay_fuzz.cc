// Fuzzes how a rank of a large group passes frames on: neighbours send it any frames in any order, and no frame is made
// up, sent back or delivered in a wrong name.
#include <sys/socket.h>

#include <map>
#include <vector>

#include "base/unique_fd.h"
#include "engine/membership/overlay.h"
#include "engine/membership/peer_links.h"
#include "engine/membership/relayed_frame.h"
#include "input.h"
#include "transport/frame.h"

using namespace spark_estimator;

namespace {

// A neighbour's end of its connection to the rank under test.
struct Neighbour {
  explicit Neighbour(UniqueFd end) : link(std::move(end)) {}

  ControlLink link;
  std::deque<Frame> inbox;
};

// The rank under test, and the ends of all its connections.
class Place {
 public:
  Place(int rank, int size) : links(rank, size, true) {
    fuzz::Require(links.Open().ok(), "a descriptor to wait on");
    for (const int peer : overlay::Neighbours(rank, size)) {
      int ends[2];
      fuzz::Require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
      links.Connect(peer, UniqueFd(ends[0]));
      neighbours.emplace(peer, UniqueFd(ends[1]));
      ranks.push_back(peer);
    }
  }
  // The frames that the rank under test has passed on since the last call, by neighbour.
  std::map<int, std::deque<Frame>> PassedOn() {
    std::map<int, std::deque<Frame>> passed;
    links.Flush();
    for (auto& [peer, neighbour] : neighbours) {
      std::deque<Frame> frames;
      neighbour.link.Receive(&frames);
      if (!frames.empty()) passed.emplace(peer, std::move(frames));
    }
    return passed;
  }

  PeerLinks links;
  std::map<int, Neighbour> neighbours;
  std::vector<int> ranks;
};

RelayedFrame HeaderOf(fuzz::Input* input, int size) {
  RelayedFrame frame;
  // Mostly a rank of the group, or one of the special destinations.
  frame.source = static_cast<int32_t>(input->Byte() % (size + 1));
  frame.destination = static_cast<int32_t>(input->Byte() % (size + 4)) - 3;
  frame.number = input->Byte() % 4;
  frame.type = static_cast<FrameType>(input->Byte() % 16);
  return frame;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length) {
  fuzz::Input input(data, length);
  const int size = 2 + input.Byte() % 40;
  const int rank = input.Byte() % size;
  Place place(rank, size);
  std::map<int, uint32_t> floods;  // the last one delivered, by source
  for (int turn = 0; turn < 64 && !input.empty(); ++turn) {
    const int from = place.ranks[input.Byte() % place.ranks.size()];
    ControlLink& link = place.neighbours.at(from).link;
    const bool was_open = place.links.is_open(from);
    const uint8_t kind = input.Byte() % 4;
    RelayedFrame sent = HeaderOf(&input, size);
    const std::string payload(input.Piece());
    if (payload.size() > 4096) return 0;
    sent.payload = payload;
    bool valid = true;
    if (kind == 0) {
      link.Send(sent.type, payload);  // any type, so also a frame to pass on with any header
    } else {
      const std::string bytes = Encode(sent);
      link.Send(FrameType::kRelayed, bytes);
      RelayedFrame decoded;
      valid = Decode(bytes, size, &decoded) && (sent.source != rank || sent.destination == RelayedFrame::kFlood);
    }
    link.Flush();
    const std::span<const int> received = place.links.Receive(from);
    const bool is_relayed = kind != 0 || sent.type == FrameType::kRelayed;
    if (kind != 0)
      fuzz::Require(place.links.is_open(from) == (was_open && valid), "an invalid frame ends its connection");

    // At most one delivery, of what was sent, in the name of its source.
    fuzz::Require(received.size() <= 1, "one frame has at most one source");
    for (const int source : received) {
      fuzz::Require(was_open, "nothing arrives over a closed connection");
      fuzz::Require(is_relayed || source == from, "a frame that is not passed on is its sender's");
      fuzz::Require(source >= 0 && source < size && source != rank, "a source is another rank");
      std::deque<Frame>& inbox = place.links.inbox(source);
      fuzz::Require(inbox.size() == 1 && inbox[0].type != FrameType::kRelayed, "one frame is delivered unwrapped");
      if (kind != 0) {
        fuzz::Require(source == sent.source && inbox[0].type == sent.type && inbox[0].payload == payload,
                      "a frame is delivered as it was sent");
        fuzz::Require(sent.destination < 0 || sent.destination == rank, "a frame for others is not delivered");
      }
      if (kind != 0 && sent.destination == RelayedFrame::kFlood) {
        fuzz::Require(sent.number > floods[source], "a flood is delivered once");
        floods[source] = sent.number;
      }
      inbox.clear();
    }

    // What is passed on is the same frame, once a neighbour, and nearer to where it goes.
    for (const auto& [peer, frames] : place.PassedOn()) {
      fuzz::Require(is_relayed, "a frame without a destination is not passed on");
      fuzz::Require(frames.size() == 1 && frames[0].type == FrameType::kRelayed, "a frame is passed on once");
      RelayedFrame passed;
      fuzz::Require(Decode(frames[0].payload, size, &passed), "what is passed on is valid");
      fuzz::Require(passed.source != rank, "nothing is sent in the own name");
      if (kind != 0) fuzz::Require(frames[0].payload == Encode(sent), "a frame is passed on unchanged");
      if (passed.destination == RelayedFrame::kFlood) {
        fuzz::Require(peer != from && peer != passed.source, "a flood does not go back");
      } else if (passed.destination == RelayedFrame::kToAll) {
        fuzz::Require(overlay::Distance(passed.source, peer, size) > overlay::Distance(passed.source, rank, size),
                      "a frame to all goes away from its source");
      } else {
        fuzz::Require(
            overlay::Distance(peer, passed.destination, size) < overlay::Distance(rank, passed.destination, size),
            "a frame comes nearer to its destination");
      }
    }
  }
  return 0;
}
