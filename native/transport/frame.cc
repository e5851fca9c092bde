#include "transport/frame.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace spark_estimator {
namespace {

struct FrameHeader {
  uint32_t magic;
  uint16_t type;
  uint16_t reserved;
  uint32_t payload_bytes;
  uint32_t payload_crc;
  uint32_t header_crc;  // of the fields above
};
constexpr uint32_t kMagic = 0x46725345;  // "ESrF"
constexpr size_t kUnsentReserve = 1024;
constexpr size_t kHeaderBytes = sizeof(FrameHeader);

uint32_t HeaderCrc(const FrameHeader& header) {
  return Crc32c(std::string_view(reinterpret_cast<const char*>(&header), offsetof(FrameHeader, header_crc)));
}

}  // namespace

void AppendFrame(FrameType type, std::string_view payload, std::string* bytes) {
  FrameHeader header{kMagic, static_cast<uint16_t>(type), 0, static_cast<uint32_t>(payload.size()), Crc32c(payload), 0};
  header.header_crc = HeaderCrc(header);
  bytes->reserve(bytes->size() + kHeaderBytes + payload.size());  // whole, or not at all when there is no memory
  bytes->append(reinterpret_cast<const char*>(&header), kHeaderBytes);
  bytes->append(payload);
}

bool FrameParser::Take(std::string_view bytes, std::deque<Frame>* inbox) {
  if (!refusal_.empty()) return false;
  // Most frames arrive whole: they are read where they are.
  const bool resumed = !partial_.empty();
  if (resumed) {
    partial_.append(bytes);
    bytes = partial_;
  }
  size_t taken = 0;
  while (const size_t length = TakeOne(bytes.substr(taken), inbox)) taken += length;
  if (resumed) {
    partial_.erase(0, taken);
  } else {
    partial_.assign(bytes.substr(taken));
  }
  return refusal_.empty();
}

size_t FrameParser::TakeOne(std::string_view bytes, std::deque<Frame>* inbox) {
  if (bytes.size() < kHeaderBytes) return 0;
  FrameHeader header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  if (header.magic != kMagic || header.header_crc != HeaderCrc(header) || header.payload_bytes > kMaxFrameBytes) {
    refusal_ = "it sent bytes that are no control frame";
    return 0;
  }
  bytes.remove_prefix(kHeaderBytes);
  if (bytes.size() < header.payload_bytes) return 0;
  const std::string_view payload = bytes.substr(0, header.payload_bytes);
  if (Crc32c(payload) != header.payload_crc) {
    refusal_ = "it sent a control frame with a wrong checksum";
    return 0;
  }
  inbox->push_back(Frame{static_cast<FrameType>(header.type), std::string(payload)});
  return kHeaderBytes + payload.size();
}

// Short frames are sent without an allocation: an abort must get through when there is no memory.
ControlLink::ControlLink(StreamSocket socket) : socket_(std::move(socket)) { unsent_.reserve(kUnsentReserve); }

void ControlLink::Close(std::string reason) {
  open_ = false;
  closed_reason_ = std::move(reason);
  unsent_.clear();
  shutdown(fd(), SHUT_RDWR);  // a peer that sent invalid data detects that its frames are no longer read
}

void ControlLink::Send(FrameType type, std::string_view payload) {
  if (!open_) return;
  AppendFrame(type, payload, &unsent_);
  Flush();
}

void ControlLink::Flush() {
  size_t sent = 0;
  while (open_ && sent < unsent_.size()) {
    const ssize_t n = socket_.Send(unsent_.data() + sent, unsent_.size() - sent);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      // The peer may have sent the reason before it ended: reading, not writing, decides that the link is closed.
      unsent_.clear();
      return;
    }
  }
  bytes_sent_ += static_cast<int64_t>(sent);
  unsent_.erase(0, sent);
}

void ControlLink::Receive(std::deque<Frame>* inbox) {
  std::array<char, 16384> buffer;
  while (open_) {
    const ssize_t n = socket_.Receive(buffer.data(), buffer.size());
    if (n > 0) {
      bytes_received_ += n;
      if (!parser_.Take({buffer.data(), static_cast<size_t>(n)}, inbox)) Close(parser_.refusal());
    } else if (n == 0) {
      Close("its connection ended, as its process has died");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno == EBADMSG) {
      Close(kRefusedRecord);
    } else if (errno != EINTR) {
      Close("its connection broke (its process died): " + SocketErrorText(errno));
    }
  }
}

void ControlLink::FinishSending() { shutdown(fd(), SHUT_WR); }

}  // namespace spark_estimator
