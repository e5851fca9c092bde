// Makes the data connections that engines with an overlay want: what the processes of ranks do for them.
#ifndef SPARK_ESTIMATOR_TESTS_SWITCHBOARD_H_
#define SPARK_ESTIMATOR_TESTS_SWITCHBOARD_H_

#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "spark_estimator/engine.h"

namespace spark_estimator::testing {

class Switchboard {
 public:
  // Makes the connections of two ranks: what the lower one has of the higher, and the higher of the lower.
  using MakePair = std::function<void(int lower, int higher, se_peer* of_higher, se_peer* of_lower)>;

  Switchboard(int size, MakePair make_pair) : make_pair_(std::move(make_pair)), places_(static_cast<size_t>(size)) {}

  void Attach(int rank, se_engine* engine) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Place& place = places_[static_cast<size_t>(rank)];
    place.engine = engine;
    for (const se_peer& peer : place.early) Connect(engine, peer);
    place.early.clear();
    place.thread = std::thread([this, rank, engine] { Serve(rank, engine); });
  }
  // The engine has been shut down.
  void Detach(int rank) {
    Place& place = places_[static_cast<size_t>(rank)];
    place.thread.join();
    const std::lock_guard<std::mutex> lock(mutex_);
    place.engine = nullptr;
    place.gone = true;
  }
  int connections() const { return connections_; }

 private:
  struct Place {
    se_engine* engine = nullptr;
    bool gone = false;
    std::vector<se_peer> early;  // before it had an engine
    std::thread thread;
  };

  static void Connect(se_engine* engine, const se_peer& peer) {
    // An engine that has been shut down closes them.
    CHECK_EQ(se_connect_peer(engine, &peer), SE_OK);
  }

  void Serve(int rank, se_engine* engine) {
    while (true) {
      int32_t wanted = -1;
      const int32_t status = se_await_wanted_peer(engine, 60, &wanted);
      if (status == SE_SHUT_DOWN) return;
      if (status == SE_IN_PROGRESS) continue;
      CHECK_EQ(status, SE_OK);
      CHECK(wanted > rank);
      se_peer of_self{};
      se_peer of_peer{};
      make_pair_(rank, wanted, &of_peer, &of_self);
      const std::lock_guard<std::mutex> lock(mutex_);
      ++connections_;
      Connect(engine, of_peer);
      Place& place = places_[static_cast<size_t>(wanted)];
      if (place.engine != nullptr) {
        Connect(place.engine, of_self);
      } else if (!place.gone) {
        place.early.push_back(of_self);
      } else {
        for (int i = 0; i < of_self.data_count; ++i) close(of_self.data_fds[i]);
      }
    }
  }

  const MakePair make_pair_;
  std::mutex mutex_;
  std::vector<Place> places_;
  int connections_ = 0;
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_SWITCHBOARD_H_
