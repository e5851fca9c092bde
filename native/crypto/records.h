// The record layer of encrypted connections: bytes of one direction as authenticated, numbered records.
//
// A record is a header of 4 bytes (the length of what follows, little endian), the ciphertext of 1 to 64 KiB, and a tag
// of 16 bytes. The cipher authenticates the header, too. Key and nonce base are derived from the direction's secret by
// HKDF-Expand (RFC 5869); the nonce of a record is the base XOR its number, as in TLS 1.3 (RFC 8446, 5.3). Both ends
// count: a record that was altered, replayed, left out or moved fails its authentication. After kRecordsPerKey records
// the secret is replaced by one derived from it (RFC 8446, 7.2), long before AES-GCM's limit of 2^22.5 records of this
// size (RFC 8446, 5.5); both ends do so at the same record.
#ifndef SPARK_ESTIMATOR_CRYPTO_RECORDS_H_
#define SPARK_ESTIMATOR_CRYPTO_RECORDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "crypto/libcrypto.h"

namespace spark_estimator {

enum class Cipher : int32_t {
  kAes128Gcm = SE_AES_128_GCM,
  kChaCha20Poly1305 = SE_CHACHA20_POLY1305,
};

using Secret = std::array<uint8_t, SE_SECRET_BYTES>;

constexpr size_t kMaxPlaintextBytes = size_t{64} << 10;
constexpr size_t kRecordHeaderBytes = 4;
constexpr size_t kTagBytes = 16;
constexpr size_t kMaxBodyBytes = kMaxPlaintextBytes + kTagBytes;
constexpr size_t kMaxRecordBytes = kRecordHeaderBytes + kMaxBodyBytes;
constexpr uint64_t kRecordsPerKey = uint64_t{1} << 20;

// What a record failed; it names no reason, since none can be known.
constexpr const char* kRefusedRecord =
    "its data failed the authentication: it was altered, repeated, left out or reordered on the way";

// The key of one direction at one end, and the number of its next record. Secrets are wiped when it ends.
class TrafficKey {
 public:
  TrafficKey() = default;
  TrafficKey(TrafficKey&& other) noexcept;
  TrafficKey& operator=(TrafficKey&& other) noexcept;
  ~TrafficKey();

  static Status Make(std::shared_ptr<const Libcrypto> library, Cipher cipher, const Secret& secret, bool encrypts,
                     uint64_t records_per_key, TrafficKey* key);

  // Runs the cipher over one record's bytes; `tag` is written when encrypting, compared when decrypting. `out` may
  // equal `in`. False when the tag is wrong, or the cipher failed.
  bool Run(const uint8_t* header, const uint8_t* in, size_t bytes, uint8_t* out, uint8_t* tag);

 private:
  bool Derive();   // key and nonce base from the secret
  bool Advance();  // the next secret
  bool Expand(const char* label, size_t bytes, uint8_t* out) const;
  void Wipe();

  std::shared_ptr<const Libcrypto> library_;
  CipherContext* context_ = nullptr;
  Cipher cipher_ = Cipher::kAes128Gcm;
  bool encrypts_ = false;
  Secret secret_{};
  std::array<uint8_t, 12> nonce_base_{};
  uint64_t records_per_key_ = kRecordsPerKey;
  uint64_t number_ = 0;  // of the next record under this key
};

// Makes records. Not thread-safe.
class RecordSealer {
 public:
  static Status Make(std::shared_ptr<const Libcrypto> library, Cipher cipher, const Secret& secret,
                     RecordSealer* sealer, uint64_t records_per_key = kRecordsPerKey);

  // Writes one record of 1 to kMaxPlaintextBytes bytes, kRecordHeaderBytes + bytes + kTagBytes long, to `record`.
  // False when the cipher failed; then the connection must end.
  bool Seal(const uint8_t* data, size_t bytes, uint8_t* record);

 private:
  TrafficKey key_;
};

// Opens records. Not thread-safe.
class RecordOpener {
 public:
  static Status Make(std::shared_ptr<const Libcrypto> library, Cipher cipher, const Secret& secret,
                     RecordOpener* opener, uint64_t records_per_key = kRecordsPerKey);

  // The length of the body that a header announces; 0 if the header is invalid.
  static size_t BodyBytes(const uint8_t* header);
  // Decrypts the body of a record, of BodyBytes(header) bytes, into BodyBytes(header) - kTagBytes bytes. False if it is
  // not the next record of the other end: then all later ones are refused, too.
  bool Open(const uint8_t* header, const uint8_t* body, uint8_t* data);

 private:
  TrafficKey key_;
  bool refused_ = false;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_CRYPTO_RECORDS_H_
