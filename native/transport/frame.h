// Control messages between two ranks: typed, length-prefixed, checksummed frames over a stream socket, without
// blocking.
#ifndef SPARK_ESTIMATOR_TRANSPORT_FRAME_H_
#define SPARK_ESTIMATOR_TRANSPORT_FRAME_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace spark_estimator {

enum class FrameType : uint16_t {
  kHello = 1,      // who I am and how I am configured
  kRequests = 2,   // to the coordinator: collectives that this rank has submitted
  kResponses = 3,  // from the coordinator: what all ranks run next, in this order
  kGoodbye = 4,    // I leave in good order, having finished so many responses
  kAbort = 5,      // the job is broken, and who broke it
  kNotice = 6,     // a sentence for the log
};

struct Frame {
  FrameType type;
  std::string payload;
};

// Larger than any honest message; a longer one is refused before a byte of it is stored.
constexpr uint32_t kMaxFrameBytes = 64u << 20;

// One control connection. Not thread-safe.
class ControlLink {
 public:
  explicit ControlLink(UniqueFd fd);

  int fd() const { return fd_.get(); }
  // Open until the peer's end of file, or an error, was read.
  bool open() const { return open_; }
  // Why it is not open; "closed its connection" for a plain end of file.
  const std::string& closed_reason() const { return closed_reason_; }
  bool has_unsent() const { return !unsent_.empty(); }
  int64_t bytes_sent() const { return bytes_sent_; }

  // Queues a frame and sends what the socket takes now.
  void Send(FrameType type, std::string_view payload);
  // Sends more of what is queued.
  void Flush();
  // Reads all that has arrived and appends whole frames to `inbox`. What cannot be a frame closes the link.
  void Receive(std::deque<Frame>* inbox);
  // No more sending; the peer will read an end of file after what was sent.
  void FinishSending();

 private:
  void Close(std::string reason);
  void ParseFrames(std::deque<Frame>* inbox);

  UniqueFd fd_;
  bool open_ = true;
  std::string closed_reason_;
  std::string unsent_;
  std::string received_;
  int64_t bytes_sent_ = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_FRAME_H_
