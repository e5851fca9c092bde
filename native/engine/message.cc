#include "engine/message.h"

#include "base/bytes.h"

namespace spark_estimator {
namespace {

// A request or response takes more bytes than this, so a count that promises more than fit is a lie.
constexpr uint32_t kLeastItemBytes = 8;

bool PlausibleCount(uint32_t count, size_t bytes) { return static_cast<uint64_t>(count) * kLeastItemBytes <= bytes; }

}  // namespace

int64_t Signature::Elements() const {
  if (num_buffers == 0) return 0;
  int64_t elements = num_buffers == 1 ? 1 : 0;
  for (const int64_t dim : dims) {
    if (num_buffers == 1) {
      elements *= dim;
    } else {
      elements += dim;
    }
  }
  return elements;
}

std::string Encode(const std::vector<Signature>& requests) {
  ByteWriter writer;
  writer.Number(static_cast<uint32_t>(requests.size()));
  for (const Signature& request : requests) {
    writer.Text(request.name);
    writer.Number(request.op);
    writer.Number(request.dtype);
    writer.Number(request.reduce_op);
    writer.Number(request.root_rank);
    writer.Number(request.process_set);
    writer.Number(request.num_buffers);
    writer.Numbers(request.dims);
    writer.Number(request.prescale);
    writer.Number(request.postscale);
  }
  return writer.Take();
}

bool Decode(std::string_view bytes, std::vector<Signature>* requests) {
  ByteReader reader(bytes);
  const auto count = reader.Number<uint32_t>();
  if (!PlausibleCount(count, bytes.size())) return false;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    Signature request;
    request.name = reader.Text();
    request.op = reader.Number<int32_t>();
    request.dtype = reader.Number<int32_t>();
    request.reduce_op = reader.Number<int32_t>();
    request.root_rank = reader.Number<int32_t>();
    request.process_set = reader.Number<int32_t>();
    request.num_buffers = reader.Number<int32_t>();
    request.dims = reader.Numbers();
    request.prescale = reader.Number<double>();
    request.postscale = reader.Number<double>();
    requests->push_back(std::move(request));
  }
  return reader.AtEnd();
}

std::string Encode(const std::vector<Response>& responses) {
  ByteWriter writer;
  writer.Number(static_cast<uint32_t>(responses.size()));
  for (const Response& response : responses) {
    writer.Number(response.sequence);
    writer.Number(static_cast<uint32_t>(response.names.size()));
    for (const std::string& name : response.names) writer.Text(name);
    writer.Text(response.error);
    writer.Numbers(response.rows);
  }
  return writer.Take();
}

bool Decode(std::string_view bytes, std::vector<Response>* responses) {
  ByteReader reader(bytes);
  const auto count = reader.Number<uint32_t>();
  if (!PlausibleCount(count, bytes.size())) return false;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    Response response;
    response.sequence = reader.Number<int64_t>();
    const auto names = reader.Number<uint32_t>();
    for (uint32_t n = 0; n < names && reader.ok(); ++n) response.names.push_back(reader.Text());
    response.error = reader.Text();
    response.rows = reader.Numbers();
    responses->push_back(std::move(response));
  }
  return reader.AtEnd();
}

std::string Encode(const Hello& hello) {
  ByteWriter writer;
  writer.Number(hello.abi_version);
  writer.Number(hello.rank);
  writer.Number(hello.size);
  writer.Number(static_cast<uint8_t>(hello.sees_all_segments));
  writer.Number(hello.fusion_threshold_bytes);
  return writer.Take();
}

bool Decode(std::string_view bytes, Hello* hello) {
  ByteReader reader(bytes);
  hello->abi_version = reader.Number<int32_t>();
  hello->rank = reader.Number<int32_t>();
  hello->size = reader.Number<int32_t>();
  hello->sees_all_segments = reader.Number<uint8_t>() != 0;
  hello->fusion_threshold_bytes = reader.Number<int64_t>();
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
  writer.Number(goodbye.executed_sequence);
  writer.Number(goodbye.first_leaver);
  return writer.Take();
}

bool Decode(std::string_view bytes, Goodbye* goodbye) {
  ByteReader reader(bytes);
  goodbye->executed_sequence = reader.Number<int64_t>();
  goodbye->first_leaver = reader.Number<int32_t>();
  return reader.AtEnd();
}

}  // namespace spark_estimator
