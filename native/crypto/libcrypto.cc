#include "crypto/libcrypto.h"

namespace spark_estimator {

Status Libcrypto::Open(const std::string& path, std::shared_ptr<const Libcrypto>* library) {
  if (path.empty() || path[0] != '/') {
    return Status(SE_INVALID_ARGUMENT, "libcrypto needs an absolute path; got '" + path + "'");
  }
  auto opened = std::make_shared<Libcrypto>();
  SE_RETURN_IF_ERROR(SharedObject::Open(path, &opened->object_));
  const SharedObject& object = opened->object_;
#define SE_RESOLVE(function) SE_RETURN_IF_ERROR(object.Resolve(#function, &opened->function))
  SE_RESOLVE(EVP_CIPHER_CTX_new);
  SE_RESOLVE(EVP_CIPHER_CTX_free);
  SE_RESOLVE(EVP_aes_128_gcm);
  SE_RESOLVE(EVP_chacha20_poly1305);
  SE_RESOLVE(EVP_CipherInit_ex);
  SE_RESOLVE(EVP_CipherUpdate);
  SE_RESOLVE(EVP_CipherFinal_ex);
  SE_RESOLVE(EVP_CIPHER_CTX_ctrl);
  SE_RESOLVE(EVP_sha256);
  SE_RESOLVE(HMAC);
#undef SE_RESOLVE
  *library = std::move(opened);
  return Status::Ok();
}

}  // namespace spark_estimator
