// Engines over encrypted connections: the same numbers, and changed bytes on a connection end the job.
#include <poll.h>

#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "libcrypto.h"
#include "ranks.h"

namespace {

using namespace spark_estimator::testing;

JobOptions Encrypted(int32_t cipher, Channel channel = Channel::kStream) {
  JobOptions options;
  options.channel = channel;
  options.cipher = cipher;
  options.crypto_library = LibcryptoPath().c_str();
  return options;
}

void CheckCollectives(Rank& me) {
  const auto size = static_cast<size_t>(me.size);
  for (const int64_t count : {int64_t{1}, int64_t{1000}, int64_t{300000}, int64_t{3000001}}) {
    std::vector<float> x(static_cast<size_t>(count), static_cast<float>(me.rank + 1));
    me.WaitOk(me.Allreduce("sum " + std::to_string(count), x.data(), x.data(), {count}));
    for (const float value : x) CHECK_EQ(value, static_cast<float>(me.size * (me.size + 1) / 2));
  }
  std::vector<int64_t> root(200000, me.rank);
  me.WaitOk(me.Broadcast("root", 1, root.data(), root.data(), {200000}, SE_INT64));
  CHECK_EQ(root[199999], int64_t{1});
  const std::vector<int32_t> rows(static_cast<size_t>(50000 * (me.rank + 1)), me.rank);
  const std::vector<int32_t> all =
      me.Gathered<int32_t>(me.Allgather("rows", rows.data(), {static_cast<int64_t>(rows.size())}, SE_INT32));
  CHECK_EQ(all.size(), 50000 * size * (size + 1) / 2);
  CHECK_EQ(all.back(), me.size - 1);
  std::vector<int32_t> shares(30000 * size);
  std::iota(shares.begin(), shares.end(), 0);
  const std::vector<int32_t> got =
      me.Gathered<int32_t>(me.Alltoall("shares", shares.data(), {static_cast<int64_t>(shares.size())}, {}, SE_INT32));
  CHECK_EQ(got[0], 30000 * me.rank);
  me.WaitOk(me.Barrier("end"));
}

void TheNumbersAreTheSame() {
  for (const int32_t cipher : {SE_AES_128_GCM, SE_CHACHA20_POLY1305}) {
    for (const int size : {2, 3}) RunRanks(size, Encrypted(cipher), CheckCollectives);
    JobOptions short_writes = Encrypted(cipher);
    short_writes.socket_buffer_bytes = 4096;
    RunRanks(3, short_writes, CheckCollectives);
    short_writes.data_connections = 3;
    RunRanks(3, short_writes, CheckCollectives);
    JobOptions hosts = Encrypted(cipher, Channel::kShared);
    hosts.ranks_per_host = 2;
    RunRanks(4, hosts, CheckCollectives);
  }
}

// Passes bytes on between two descriptors, both ways, and flips a bit of the one that is `spoiled_byte` bytes after the
// beginning of the direction from `first` to `second`.
void Relay(int first, int second, int64_t spoiled_byte, const std::atomic<bool>& stop) {
  int64_t passed = 0;
  pollfd waits[] = {{first, POLLIN, 0}, {second, POLLIN, 0}};
  while (!stop) {
    if (poll(waits, 2, 20) <= 0) continue;
    for (int side = 0; side < 2; ++side) {
      if (waits[side].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = recv(waits[side].fd, buffer, sizeof buffer, 0);
      if (n <= 0) {
        shutdown(waits[1 - side].fd, SHUT_RDWR);
        return;
      }
      if (side == 0 && spoiled_byte >= passed && spoiled_byte < passed + n) buffer[spoiled_byte - passed] ^= 4;
      if (side == 0) passed += n;
      if (send(waits[1 - side].fd, buffer, static_cast<size_t>(n), MSG_NOSIGNAL) != n) return;
    }
  }
}

void TamperingEndsTheJobAndNamesTheRank() {
  for (const bool control : {true, false}) {
    JobOptions options = Encrypted(SE_AES_128_GCM);
    Wiring wiring = Wire(2, options);
    int in[2];
    int out[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in), 0);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out), 0);
    for (int rank = 0; rank < 2; ++rank) {
      se_peer& peer = wiring.peers[static_cast<size_t>(rank)][0];
      int32_t& fd = control ? peer.control_fd : peer.data_fds[0];
      close(fd);
      fd = rank == 0 ? in[0] : out[0];
    }
    std::atomic<bool> stop{false};
    std::thread relay([&] { Relay(in[1], out[1], control ? 3000 : 100000, stop); });
    std::vector<std::thread> threads;
    std::atomic<int> refusals{0};
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Rank me(rank, 2, Join(wiring, rank));
        int32_t status = SE_OK;
        for (int step = 0; status == SE_OK && step < 1000; ++step) {
          std::vector<float> x(100000, 1);
          status = me.Wait(me.Allreduce("step " + std::to_string(step), x.data(), x.data(), {100000}));
        }
        CHECK_EQ(status, SE_PEER_LOST);
        const std::string text = se_last_error();
        CHECK_CONTAINS(text, "rank " + std::to_string(1 - rank));
        if (text.find("failed the authentication") != std::string::npos) ++refusals;
        se_engine_destroy(me.engine);
      });
    }
    for (std::thread& thread : threads) thread.join();
    stop = true;
    relay.join();
    for (const int fd : {in[1], out[1]}) close(fd);
    CHECK(refusals >= 1);
  }
}

