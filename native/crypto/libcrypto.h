// OpenSSL's libcrypto, opened while the program runs: the ciphers of encrypted connections.
//
// Versions 1.1.1 to 3.x have all functions that are used here. The creator of an engine passes the path of the library,
// which should be the one that Python's ssl module has loaded: this code never searches for a library that will get
// keys.
#ifndef SPARK_ESTIMATOR_CRYPTO_LIBCRYPTO_H_
#define SPARK_ESTIMATOR_CRYPTO_LIBCRYPTO_H_

#include <cstddef>
#include <memory>
#include <string>

#include "base/shared_object.h"
#include "base/status.h"

extern "C" {
// OpenSSL's own types, which its interface passes by address only.
struct evp_cipher_ctx_st;
struct evp_cipher_st;
struct evp_md_st;
struct engine_st;
}

namespace spark_estimator {

using CipherContext = evp_cipher_ctx_st;

class Libcrypto {
 public:
  // SE_SYSTEM_ERROR: `path` is no library, or lacks a function.
  static Status Open(const std::string& path, std::shared_ptr<const Libcrypto>* library);

  const std::string& path() const { return object_.path(); }

  // As OpenSSL documents them.
  CipherContext* (*EVP_CIPHER_CTX_new)() = nullptr;
  void (*EVP_CIPHER_CTX_free)(CipherContext*) = nullptr;
  const evp_cipher_st* (*EVP_aes_128_gcm)() = nullptr;
  const evp_cipher_st* (*EVP_chacha20_poly1305)() = nullptr;
  int (*EVP_CipherInit_ex)(CipherContext*, const evp_cipher_st*, engine_st*, const unsigned char* key,
                           const unsigned char* iv, int encrypts) = nullptr;
  int (*EVP_CipherUpdate)(CipherContext*, unsigned char* out, int* out_bytes, const unsigned char* in,
                          int in_bytes) = nullptr;
  int (*EVP_CipherFinal_ex)(CipherContext*, unsigned char* out, int* out_bytes) = nullptr;
  int (*EVP_CIPHER_CTX_ctrl)(CipherContext*, int type, int argument, void* pointer) = nullptr;
  const evp_md_st* (*EVP_sha256)() = nullptr;
  unsigned char* (*HMAC)(const evp_md_st*, const void* key, int key_bytes, const unsigned char* data, size_t bytes,
                         unsigned char* digest, unsigned int* digest_bytes) = nullptr;

 private:
  SharedObject object_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_CRYPTO_LIBCRYPTO_H_
