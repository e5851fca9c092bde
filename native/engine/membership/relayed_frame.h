// A control frame for ranks that its sender is not connected with, as other ranks pass it on.
#ifndef SPARK_ESTIMATOR_ENGINE_RELAYED_FRAME_H_
#define SPARK_ESTIMATOR_ENGINE_RELAYED_FRAME_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "transport/frame.h"

namespace spark_estimator {

struct RelayedFrame {
  static constexpr int32_t kToAll = -1;  // along the tree of the source
  static constexpr int32_t kFlood = -2;  // each rank passes it on to all its peers once, whichever of them have left

  int32_t source = 0;
  int32_t destination = 0;  // a rank, kToAll or kFlood
  uint32_t number = 0;      // of a flood, from 1; per source
  FrameType type{};
  std::string_view payload;
};

// The payload of a frame of type kRelayed.
std::string Encode(const RelayedFrame& frame);
// False for what no rank of a group of `size` sends. The decoded payload is a part of `payload`.
bool Decode(std::string_view payload, int size, RelayedFrame* frame);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_RELAYED_FRAME_H_