void AnEngineNeedsALibraryForItsSecrets() {
  JobOptions options = Encrypted(SE_AES_128_GCM);
  options.crypto_library = "/nowhere/libcrypto.so";
  Wiring wiring = Wire(2, options);
  for (size_t rank = 0; rank < 2; ++rank) {
    se_engine* engine = nullptr;
    CHECK_EQ(se_engine_create(&wiring.configs[rank], wiring.peers[rank].data(), &engine), SE_SYSTEM_ERROR);
    CHECK_CONTAINS(se_last_error(), "/nowhere/libcrypto.so");
  }
}

void TheRecordLayerByItself() {
  se_sealer* sealer = nullptr;
  se_opener* opener = nullptr;
  const std::vector<uint8_t> secret(SE_SECRET_BYTES, 5);
  CHECK_EQ(se_sealer_create(LibcryptoPath().c_str(), SE_AES_128_GCM, secret.data(), &sealer), SE_OK);
  CHECK_EQ(se_opener_create(LibcryptoPath().c_str(), SE_AES_128_GCM, secret.data(), &opener), SE_OK);
  const std::vector<uint8_t> data(150000, 9);
  std::vector<uint8_t> records(data.size() + 3 * SE_RECORD_OVERHEAD);
  CHECK_EQ(se_seal(sealer, data.data(), static_cast<int64_t>(data.size()), records.data()), SE_OK);
  std::vector<uint8_t> opened(data.size());
  int64_t taken = 0;
  int64_t opened_bytes = 0;
  // All but the last byte: two records are whole.
  CHECK_EQ(
      se_open(opener, records.data(), static_cast<int64_t>(records.size()) - 1, opened.data(), &taken, &opened_bytes),
      SE_OK);
  CHECK_EQ(opened_bytes, int64_t{2 * SE_RECORD_BYTES});
  const int64_t rest = static_cast<int64_t>(records.size()) - taken;
  records.back() ^= 1;
  int64_t more = 0;
  CHECK_EQ(se_open(opener, records.data() + taken, rest, opened.data() + opened_bytes, &more, &opened_bytes),
           SE_PEER_LOST);
  CHECK_EQ(more, int64_t{0});
  se_sealer_destroy(sealer);
  se_opener_destroy(opener);
}

}  // namespace

int main() {
  return RunTests({{"the numbers are the same", TheNumbersAreTheSame},
                   {"tampering ends the job and names the rank", TamperingEndsTheJobAndNamesTheRank},
                   {"an engine needs a library for its secrets", AnEngineNeedsALibraryForItsSecrets},
                   {"the record layer by itself", TheRecordLayerByItself}});
}
