#include "engine/wire/message.h"

#include "base/bytes.h"
#include "base/dtype.h"

namespace spark_estimator {
namespace {

// Each listed item takes at least this number of bytes, so a count of more items than fit is invalid.
constexpr uint32_t kLeastItemBytes = 4;

// Reads a count of things, 0 when it cannot be true.
uint32_t Count(ByteReader& reader, size_t bytes) {
  const auto count = reader.Number<uint32_t>();
  if (static_cast<uint64_t>(count) * kLeastItemBytes <= bytes) return count;
  reader.Fail();
  return 0;
}

void Write(ByteWriter& writer, const Signature& signature) {
  writer.Text(signature.name);
  writer.Number(signature.number);
  writer.Number(signature.op);
  writer.Number(signature.reduce_op);
  writer.Number(signature.root_rank);
  writer.Number(signature.place);
  writer.Number(signature.prescale);
  writer.Number(signature.postscale);
  writer.Number(static_cast<uint32_t>(signature.parts.size()));
  for (const Part& part : signature.parts) {
    writer.Number(part.dtype);
    writer.Numbers(part.dims);
    writer.Flag(part.int8);
  }
  writer.Numbers(signature.splits);
}

Signature ReadSignature(ByteReader& reader, size_t bytes) {
  Signature signature;
  signature.name = reader.Text();
  signature.number = reader.Number<int64_t>();
  signature.op = reader.Number<int32_t>();
  signature.reduce_op = reader.Number<int32_t>();
  signature.root_rank = reader.Number<int32_t>();
  signature.place = reader.Number<int32_t>();
  signature.prescale = reader.Number<double>();
  signature.postscale = reader.Number<double>();
  const uint32_t parts = Count(reader, bytes);
  for (uint32_t i = 0; i < parts && reader.ok(); ++i) {
    Part part;
    part.dtype = reader.Number<int32_t>();
    part.dims = reader.Numbers();
    part.int8 = reader.Flag();
    signature.parts.push_back(std::move(part));
  }
  signature.splits = reader.Numbers();
  return signature;
}

void Write(ByteWriter& writer, const std::vector<Signature>& signatures) {
  writer.Number(static_cast<uint32_t>(signatures.size()));
  for (const Signature& signature : signatures) Write(writer, signature);
}

std::vector<Signature> ReadSignatures(ByteReader& reader, size_t bytes) {
  std::vector<Signature> signatures;
  const uint32_t count = Count(reader, bytes);
  for (uint32_t i = 0; i < count && reader.ok(); ++i) signatures.push_back(ReadSignature(reader, bytes));
  return signatures;
}

}  // namespace

int64_t Part::Elements() const {
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  return elements;
}

int64_t Part::Bytes() const { return Elements() * static_cast<int64_t>(DtypeBytes(dtype)); }

std::string FullName(const std::string& name, int64_t number) {
  return number == Signature::kNamed ? name : name + "." + std::to_string(number);
}

std::string Response::KindOfUnnamed() const {
  const size_t end = FullName("", number).size();
  return names[0].substr(0, names[0].size() - end);
}

int64_t Signature::Bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts) bytes += part.Bytes();
  return bytes;
}

std::string Encode(const Requests& requests) {
  ByteWriter writer;
  writer.Number(requests.epoch);
  writer.Number(requests.position);
  Write(writer, requests.signatures);
  return writer.Take();
}

bool Decode(std::string_view bytes, Requests* requests) {
  ByteReader reader(bytes);
  requests->epoch = reader.Number<uint32_t>();
  requests->position = reader.Number<uint32_t>();
  requests->signatures = ReadSignatures(reader, bytes.size());
  return reader.AtEnd();
}

std::string Encode(const std::vector<Response>& responses) {
  ByteWriter writer;
  writer.Number(static_cast<uint32_t>(responses.size()));
  for (const Response& response : responses) {
    writer.Number(static_cast<uint8_t>(response.kind));
    writer.Number(static_cast<uint32_t>(response.names.size()));
    for (const std::string& name : response.names) writer.Text(name);
    writer.Number(response.number);
    writer.Text(response.text);
    writer.Numbers(response.rows);
    Write(writer, response.signatures);
    writer.Number(response.last_joined);
    writer.Number(response.position);
  }
  return writer.Take();
}

bool Decode(std::string_view bytes, std::vector<Response>* responses) {
  ByteReader reader(bytes);
  const uint32_t count = Count(reader, bytes.size());
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    Response response;
    const auto kind = reader.Number<uint8_t>();
    if (kind > static_cast<uint8_t>(Response::Kind::kResume)) return false;
    response.kind = static_cast<Response::Kind>(kind);
    const uint32_t names = Count(reader, bytes.size());
    for (uint32_t n = 0; n < names && reader.ok(); ++n) response.names.push_back(reader.Text());
    response.number = reader.Number<int64_t>();
    response.text = reader.Text();
    response.rows = reader.Numbers();
    response.signatures = ReadSignatures(reader, bytes.size());
    response.last_joined = reader.Number<int32_t>();
    response.position = reader.Number<uint32_t>();
    responses->push_back(std::move(response));
  }
  return reader.AtEnd();
}

std::string Encode(const Hello& hello) {
  ByteWriter writer;
  writer.Number(hello.abi_version);
  writer.Number(hello.rank);
  writer.Number(hello.size);
  writer.Numbers(hello.visible_ranks);
  writer.Numbers(hello.settings);
  writer.Text(hello.name);
  return writer.Take();
}

bool Decode(std::string_view bytes, Hello* hello) {
  ByteReader reader(bytes);
  hello->abi_version = reader.Number<int32_t>();
  hello->rank = reader.Number<int32_t>();
  hello->size = reader.Number<int32_t>();
  hello->visible_ranks = reader.Numbers();
  hello->settings = reader.Numbers();
  hello->name = reader.Text();
  return reader.AtEnd();
}

std::string Encode(const Abort& abort) {
  ByteWriter writer;
  writer.Number(abort.lost_rank);
  writer.Text(abort.reason);
  return writer.Take();
}

bool Decode(std::string_view bytes, Abort* abort) {
  ByteReader reader(bytes);
  abort->lost_rank = reader.Number<int32_t>();
  abort->reason = reader.Text();
  return reader.AtEnd();
}

std::string Encode(const Goodbye& goodbye) {
  ByteWriter writer;
  writer.Number(goodbye.executed);
  writer.Number(goodbye.first_leaver);
  return writer.Take();
}

bool Decode(std::string_view bytes, Goodbye* goodbye) {
  ByteReader reader(bytes);
  goodbye->executed = reader.Number<int64_t>();
  goodbye->first_leaver = reader.Number<int32_t>();
  return reader.AtEnd();
}

std::string Encode(const RoundId& round) {
  ByteWriter writer;
  writer.Number(round.epoch);
  writer.Number(round.position);
  return writer.Take();
}

bool Decode(std::string_view bytes, RoundId* round) {
  ByteReader reader(bytes);
  round->epoch = reader.Number<uint32_t>();
  round->position = reader.Number<uint32_t>();
  return reader.AtEnd();
}

std::string Encode(const QuestionMessage& question) {
  ByteWriter writer;
  writer.Number(question.number);
  writer.Text(question.text);
  return writer.Take();
}

bool Decode(std::string_view bytes, QuestionMessage* question) {
  ByteReader reader(bytes);
  question->number = reader.Number<int64_t>();
  question->text = reader.Text();
  return reader.AtEnd();
}

}  // namespace spark_estimator
