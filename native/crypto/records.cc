#include "crypto/records.h"

#include <string.h>  // explicit_bzero

#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace spark_estimator {
namespace {

// OpenSSL's macros, the same in all of its versions.
constexpr int kSetTag = 0x11;  // EVP_CTRL_AEAD_SET_TAG
constexpr int kGetTag = 0x10;  // EVP_CTRL_AEAD_GET_TAG
constexpr size_t kDigestBytes = 32;
constexpr size_t kMostKeyBytes = 32;
constexpr int kKeepDirection = -1;

size_t KeyBytes(Cipher cipher) { return cipher == Cipher::kAes128Gcm ? 16 : 32; }

}  // namespace

TrafficKey::TrafficKey(TrafficKey&& other) noexcept { *this = std::move(other); }

TrafficKey& TrafficKey::operator=(TrafficKey&& other) noexcept {
  if (this == &other) return *this;
  Wipe();
  library_ = std::move(other.library_);
  context_ = std::exchange(other.context_, nullptr);
  cipher_ = other.cipher_;
  encrypts_ = other.encrypts_;
  secret_ = other.secret_;
  nonce_base_ = other.nonce_base_;
  records_per_key_ = other.records_per_key_;
  number_ = other.number_;
  other.Wipe();
  return *this;
}

TrafficKey::~TrafficKey() { Wipe(); }

void TrafficKey::Wipe() {
  if (context_ != nullptr) library_->EVP_CIPHER_CTX_free(std::exchange(context_, nullptr));
  explicit_bzero(secret_.data(), secret_.size());
  explicit_bzero(nonce_base_.data(), nonce_base_.size());
}

Status TrafficKey::Make(std::shared_ptr<const Libcrypto> library, Cipher cipher, const Secret& secret, bool encrypts,
                        uint64_t records_per_key, TrafficKey* key) {
  if (cipher != Cipher::kAes128Gcm && cipher != Cipher::kChaCha20Poly1305) {
    return Status(SE_INVALID_ARGUMENT, "there is no cipher " + std::to_string(static_cast<int32_t>(cipher)));
  }
  TrafficKey made;
  made.library_ = std::move(library);
  made.context_ = made.library_->EVP_CIPHER_CTX_new();
  made.cipher_ = cipher;
  made.encrypts_ = encrypts;
  made.secret_ = secret;
  made.records_per_key_ = records_per_key;
  if (made.context_ == nullptr || !made.Derive()) {
    return Status(SE_SYSTEM_ERROR, made.library_->path() + " could not set up a cipher for an encrypted connection");
  }
  *key = std::move(made);
  return Status::Ok();
}

// HKDF-Expand of one block: T(1) = HMAC(secret, info | 0x01).
bool TrafficKey::Expand(const char* label, size_t bytes, uint8_t* out) const {
  const std::string info = std::string(label) + '\x01';
  std::array<uint8_t, kDigestBytes> digest;
  unsigned int digest_bytes = 0;
  const unsigned char* made =
      library_->HMAC(library_->EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
                     reinterpret_cast<const unsigned char*>(info.data()), info.size(), digest.data(), &digest_bytes);
  if (made == nullptr || digest_bytes != digest.size()) return false;
  std::memcpy(out, digest.data(), bytes);
  explicit_bzero(digest.data(), digest.size());
  return true;
}

bool TrafficKey::Derive() {
  std::array<uint8_t, kMostKeyBytes> key{};
  const evp_cipher_st* cipher =
      cipher_ == Cipher::kAes128Gcm ? library_->EVP_aes_128_gcm() : library_->EVP_chacha20_poly1305();
  const bool derived =
      cipher != nullptr && Expand("spark_estimator key", KeyBytes(cipher_), key.data()) &&
      Expand("spark_estimator iv", nonce_base_.size(), nonce_base_.data()) &&
      library_->EVP_CipherInit_ex(context_, cipher, nullptr, key.data(), nonce_base_.data(), encrypts_ ? 1 : 0) == 1;
  explicit_bzero(key.data(), key.size());
  number_ = 0;
  return derived;
}

bool TrafficKey::Advance() {
  Secret next;
  const bool made = Expand("spark_estimator next", next.size(), next.data());
  secret_ = next;
  explicit_bzero(next.data(), next.size());
  return made && Derive();
}

bool TrafficKey::Run(const uint8_t* header, const uint8_t* in, size_t bytes, uint8_t* out, uint8_t* tag) {
  if (context_ == nullptr || bytes > static_cast<size_t>(std::numeric_limits<int>::max())) return false;
  if (number_ == records_per_key_ && !Advance()) return false;
  std::array<uint8_t, 12> nonce = nonce_base_;
  for (size_t i = 0; i < sizeof number_; ++i) nonce[nonce.size() - 1 - i] ^= static_cast<uint8_t>(number_ >> (8 * i));
  ++number_;
  int moved = 0;
  if (library_->EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, nonce.data(), kKeepDirection) != 1) return false;
  if (library_->EVP_CipherUpdate(context_, nullptr, &moved, header, kRecordHeaderBytes) != 1) return false;
  if (library_->EVP_CipherUpdate(context_, out, &moved, in, static_cast<int>(bytes)) != 1) return false;
  if (!encrypts_ && library_->EVP_CIPHER_CTX_ctrl(context_, kSetTag, kTagBytes, tag) != 1) return false;
  // Both are stream modes: nothing is left to write.
  if (library_->EVP_CipherFinal_ex(context_, out + bytes, &moved) != 1) return false;
  return !encrypts_ || library_->EVP_CIPHER_CTX_ctrl(context_, kGetTag, kTagBytes, tag) == 1;
}

Status RecordSealer::Make(std::shared_ptr<const Libcrypto> library, Cipher cipher, const Secret& secret,
                          RecordSealer* sealer, uint64_t records_per_key) {
  return TrafficKey::Make(std::move(library), cipher, secret, true, records_per_key, &sealer->key_);
}

bool RecordSealer::Seal(const uint8_t* data, size_t bytes, uint8_t* record) {
  if (bytes == 0 || bytes > kMaxPlaintextBytes) return false;
  const auto body_bytes = static_cast<uint32_t>(bytes + kTagBytes);
  for (size_t i = 0; i < kRecordHeaderBytes; ++i) record[i] = static_cast<uint8_t>(body_bytes >> (8 * i));
  uint8_t* body = record + kRecordHeaderBytes;
  return key_.Run(record, data, bytes, body, body + bytes);
}

Status RecordOpener::Make(std::shared_ptr<const Libcrypto> library, Cipher cipher, const Secret& secret,
                          RecordOpener* opener, uint64_t records_per_key) {
  return TrafficKey::Make(std::move(library), cipher, secret, false, records_per_key, &opener->key_);
}

size_t RecordOpener::BodyBytes(const uint8_t* header) {
  uint32_t bytes = 0;
  for (size_t i = 0; i < kRecordHeaderBytes; ++i) bytes |= static_cast<uint32_t>(header[i]) << (8 * i);
  return bytes > kTagBytes && bytes <= kMaxBodyBytes ? bytes : 0;
}

bool RecordOpener::Open(const uint8_t* header, const uint8_t* body, uint8_t* data) {
  const size_t body_bytes = BodyBytes(header);
  if (refused_ || body_bytes == 0) {
    refused_ = true;
    return false;
  }
  const size_t bytes = body_bytes - kTagBytes;
  std::array<uint8_t, kTagBytes> tag;
  std::memcpy(tag.data(), body + bytes, kTagBytes);
  refused_ = !key_.Run(header, body, bytes, data, tag.data());
  return !refused_;
}

}  // namespace spark_estimator
