// Fuzzes the readers of all messages between ranks: no bytes may hurt them, and what they accept means one thing only.
#include "engine/wire/message.h"
#include "input.h"

using namespace spark_estimator;

namespace {

// What was read and is written again is read as the same: a reader that drops or invents something shows.
template <typename Message>
void Read(std::string_view bytes) {
  Message message;
  if (!Decode(bytes, &message)) return;
  const std::string written = Encode(message);
  fuzz::Require(written == bytes, "what was read is written as the same bytes");
  Message again;
  fuzz::Require(Decode(written, &again), "what was written can be read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  switch (input.Byte() % 7) {
    case 0:
      Read<Requests>(input.Rest());
      break;
    case 1:
      Read<std::vector<Response>>(input.Rest());
      break;
    case 2:
      Read<Hello>(input.Rest());
      break;
    case 3:
      Read<Goodbye>(input.Rest());
      break;
    case 4:
      Read<Abort>(input.Rest());
      break;
    case 5:
      Read<RoundId>(input.Rest());
      break;
    default:
      Read<QuestionMessage>(input.Rest());
  }
  return 0;
}
