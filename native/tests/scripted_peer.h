// An engine of a group of two whose other rank is played by the caller, word by word; for tests and fuzzing.
#ifndef SPARK_ESTIMATOR_TESTS_SCRIPTED_PEER_H_
#define SPARK_ESTIMATOR_TESTS_SCRIPTED_PEER_H_

#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"
#include "check.h"
#include "engine/wire/message.h"
#include "spark_estimator/engine.h"
#include "transport/frame.h"

namespace spark_estimator::testing {

class ScriptedPeer {
 public:
  // The engine is `own_rank` of two; the peer has greeted it well. With an overlay they talk as in a large group.
  explicit ScriptedPeer(int own_rank, double heartbeat_seconds = 0, double silence_seconds = 0, bool overlay = false) {
    int control[2];
    int bulk[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, bulk), 0);
    control_.Reset(control[1]);
    bulk_.Reset(bulk[1]);
    Say(FrameType::kHello, Encode(Hello{SE_ABI_VERSION, 1 - own_rank, 2, {}, {1 << 20, 64, -1, 2}, ""}));
    se_config config{};
    config.struct_bytes = sizeof(config);
    config.rank = config.global_rank = own_rank;
    config.size = 2;
    config.own_segment_fd = -1;
    config.cache_capacity = 64;
    config.cores = 2;
    config.hierarchical = -1;
    config.affinity_core = -1;
    config.overlay = overlay ? 1 : 0;
    config.fusion_threshold_bytes = 1 << 20;
    config.start_timeout_seconds = 30;
    config.heartbeat_seconds = heartbeat_seconds;
    config.silence_seconds = silence_seconds;
    config.name = "here";
    const se_peer peer{1 - own_rank, 1 - own_rank, control[0], 1, {bulk[0]}, -1, "there", {}, {}};
    if (se_engine_create(&config, &peer, &engine) != SE_OK) Fail(__FILE__, __LINE__, se_last_error());
  }
  ~ScriptedPeer() {
    HangUp();
    se_engine_destroy(engine);
  }
  ScriptedPeer(const ScriptedPeer&) = delete;
  ScriptedPeer& operator=(const ScriptedPeer&) = delete;

  void Say(FrameType type, std::string_view payload) {
    std::string bytes;
    AppendFrame(type, payload, &bytes);
    SayBytes(bytes);
  }
  void SayBytes(const std::string& bytes) { SendAll(control_.get(), bytes); }
  void SayOnDataLink(const std::string& bytes) { SendAll(bulk_.get(), bytes); }
  // Ends both connections.
  void HangUp() {
    control_.Reset(-1);
    bulk_.Reset(-1);
  }

  se_engine* engine = nullptr;

 private:
  // An engine that detects an error closes its end.
  static void SendAll(int fd, const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }

  UniqueFd control_;
  UniqueFd bulk_;
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_SCRIPTED_PEER_H_
