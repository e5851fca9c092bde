// A connected stream socket, in clear or encrypted, read and written without waiting.
#ifndef SPARK_ESTIMATOR_TRANSPORT_STREAM_SOCKET_H_
#define SPARK_ESTIMATOR_TRANSPORT_STREAM_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "crypto/records.h"

namespace spark_estimator {

// The secrets of an encrypted connection, as its handshake made them, one for each direction.
struct SocketSecrets {
  Cipher cipher = Cipher::kAes128Gcm;
  Secret send{};
  Secret receive{};
};

// The record layer of one connection, in both directions.
class SecureChannel {
 public:
  static Status Make(const std::shared_ptr<const Libcrypto>& library, const SocketSecrets& secrets,
                     std::unique_ptr<SecureChannel>* channel, uint64_t records_per_key = kRecordsPerKey);

  // As StreamSocket's.
  ssize_t Send(int fd, const uint8_t* data, size_t bytes);
  ssize_t Receive(int fd, uint8_t* data, size_t bytes);

 private:
  SecureChannel() = default;
  // Fills the outgoing buffer with records of the first of these bytes; false if the cipher failed.
  bool SealBatch(const uint8_t* data, size_t bytes);
  // Gives data of the records that have arrived whole: the number of bytes, -1 (errno is EBADMSG) for a record that
  // fails its authentication.
  ssize_t TakeRecords(uint8_t* data, size_t bytes);

  RecordSealer sealer_;
  std::vector<uint8_t> outgoing_;  // records that are not all sent yet
  size_t outgoing_begin_ = 0;
  size_t outgoing_end_ = 0;
  size_t outgoing_plaintext_ = 0;  // bytes of data in them

  RecordOpener opener_;
  std::vector<uint8_t> incoming_;  // records as received
  size_t incoming_begin_ = 0;
  size_t incoming_end_ = 0;
  std::vector<uint8_t> opened_;  // data of a record that its reader had no room for
  size_t opened_begin_ = 0;
  size_t opened_end_ = 0;
};

// What a TCP connection has been given to send and has not sent yet, by the kernel's own count.
struct SendQueue {
  bool has_unsent = false;
  // For how many nanoseconds since the connection was opened the peer had no room for more (RFC 4898).
  int64_t held_nanoseconds = 0;
};

class StreamSocket {
 public:
  StreamSocket() = default;
  StreamSocket(UniqueFd fd) : fd_(std::move(fd)) {}  // NOLINT: a descriptor is a socket in clear

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  // From now on; before the first byte.
  void Encrypt(std::unique_ptr<SecureChannel> channel) { channel_ = std::move(channel); }

  // As send() and recv() with MSG_DONTWAIT: how many bytes were moved, 0 from Receive at the end of the stream, -1 with
  // errno; EBADMSG for data that fails its authentication.
  // Bytes of an encrypted connection count as sent once their records are with the kernel as a whole, up to 256 KiB at
  // a time: if the result is smaller than the input, the caller continues with the following bytes, as with send().
  // Nothing that has arrived is held back: after EAGAIN from Receive the next bytes make the descriptor readable.
  ssize_t Send(const void* data, size_t bytes);
  ssize_t Receive(void* data, size_t bytes);
  // An empty queue for other sockets than TCP's, and for Linux before 4.10.
  SendQueue ReadSendQueue() const;

 private:
  UniqueFd fd_;
  std::unique_ptr<SecureChannel> channel_;  // null: in clear
};

// The text of an errno of StreamSocket's.
std::string SocketErrorText(int error_number);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_STREAM_SOCKET_H_
