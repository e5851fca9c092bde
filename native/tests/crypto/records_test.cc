// Records: the bytes that are specified, and no record other than the next one is opened.
#include "crypto/records.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "libcrypto.h"

namespace {

using namespace spark_estimator;
using namespace spark_estimator::testing;

constexpr Cipher kCiphers[] = {Cipher::kAes128Gcm, Cipher::kChaCha20Poly1305};

struct Ends {
  RecordSealer sealer;
  RecordOpener opener;
};

Ends MakeEnds(Cipher cipher, uint64_t records_per_key = kRecordsPerKey, uint64_t opener_records_per_key = 0) {
  Ends ends;
  const auto library = OpenLibcrypto();
  CHECK(RecordSealer::Make(library, cipher, SecretFrom(0), &ends.sealer, records_per_key).ok());
  CHECK(RecordOpener::Make(library, cipher, SecretFrom(0), &ends.opener,
                           opener_records_per_key > 0 ? opener_records_per_key : records_per_key)
            .ok());
  return ends;
}

std::vector<uint8_t> Seal(RecordSealer& sealer, const std::vector<uint8_t>& data) {
  std::vector<uint8_t> record(kRecordHeaderBytes + data.size() + kTagBytes);
  CHECK(sealer.Seal(data.data(), data.size(), record.data()));
  return record;
}

bool Opens(RecordOpener& opener, const std::vector<uint8_t>& record, std::vector<uint8_t>* data) {
  const size_t body_bytes = RecordOpener::BodyBytes(record.data());
  if (body_bytes == 0 || body_bytes + kRecordHeaderBytes != record.size()) return false;
  data->resize(body_bytes - kTagBytes);
  return opener.Open(record.data(), record.data() + kRecordHeaderBytes, data->data());
}

std::vector<uint8_t> Bytes(size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random()); });
  return bytes;
}

std::string Hex(const std::vector<uint8_t>& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

// Computed by another implementation: Python's hmac and the package `cryptography`, with a new key after two records.
void TheBytesAreThoseOfTheSpecification() {
  const std::vector<std::vector<std::string>> expected = {
      {"150000008ee6be66677283d980a7c8e0583d5452affb3eb64f", "1500000014dbe2207da8630d63b52bc550526a7c031bc66779",
       "150000002188e2e88f6ebac3fe1dfea5ee443f3f046341e2d4"},
      {"15000000d2a8e432a55cffeed7f7e11cb019cc421bd9515b17", "150000000d84eeaefb75ee6444d43d6ed7cff180433d83d7b6",
       "150000008cc4e5bc822f08fe97b4da1093e85751d29fff3aaf"}};
  for (size_t i = 0; i < expected.size(); ++i) {
    Ends ends = MakeEnds(kCiphers[i], 2);
    for (const std::string& record : expected[i]) CHECK_EQ(Hex(Seal(ends.sealer, {'s', 'p', 'a', 'r', 'k'})), record);
  }
}

void WhatIsSealedIsOpened() {
  for (const Cipher cipher : kCiphers) {
    Ends ends = MakeEnds(cipher);
    for (const size_t bytes : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{4096}, kMaxPlaintextBytes}) {
      const std::vector<uint8_t> data = Bytes(bytes);
      std::vector<uint8_t> opened;
      CHECK(Opens(ends.opener, Seal(ends.sealer, data), &opened));
      CHECK(opened == data);
    }
    std::vector<uint8_t> record(kMaxRecordBytes + 1);
    const std::vector<uint8_t> too_long = Bytes(kMaxPlaintextBytes + 1);
    CHECK(!ends.sealer.Seal(too_long.data(), too_long.size(), record.data()));
    CHECK(!ends.sealer.Seal(too_long.data(), 0, record.data()));
  }
}

