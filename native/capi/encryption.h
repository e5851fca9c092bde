// The encryption of an engine's connections, as its creator has agreed on with the peers.
#ifndef SPARK_ESTIMATOR_CAPI_ENCRYPTION_H_
#define SPARK_ESTIMATOR_CAPI_ENCRYPTION_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine_config.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {

// Encrypts those connections of `others` for which `peers`, in the same order, has secrets. SE_SYSTEM_ERROR when
// libcrypto can't be used.
Status EncryptConnections(const se_config& config, const se_peer* peers, std::vector<PeerConfig>* others);

// The same for the data connections of one peer.
Status EncryptData(const std::string& crypto_library, const se_peer& peer, StripedSocket* data);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_CAPI_ENCRYPTION_H_
