// Control messages between two ranks: typed, length-prefixed, checksummed frames over a stream socket, without
// blocking.
#ifndef SPARK_ESTIMATOR_TRANSPORT_FRAME_H_
#define SPARK_ESTIMATOR_TRANSPORT_FRAME_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "transport/stream_socket.h"

namespace spark_estimator {

enum class FrameType : uint16_t {
  kHello = 1,                 // who I am and how I am configured
  kRequests = 2,              // to the coordinator: collectives that this rank waits for
  kResponses = 3,             // from the coordinator: what all ranks do next, in this order
  kGoodbye = 4,               // I leave in good order, having finished this number of responses
  kAbort = 5,                 // the job is broken, and who broke it
  kNotice = 6,                // a sentence for the log
  kRound = 7,                 // a proposal, or several joined
  kRoundStalled = 8,          // to the coordinator: I have waited long in this round for ranks that have not posted
  kEnterFullNegotiation = 9,  // from the coordinator: ranks that have not posted in this round: leave the rounds here
  kWakePeer = 10,             // I wait for you in this round
  kHeartbeat = 11,            // I am alive
  kAsk = 12,                  // from the coordinator: what are you doing?
  kAnswer = 13,               // to the coordinator
  kRelayed = 14,              // a frame for other ranks, to be passed on
};

struct Frame {
  FrameType type;
  std::string payload;
};

// Larger than any honest message; a longer one is refused before a byte of it is stored.
constexpr uint32_t kMaxFrameBytes = 64u << 20;

// The bytes of one frame on the wire, appended to `bytes`. The payload holds at most kMaxFrameBytes.
void AppendFrame(FrameType type, std::string_view payload, std::string* bytes);

// Frames from a stream of bytes, however it is cut. It trusts nothing: bytes that are not a frame, or fail its
// checksum, are refused, and memory is never allocated for more than has arrived.
class FrameParser {
 public:
  // Reads the next bytes of the stream and appends complete frames to `inbox`. False from the first invalid byte on:
  // refusal() has the reason, and later bytes are ignored.
  bool Take(std::string_view bytes, std::deque<Frame>* inbox);
  // What the peer did; "" while it behaved.
  const std::string& refusal() const { return refusal_; }

 private:
  // Appends the frame that `bytes` begin with and gives its length; 0 when there is none (yet).
  size_t TakeOne(std::string_view bytes, std::deque<Frame>* inbox);

  std::string partial_;  // the beginning of a frame
  std::string refusal_;
};

// One control connection. Not thread-safe.
class ControlLink {
 public:
  explicit ControlLink(StreamSocket socket);

  int fd() const { return socket_.fd(); }
  // Open until the peer's end of file, or an error, was read.
  bool open() const { return open_; }
  // Why it is not open; "closed its connection" for a plain end of file.
  const std::string& closed_reason() const { return closed_reason_; }
  bool has_unsent() const { return !unsent_.empty(); }
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }

  // Queues a frame and sends what the socket takes now.
  void Send(FrameType type, std::string_view payload);
  // Sends more of what is queued.
  void Flush();
  // Reads all that has arrived and appends whole frames to `inbox`. What cannot be a frame closes the link.
  void Receive(std::deque<Frame>* inbox);
  // Closes the link, as the peer has sent what no rank sends.
  void Refuse(std::string reason) { Close(std::move(reason)); }
  // No more sending; the peer will read an end of file after what was sent.
  void FinishSending();

 private:
  void Close(std::string reason);

  StreamSocket socket_;
  bool open_ = true;
  std::string closed_reason_;
  std::string unsent_;
  FrameParser parser_;
  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_FRAME_H_
