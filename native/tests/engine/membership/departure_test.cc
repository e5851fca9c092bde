// Ranks that leave in good order while others stay: later freezes are detected, and the remaining ranks do not spin.
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "check.h"
#include "engine/wire/message.h"
#include "ranks.h"
#include "transport/frame.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

// A spinning thread wakes some hundred thousand times in this time. A quiet one wakes a few times for each heartbeat.
constexpr std::chrono::milliseconds kIdle{500};
constexpr int64_t kMostWakeups = 2000;
constexpr double kInterval = 0.02;
constexpr double kSilence = 0.3;
// For engines that are well: longer than a busy machine keeps a thread from running.
constexpr double kPatientSilence = 1;

int64_t WakeupsWhileIdle(se_engine* engine) {
  const int64_t before = se_counter(engine, "wakeups");
  std::this_thread::sleep_for(kIdle);
  return se_counter(engine, "wakeups") - before;
}

// The engine of rank 0 of three. The test plays ranks 1 and 2, frame by frame.
class TwoPlayedPeers {
 public:
  TwoPlayedPeers() = default;
  ~TwoPlayedPeers() {
    for (UniqueFd& fd : control_) fd.Reset(-1);
    for (UniqueFd& fd : bulk_) fd.Reset(-1);
    se_engine_destroy(engine);
  }

  void Start() {
    se_config config{};
    config.struct_bytes = sizeof(config);
    config.size = 3;
    config.own_segment_fd = -1;
    config.cache_capacity = 64;
    config.cores = 2;
    config.hierarchical = -1;
    config.affinity_core = -1;
    config.spin_microseconds = -1;
    config.fusion_threshold_bytes = 1 << 20;
    config.start_timeout_seconds = 30;
    config.heartbeat_seconds = kInterval;
    config.silence_seconds = kSilence;
    config.name = "here";
    if (se_engine_create(&config, peers_.data(), &engine) != SE_OK) Fail(__FILE__, __LINE__, se_last_error());
  }
  // To be called before Start(): the connections exist, and the peer has sent its hello.
  void Connect() {
    for (int rank = 1; rank < 3; ++rank) {
      int control[2];
      int bulk[2];
      CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control), 0);
      CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, bulk), 0);
      control_.emplace_back(control[1]);
      bulk_.emplace_back(bulk[1]);
      peers_.push_back({rank, rank, control[0], 1, {bulk[0]}, -1, "there", {}, {}});
      Say(rank, FrameType::kHello, Encode(Hello{SE_ABI_VERSION, rank, 3, {}, {1 << 20, 64, -1, 2}, ""}));
    }
  }
  void Say(int rank, FrameType type, const std::string& payload) {
    std::string bytes;
    AppendFrame(type, payload, &bytes);
    CHECK_EQ(send(Control(rank).get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void Leave(int rank, int64_t executed) {
    Say(rank, FrameType::kGoodbye, Encode(Goodbye{executed, rank}));
    Control(rank).Reset(-1);
  }
  void HangUp(int rank) { Control(rank).Reset(-1); }
  // `rank` asks for the allreduce that Submit() asks for.
  void Ask(int rank) {
    Signature signature;
    signature.name = "sum";
    signature.op = SE_ALLREDUCE;
    signature.reduce_op = SE_SUM;
    signature.parts = {Part{SE_FLOAT32, {6}}};
    Say(rank, FrameType::kRequests, Encode(Requests{0, 0, {signature}}));
  }
  Submitted Submit() { return Rank(0, 3, engine).Allreduce("sum", values_, values_, {6}); }

  se_engine* engine = nullptr;

 private:
  UniqueFd& Control(int rank) { return control_[static_cast<size_t>(rank - 1)]; }

  std::vector<UniqueFd> control_;
  std::vector<UniqueFd> bulk_;
  std::vector<se_peer> peers_;
  float values_[6] = {};
};

// Rank 1 has carried out the operation and left. Rank 2 is frozen inside it.
void AFrozenPeerIsNamedAfterAnotherHasLeft() {
  TwoPlayedPeers peers;
  peers.Connect();
  peers.Start();
  const Submitted pending = peers.Submit();
  peers.Ask(1);
  peers.Ask(2);
  peers.Leave(1, 1);
  CHECK_EQ(Rank(0, 3, peers.engine).Wait(pending), SE_PEER_LOST);
  CHECK_CONTAINS(se_last_error(), "rank 2 on there is lost: it has sent no heartbeat for 0.");
  // The frozen peer's clock has expired permanently: no thread has to check it repeatedly.
  CHECK(WakeupsWhileIdle(peers.engine) < kMostWakeups);
}

// Hello, goodbye and the end of the connection are all there before the engine reads the first of them.
void APeerThatLeftBeforeTheStart() {
  TwoPlayedPeers peers;
  peers.Connect();
  peers.Leave(1, 0);
  peers.Start();
  CHECK(WakeupsWhileIdle(peers.engine) < kMostWakeups);
  CHECK_EQ(Rank(0, 3, peers.engine).Wait(peers.Submit()), SE_SHUT_DOWN);
  CHECK_CONTAINS(se_last_error(), "rank 1 on there has left the job");
}

// The same without a goodbye.
void APeerThatDiedBeforeTheStart() {
  TwoPlayedPeers peers;
  peers.Connect();
  peers.HangUp(1);
  peers.Start();
  CHECK_EQ(Rank(0, 3, peers.engine).Wait(peers.Submit()), SE_PEER_LOST);
  CHECK_CONTAINS(se_last_error(), "rank 1 on there is lost");
  CHECK(WakeupsWhileIdle(peers.engine) < kMostWakeups);
}

// Real engines, all of them well: those that stay continue sending heartbeats and sleep between them.
void WhoStaysDoesNotSpin() {
  for (const Channel channel : {Channel::kShared, Channel::kStream}) {
    for (const int leaver : {0, 1}) {
      JobOptions options;
      options.channel = channel;
      options.heartbeat_seconds = kInterval;
      options.silence_seconds = kPatientSilence;
      RunRanks(3, options, [&](Rank& me) {
        float x[4] = {1, 1, 1, 1};
        me.WaitOk(me.Allreduce("x", x, x, {4}));
        if (me.rank == leaver) {
          CHECK_EQ(se_engine_shutdown(me.engine), SE_OK);
          return;
        }
        CHECK_EQ(me.Wait(me.Allreduce("y", x, x, {4})), SE_SHUT_DOWN);
        CHECK_CONTAINS(se_last_error(), "rank " + std::to_string(leaver) + " on testhost has left the job");
        std::this_thread::sleep_for(std::chrono::duration<double>(1.2 * kPatientSilence));
        CHECK(WakeupsWhileIdle(me.engine) < kMostWakeups);
      });
    }
  }
}

}  // namespace

int main() {
  return RunTests({{"a frozen peer is named after another has left", AFrozenPeerIsNamedAfterAnotherHasLeft},
                   {"a peer that left before the start", APeerThatLeftBeforeTheStart},
                   {"a peer that died before the start", APeerThatDiedBeforeTheStart},
                   {"who stays does not spin", WhoStaysDoesNotSpin}});
}
