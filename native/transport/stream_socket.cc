#include "transport/stream_socket.h"

#include <linux/tcp.h>  // of which <netinet/tcp.h> has less
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <system_error>

namespace spark_estimator {
namespace {

// Records that are sent and received at a time: fewer system calls, and still less than a core's cache. Measured, for
// allreduces of 1 to 102 MB without a limit by the network: with one record for each call, they need 10 to 20 % longer.
constexpr size_t kSentRecords = 4;
constexpr size_t kReceivedRecords = 8;

// Makes room for several records. Only connections that move more than one at a time need it: a coordinator has a
// control connection to each rank. Without memory they keep the room they have.
void Grow(std::vector<uint8_t>* buffer, size_t records) {
  if (buffer->size() >= records * kMaxRecordBytes) return;
  try {
    buffer->resize(records * kMaxRecordBytes);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

Status SecureChannel::Make(const std::shared_ptr<const Libcrypto>& library, const SocketSecrets& secrets,
                           std::unique_ptr<SecureChannel>* channel, uint64_t records_per_key) {
  std::unique_ptr<SecureChannel> made(new SecureChannel);
  SE_RETURN_IF_ERROR(RecordSealer::Make(library, secrets.cipher, secrets.send, &made->sealer_, records_per_key));
  SE_RETURN_IF_ERROR(RecordOpener::Make(library, secrets.cipher, secrets.receive, &made->opener_, records_per_key));
  // Allocated here, so that a failure can be sent to the peers when there is no memory.
  made->outgoing_.resize(kMaxRecordBytes);
  made->incoming_.resize(kMaxRecordBytes);
  made->opened_.resize(kMaxPlaintextBytes);
  *channel = std::move(made);
  return Status::Ok();
}

bool SecureChannel::SealBatch(const uint8_t* data, size_t bytes) {
  if (bytes > kMaxPlaintextBytes) Grow(&outgoing_, kSentRecords);
  outgoing_plaintext_ = outgoing_begin_ = outgoing_end_ = 0;
  while (outgoing_plaintext_ < bytes && outgoing_.size() - outgoing_end_ >= kMaxRecordBytes) {
    const size_t part = std::min(bytes - outgoing_plaintext_, kMaxPlaintextBytes);
    if (!sealer_.Seal(data + outgoing_plaintext_, part, outgoing_.data() + outgoing_end_)) return false;
    outgoing_plaintext_ += part;
    outgoing_end_ += kRecordHeaderBytes + part + kTagBytes;
  }
  return true;
}

ssize_t SecureChannel::Send(int fd, const uint8_t* data, size_t bytes) {
  if (outgoing_begin_ < outgoing_end_ && outgoing_plaintext_ > bytes) {
    errno = EINVAL;  // the caller gave other data than before
    return -1;
  }
  size_t moved = 0;
  while (true) {
    if (outgoing_begin_ == outgoing_end_) {
      if (moved == bytes) return static_cast<ssize_t>(moved);
      if (!SealBatch(data + moved, bytes - moved)) {
        errno = EBADMSG;
        return -1;
      }
    }
    const ssize_t n =
        send(fd, outgoing_.data() + outgoing_begin_, outgoing_end_ - outgoing_begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return moved > 0 ? static_cast<ssize_t>(moved) : -1;
    outgoing_begin_ += static_cast<size_t>(n);
    if (outgoing_begin_ == outgoing_end_) moved += outgoing_plaintext_;
  }
}

ssize_t SecureChannel::TakeRecords(uint8_t* data, size_t bytes) {
  size_t moved = 0;
  while (moved < bytes) {
    if (opened_begin_ < opened_end_) {
      const size_t count = std::min(bytes - moved, opened_end_ - opened_begin_);
      std::memcpy(data + moved, opened_.data() + opened_begin_, count);
      opened_begin_ += count;
      moved += count;
      continue;
    }
    const size_t available = incoming_end_ - incoming_begin_;
    if (available < kRecordHeaderBytes) break;
    const uint8_t* header = incoming_.data() + incoming_begin_;
    const size_t body_bytes = RecordOpener::BodyBytes(header);
    if (body_bytes > 0 && available < kRecordHeaderBytes + body_bytes) break;
    const size_t plaintext_bytes = body_bytes > 0 ? body_bytes - kTagBytes : 0;
    const bool fits = plaintext_bytes <= bytes - moved;
    uint8_t* place = fits ? data + moved : opened_.data();
    if (!opener_.Open(header, header + kRecordHeaderBytes, place)) {
      if (moved > 0) break;
      errno = EBADMSG;
      return -1;
    }
    incoming_begin_ += kRecordHeaderBytes + body_bytes;
    if (fits) {
      moved += plaintext_bytes;
    } else {
      opened_begin_ = 0;
      opened_end_ = plaintext_bytes;
    }
  }
  return static_cast<ssize_t>(moved);
}

ssize_t SecureChannel::Receive(int fd, uint8_t* data, size_t bytes) {
  if (bytes > kMaxPlaintextBytes) Grow(&incoming_, kReceivedRecords);
  size_t moved = 0;
  while (true) {
    const ssize_t taken = TakeRecords(data + moved, bytes - moved);
    if (taken < 0) return moved > 0 ? static_cast<ssize_t>(moved) : -1;
    moved += static_cast<size_t>(taken);
    if (moved == bytes) return static_cast<ssize_t>(moved);
    // The remaining bytes are the beginning of a record: room for the rest of it, and for the following ones.
    const size_t left = incoming_end_ - incoming_begin_;
    std::memmove(incoming_.data(), incoming_.data() + incoming_begin_, left);
    incoming_begin_ = 0;
    incoming_end_ = left;
    const ssize_t n = recv(fd, incoming_.data() + left, incoming_.size() - left, MSG_DONTWAIT);
    if (n > 0) {
      incoming_end_ += static_cast<size_t>(n);
      continue;
    }
    if (moved > 0) return static_cast<ssize_t>(moved);
    if (n == 0 && left > 0) {
      errno = ECONNRESET;  // in the middle of a record
      return -1;
    }
    return n;
  }
}

ssize_t StreamSocket::Send(const void* data, size_t bytes) {
  if (channel_ != nullptr) return channel_->Send(fd(), static_cast<const uint8_t*>(data), bytes);
  return send(fd(), data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t StreamSocket::Receive(void* data, size_t bytes) {
  if (channel_ != nullptr) return channel_->Receive(fd(), static_cast<uint8_t*>(data), bytes);
  return recv(fd(), data, bytes, MSG_DONTWAIT);
}

SendQueue StreamSocket::ReadSendQueue() const {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return {};
  if (bytes < offsetof(tcp_info, tcpi_rwnd_limited) + sizeof(info.tcpi_rwnd_limited)) return {};
  return {info.tcpi_notsent_bytes > 0, static_cast<int64_t>(info.tcpi_rwnd_limited) * 1000};
}

std::string SocketErrorText(int error_number) {
  return error_number == EBADMSG ? kRefusedRecord : std::generic_category().message(error_number);
}

}  // namespace spark_estimator
