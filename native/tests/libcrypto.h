// OpenSSL's libcrypto for the tests, and secrets that both ends of a connection know.
#ifndef SPARK_ESTIMATOR_TESTS_LIBCRYPTO_H_
#define SPARK_ESTIMATOR_TESTS_LIBCRYPTO_H_

#include <dlfcn.h>
#include <link.h>

#include <memory>
#include <string>
#include <utility>

#include "check.h"
#include "crypto/libcrypto.h"
#include "transport/stream_socket.h"

namespace spark_estimator::testing {

// The path of the system's own. Tests need it: a machine that runs Python has one.
inline const std::string& LibcryptoPath() {
  static const std::string path = [] {
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
      void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      link_map* map = nullptr;
      if (handle != nullptr && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) return std::string(map->l_name);
    }
    Fail(__FILE__, __LINE__, "OpenSSL's libcrypto.so.3 or libcrypto.so.1.1 is needed for the tests; install openssl");
  }();
  return path;
}

inline std::shared_ptr<const Libcrypto> OpenLibcrypto() {
  std::shared_ptr<const Libcrypto> library;
  const Status status = Libcrypto::Open(LibcryptoPath(), &library);
  if (!status.ok()) Fail(__FILE__, __LINE__, status.message());
  return library;
}

inline Secret SecretFrom(uint8_t first) {
  Secret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(first + i);
  return secret;
}

// Both ends of a new pair of sockets; encrypted from now on.
inline std::pair<StreamSocket, StreamSocket> EncryptedPair(int first, int second, Cipher cipher = Cipher::kAes128Gcm) {
  std::pair<StreamSocket, StreamSocket> sockets{UniqueFd(first), UniqueFd(second)};
  const std::shared_ptr<const Libcrypto> library = OpenLibcrypto();
  const auto encrypt = [&](StreamSocket& socket, uint8_t send, uint8_t receive) {
    std::unique_ptr<SecureChannel> channel;
    const Status status = SecureChannel::Make(library, {cipher, SecretFrom(send), SecretFrom(receive)}, &channel);
    if (!status.ok()) Fail(__FILE__, __LINE__, status.message());
    socket.Encrypt(std::move(channel));
  };
  encrypt(sockets.first, 1, 2);
  encrypt(sockets.second, 2, 1);
  return sockets;
}

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_LIBCRYPTO_H_