void EveryFlippedBitIsFound() {
  for (const Cipher cipher : kCiphers) {
    Ends ends = MakeEnds(cipher);
    const std::vector<uint8_t> record = Seal(ends.sealer, Bytes(20));
    for (size_t bit = 0; bit < 8 * record.size(); ++bit) {
      std::vector<uint8_t> flipped = record;
      flipped[bit / 8] = static_cast<uint8_t>(flipped[bit / 8] ^ (1 << bit % 8));
      std::vector<uint8_t> opened;
      Ends fresh = MakeEnds(cipher);
      CHECK(!Opens(fresh.opener, flipped, &opened));
    }
  }
}

void OnlyTheNextRecordIsOpened() {
  for (const Cipher cipher : kCiphers) {
    Ends ends = MakeEnds(cipher);
    const std::vector<uint8_t> first = Seal(ends.sealer, Bytes(100, 1));
    const std::vector<uint8_t> second = Seal(ends.sealer, Bytes(100, 2));
    std::vector<uint8_t> opened;
    Ends fresh = MakeEnds(cipher);
    CHECK(!Opens(fresh.opener, second, &opened));  // the first is left out, or arrives later
    CHECK(Opens(ends.opener, first, &opened));
    CHECK(!Opens(ends.opener, first, &opened));   // repeated
    CHECK(!Opens(ends.opener, second, &opened));  // nothing is opened after a refusal
    RecordOpener other;
    CHECK(RecordOpener::Make(OpenLibcrypto(), cipher, SecretFrom(9), &other).ok());
    CHECK(!Opens(other, first, &opened));
  }
}

void KeysAreReplacedAtTheSameRecord() {
  for (const Cipher cipher : kCiphers) {
    Ends ends = MakeEnds(cipher, 3);
    Ends unlike = MakeEnds(cipher, 3, 4);
    for (unsigned i = 0; i < 10; ++i) {
      const std::vector<uint8_t> data = Bytes(50, i);
      std::vector<uint8_t> opened;
      CHECK(Opens(ends.opener, Seal(ends.sealer, data), &opened));
      CHECK(opened == data);
      if (i < 4) CHECK_EQ(Opens(unlike.opener, Seal(unlike.sealer, data), &opened), i < 3);
    }
  }
}

void LengthsThatCannotBeAreRefused() {
  const auto body_bytes = [](uint32_t length) {
    const uint8_t header[] = {static_cast<uint8_t>(length), static_cast<uint8_t>(length >> 8),
                              static_cast<uint8_t>(length >> 16), static_cast<uint8_t>(length >> 24)};
    return RecordOpener::BodyBytes(header);
  };
  for (const uint32_t length : {0u, 1u, 16u, 65553u, 0x80000000u, 0xffffffffu}) CHECK_EQ(body_bytes(length), size_t{0});
  CHECK_EQ(body_bytes(17), size_t{17});
  CHECK_EQ(body_bytes(65552), kMaxBodyBytes);
}

void AnUnusableLibraryIsAnError() {
  std::shared_ptr<const Libcrypto> library;
  CHECK_CONTAINS(Libcrypto::Open("", &library).message(), "absolute path");
  CHECK_CONTAINS(Libcrypto::Open("libcrypto.so.3", &library).message(), "absolute path");
  CHECK_CONTAINS(Libcrypto::Open("/nowhere/libcrypto.so.3", &library).message(), "/nowhere");
  RecordSealer sealer;
  CHECK_CONTAINS(RecordSealer::Make(OpenLibcrypto(), static_cast<Cipher>(7), SecretFrom(0), &sealer).message(), "7");
}

}  // namespace

int main() {
  return RunTests({{"the bytes are those of the specification", TheBytesAreThoseOfTheSpecification},
                   {"what is sealed is opened", WhatIsSealedIsOpened},
                   {"every flipped bit is found", EveryFlippedBitIsFound},
                   {"only the next record is opened", OnlyTheNextRecordIsOpened},
                   {"keys are replaced at the same record", KeysAreReplacedAtTheSameRecord},
                   {"lengths that cannot be are refused", LengthsThatCannotBeAreRefused},
                   {"an unusable library is an error", AnUnusableLibraryIsAnError}});
}
