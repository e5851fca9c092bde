// The messages of negotiation: written messages are read back equal, and no others are read.
#include "engine/wire/message.h"

#include <string>

#include "check.h"
#include "spark_estimator/engine.h"

namespace {

using namespace spark_estimator;
using spark_estimator::testing::RunTests;

Requests OneRequest(bool int8) {
  Part part;
  part.dtype = SE_FLOAT32;
  part.dims = {3, 4};
  part.int8 = int8;
  Signature signature;
  signature.name = "gradients";
  signature.op = SE_ALLREDUCE;
  signature.parts = {part};
  Requests requests;
  requests.signatures = {signature};
  return requests;
}

void APartSaysWhetherItTravelsAsInt8() {
  for (const bool int8 : {false, true}) {
    Requests read;
    CHECK(Decode(Encode(OneRequest(int8)), &read));
    CHECK_EQ(read.signatures.at(0).parts.at(0).int8, int8);
    CHECK(read.signatures[0].parts[0].dims == OneRequest(int8).signatures[0].parts[0].dims);
  }
}

// Of 256 values of the byte two mean something: the others are refused, not treated as one of these.
void AFlagIsZeroOrOne() {
  std::string bytes = Encode(OneRequest(true));
  const size_t place = bytes.size() - sizeof(uint32_t) - 1;  // the count of splits is last
  CHECK_EQ(bytes.at(place), 1);
  Requests read;
  for (const int value : {2, 0x80, 0xff}) {
    bytes[place] = static_cast<char>(value);
    CHECK(!Decode(bytes, &read));
  }
}

}  // namespace

int main() {
  return RunTests({{"a part says whether it travels as int8", APartSaysWhetherItTravelsAsInt8},
                   {"a flag is zero or one", AFlagIsZeroOrOne}});
}
