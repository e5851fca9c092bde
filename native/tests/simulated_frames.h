// Control frames over the modelled network, so that the engine's rounds of proposals run on a thousand ranks.
#ifndef SPARK_ESTIMATOR_TESTS_SIMULATED_FRAMES_H_
#define SPARK_ESTIMATOR_TESTS_SIMULATED_FRAMES_H_

#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/rounds/frame_rounds.h"
#include "transport/stream_group.h"

namespace spark_estimator::testing {

// One rank's FrameRounds with a group of streams as its control links. A frame is its length in 4 bytes and its
// payload.
class SimulatedFrames {
 public:
  SimulatedFrames(StreamGroup& group, size_t cache_capacity)
      : group_(group),
        rounds_(
            group.rank(), group.size(), cache_capacity,
            [this](int rank, std::string_view payload) { Send(rank, payload); }, [this](Time) { return Await(); }) {
    for (int distance = 1; distance < group.size(); distance *= 2) {
      const int from = (group.rank() - distance + group.size()) % group.size();
      sources_.push_back(from);
    }
  }

  FrameRounds& rounds() { return rounds_; }

 private:
  void Send(int rank, std::string_view payload) {
    const auto length = static_cast<uint32_t>(payload.size());
    std::string frame(sizeof(length), '\0');
    std::memcpy(frame.data(), &length, sizeof(length));
    frame += payload;
    const SendPart part{rank, reinterpret_cast<const uint8_t*>(frame.data()), frame.size()};
    failed_ = group_.Exchange(std::span(&part, 1), {});
  }

  Status Await() {
    SE_RETURN_IF_ERROR(failed_);
    bool any = false;
    for (const int from : sources_) {
      std::string& bytes = received_[from];
      uint8_t piece[4096];
      size_t moved = 0;
      SE_RETURN_IF_ERROR(group_.TryReceive(from, piece, sizeof(piece), &moved));
      any = any || moved > 0;
      bytes.append(reinterpret_cast<const char*>(piece), moved);
      uint32_t length = 0;
      while (bytes.size() >= sizeof(length)) {
        std::memcpy(&length, bytes.data(), sizeof(length));
        if (bytes.size() < sizeof(length) + length) break;
        const std::string payload = bytes.substr(sizeof(length), length);
        bytes.erase(0, sizeof(length) + length);
        if (!rounds_.Take(from, payload)) return Status(SE_INTERNAL, "a frame that is no proposal");
      }
    }
    return any ? Status::Ok() : group_.AwaitReady({}, sources_);
  }

  StreamGroup& group_;
  FrameRounds rounds_;
  std::vector<int> sources_;
  std::map<int, std::string> received_;
  Status failed_;
};

}  // namespace spark_estimator::testing

#endif  // SPARK_ESTIMATOR_TESTS_SIMULATED_FRAMES_H_
