#include "engine/membership/relayed_frame.h"

#include "base/bytes.h"

namespace spark_estimator {
namespace {

constexpr size_t kHeaderBytes = 2 * sizeof(int32_t) + sizeof(uint32_t) + sizeof(uint16_t);

}  // namespace

std::string Encode(const RelayedFrame& frame) {
  ByteWriter writer;
  writer.Number(frame.source);
  writer.Number(frame.destination);
  writer.Number(frame.number);
  writer.Number(static_cast<uint16_t>(frame.type));
  std::string bytes = writer.Take();
  bytes.append(frame.payload);
  return bytes;
}

bool Decode(std::string_view payload, int size, RelayedFrame* frame) {
  if (payload.size() < kHeaderBytes) return false;
  ByteReader reader(payload);
  frame->source = reader.Number<int32_t>();
  frame->destination = reader.Number<int32_t>();
  frame->number = reader.Number<uint32_t>();
  frame->type = static_cast<FrameType>(reader.Number<uint16_t>());
  frame->payload = payload.substr(kHeaderBytes);
  return frame->source >= 0 && frame->source < size && frame->destination >= RelayedFrame::kFlood &&
         frame->destination < size && frame->destination != frame->source && frame->type != FrameType::kRelayed;
}

}  // namespace spark_estimator
