// Encrypted connections for the C ABI: those of an engine, and the record layer alone.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "capi/encryption.h"
#include "capi/guarded.h"
#include "crypto/records.h"

struct se_sealer {
  spark_estimator::RecordSealer sealer;
};
struct se_opener {
  spark_estimator::RecordOpener opener;
};

namespace spark_estimator {
namespace {

static_assert(SE_RECORD_BYTES == kMaxPlaintextBytes && SE_RECORD_OVERHEAD == kRecordHeaderBytes + kTagBytes);

Secret SecretOf(const uint8_t* bytes) {
  Secret secret;
  std::copy_n(bytes, secret.size(), secret.begin());
  return secret;
}

// `library` is opened when the first connection needs it.
Status EncryptOne(const char* path, std::shared_ptr<const Libcrypto>* library, const se_encryption& encryption,
                  StreamSocket* socket) {
  if (encryption.cipher == 0) return Status::Ok();
  if (*library == nullptr) SE_RETURN_IF_ERROR(Libcrypto::Open(path != nullptr ? path : "", library));
  const SocketSecrets secrets{static_cast<Cipher>(encryption.cipher), SecretOf(encryption.send),
                              SecretOf(encryption.receive)};
  std::unique_ptr<SecureChannel> channel;
  SE_RETURN_IF_ERROR(SecureChannel::Make(*library, secrets, &channel));
  socket->Encrypt(std::move(channel));
  return Status::Ok();
}

Status EncryptParts(const char* path, std::shared_ptr<const Libcrypto>* library, const se_peer& peer,
                    StripedSocket* data) {
  for (size_t part = 0; part < data->sockets().size(); ++part) {
    SE_RETURN_IF_ERROR(EncryptOne(path, library, peer.data_encryption[part], &data->sockets()[part]));
  }
  return Status::Ok();
}

// Opens the library and makes an end of a direction.
template <typename End, typename Half>
Status MakeEnd(const char* path, int32_t cipher, const uint8_t* secret, Half End::* half, End** end) {
  std::shared_ptr<const Libcrypto> library;
  SE_RETURN_IF_ERROR(Libcrypto::Open(path != nullptr ? path : "", &library));
  auto made = std::make_unique<End>();
  SE_RETURN_IF_ERROR(
      Half::Make(std::move(library), static_cast<Cipher>(cipher), SecretOf(secret), &(made.get()->*half)));
  *end = made.release();
  return Status::Ok();
}

}  // namespace

Status EncryptConnections(const se_config& config, const se_peer* peers, std::vector<PeerConfig>* others) {
  std::shared_ptr<const Libcrypto> library;
  for (size_t i = 0; i < others->size(); ++i) {
    PeerConfig& other = (*others)[i];
    SE_RETURN_IF_ERROR(EncryptOne(config.crypto_library, &library, peers[i].control_encryption, &other.control));
    SE_RETURN_IF_ERROR(EncryptParts(config.crypto_library, &library, peers[i], &other.data));
  }
  return Status::Ok();
}

Status EncryptData(const std::string& crypto_library, const se_peer& peer, StripedSocket* data) {
  std::shared_ptr<const Libcrypto> library;
  return EncryptParts(crypto_library.c_str(), &library, peer, data);
}

}  // namespace spark_estimator

using namespace spark_estimator;

extern "C" {

int32_t se_sealer_create(const char* library, int32_t cipher, const uint8_t* secret, se_sealer** sealer) {
  return Guarded([&] { return MakeEnd(library, cipher, secret, &se_sealer::sealer, sealer); });
}

int32_t se_seal(se_sealer* sealer, const void* data, int64_t bytes, void* records) {
  return Guarded([&]() -> Status {
    const auto* next = static_cast<const uint8_t*>(data);
    auto* record = static_cast<uint8_t*>(records);
    for (auto left = static_cast<size_t>(bytes); left > 0;) {
      const size_t part = std::min(left, kMaxPlaintextBytes);
      if (!sealer->sealer.Seal(next, part, record)) return Status(SE_SYSTEM_ERROR, "the cipher of a connection failed");
      next += part;
      record += part + SE_RECORD_OVERHEAD;
      left -= part;
    }
    return Status::Ok();
  });
}

void se_sealer_destroy(se_sealer* sealer) { delete sealer; }

int32_t se_opener_create(const char* library, int32_t cipher, const uint8_t* secret, se_opener** opener) {
  return Guarded([&] { return MakeEnd(library, cipher, secret, &se_opener::opener, opener); });
}

int32_t se_open(se_opener* opener, const void* records, int64_t bytes, void* data, int64_t* taken, int64_t* opened) {
  *taken = *opened = 0;
  return Guarded([&]() -> Status {
    while (static_cast<size_t>(bytes - *taken) >= kRecordHeaderBytes) {
      const uint8_t* header = static_cast<const uint8_t*>(records) + *taken;
      const size_t body_bytes = RecordOpener::BodyBytes(header);
      if (body_bytes > 0 && static_cast<size_t>(bytes - *taken) < kRecordHeaderBytes + body_bytes) break;
      if (!opener->opener.Open(header, header + kRecordHeaderBytes, static_cast<uint8_t*>(data) + *opened)) {
        return Status(SE_PEER_LOST, kRefusedRecord);
      }
      *taken += static_cast<int64_t>(kRecordHeaderBytes + body_bytes);
      *opened += static_cast<int64_t>(body_bytes - kTagBytes);
    }
    return Status::Ok();
  });
}

void se_opener_destroy(se_opener* opener) { delete opener; }

}  // extern "C"
