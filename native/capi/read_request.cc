#include "capi/read_request.h"

#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/rows.h"
#include "engine/wire/validity.h"

namespace spark_estimator {
namespace {

constexpr size_t kLongestName = 4095;
constexpr int32_t kMostTensors = 1 << 20;
constexpr int32_t kMostDims = 64;

Status Invalid(std::string message) { return Status(SE_INVALID_ARGUMENT, std::move(message)); }

bool CountFits(int32_t op, int32_t tensors) {
  switch (op) {
    case SE_BARRIER:
    case SE_JOIN:
      return tensors == 0;
    case SE_BROADCAST:
    case SE_ALLTOALL:
      return tensors == 1;
    default:
      return tensors >= 1 && tensors <= kMostTensors;
  }
}

// One tensor's dtype and shape; its bytes must be countable.
Status ReadPart(const std::string& label, int32_t index, const se_tensor& tensor, Part* part) {
  const std::string which = label + "tensor " + std::to_string(index) + ": ";
  const auto element = static_cast<int64_t>(DtypeBytes(tensor.dtype));
  if (element == 0) return Invalid(which + "unknown dtype code " + std::to_string(tensor.dtype));
  if (tensor.num_dims < 0 || tensor.num_dims > kMostDims || (tensor.num_dims > 0 && tensor.dims == nullptr)) {
    return Invalid(which + std::to_string(tensor.num_dims) + " dimensions");
  }
  part->dtype = tensor.dtype;
  part->int8 = tensor.residue != nullptr;
  part->dims.assign(tensor.dims, tensor.dims + tensor.num_dims);
  int64_t bytes = element;
  for (const int64_t dim : part->dims) {
    if (dim < 0) return Invalid(which + "negative dimension " + std::to_string(dim));
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return Invalid(which + "its bytes cannot be counted");
  }
  return Status::Ok();
}

Status ReadSplits(const std::string& label, const se_request& request, int size, Signature* signature) {
  if (request.op != SE_ALLTOALL) return Status::Ok();
  const Part& part = signature->parts[0];
  if (request.splits == nullptr) return Status::Ok();
  signature->splits.assign(request.splits, request.splits + size);
  int64_t total = 0;
  for (const int64_t split : signature->splits) {
    if (split < 0) return Invalid(label + "negative split " + std::to_string(split));
    if (__builtin_add_overflow(total, split, &total)) return Invalid(label + "the splits' sum overflows");
  }
  if (total != part.dims[0]) {
    return Invalid(label + "the splits sum to " + std::to_string(total) + ", but the first dimension is " +
                   std::to_string(part.dims[0]));
  }
  return Status::Ok();
}

// What the engine's own names for unnamed requests end in, before their numbers. No user's name may look like one.
constexpr const char* kUnnamedEnding = ".noname";

bool IsNameOfUnnamed(const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  return digits < name.size() && name.substr(0, digits).ends_with(std::string(kUnnamedEnding) + ".");
}

}  // namespace

Status ReadSignature(const se_request* request, int size, Signature* signature) {
  if (request == nullptr || request->struct_bytes != sizeof(se_request)) return Invalid("se_request has a wrong size");
  if (request->name == nullptr) return Invalid("an operation needs a name");
  signature->name = request->name;
  if (signature->name.empty() || signature->name.size() > kLongestName) {
    return Invalid("a name must have 1 to " + std::to_string(kLongestName) + " bytes, not " +
                   std::to_string(signature->name.size()));
  }
  const std::string label = "operation '" + signature->name + "': ";
  if (request->unnamed != 0 && request->unnamed != 1) return Invalid(label + "unnamed must be 0 or 1");
  if (request->unnamed != 0) {
    signature->number = 0;
    if (!signature->name.ends_with(kUnnamedEnding)) {
      return Invalid(label + "the kind of an operation without a name must end in '" + kUnnamedEnding + "'");
    }
  } else if (IsNameOfUnnamed(signature->name)) {
    return Invalid(label + "the engine gives names like this one to operations without a name; use another");
  }
  const int32_t op = request->op;
  if (op < SE_ALLREDUCE || op > SE_JOIN) return Invalid(label + "unknown op code " + std::to_string(op));
  const bool reduces = op == SE_ALLREDUCE || op == SE_REDUCESCATTER;
  if (reduces && !IsReduceOp(request->reduce_op)) {
    return Invalid(label + "unknown reduce op code " + std::to_string(request->reduce_op));
  }
  if (!CountFits(op, request->num_tensors) || (request->num_tensors > 0 && request->tensors == nullptr)) {
    return Invalid(label + std::to_string(request->num_tensors) + " tensors do not fit the op " + OpName(op));
  }
  if (request->place != SE_HOST && (request->place != SE_GPU || op == SE_JOIN)) {
    return Invalid(label + "there is no place " + std::to_string(request->place) + " for the op " + OpName(op));
  }
  if (request->place == SE_GPU && request->device < 0) {
    return Invalid(label + "there is no CUDA device " + std::to_string(request->device));
  }
  signature->op = op;
  signature->place = request->place;
  signature->reduce_op = reduces ? request->reduce_op : SE_SUM;
  signature->root_rank = op == SE_BROADCAST ? request->root_rank : 0;
  signature->prescale = reduces ? request->prescale : 1.0;
  signature->postscale = reduces ? request->postscale : 1.0;
  int64_t total = 0;
  for (int32_t i = 0; i < request->num_tensors; ++i) {
    Part part;
    SE_RETURN_IF_ERROR(ReadPart(label, i, request->tensors[i], &part));
    if (__builtin_add_overflow(total, part.Bytes(), &total)) return Invalid(label + "its bytes cannot be counted");
    signature->parts.push_back(std::move(part));
  }
  const std::string why = WhyImpossible(*signature, size);
  if (!why.empty()) return Invalid(label + why);
  return ReadSplits(label, *request, size, signature);
}

bool NeedsOutput(int32_t op) { return op == SE_ALLREDUCE || op == SE_BROADCAST || op == SE_REDUCESCATTER; }

Status CheckMemory(const Engine& engine, const Signature& signature, size_t index, const void* input,
                   const void* output) {
  const Part& part = signature.parts[index];
  const int64_t elements = part.Elements();
  int64_t written = NeedsOutput(signature.op) ? elements : 0;
  if (signature.op == SE_REDUCESCATTER && !part.dims.empty()) {
    written = RowsOf(part.dims[0], engine.rank(), engine.size());
  }
  if ((elements == 0 || input != nullptr) && (elements == 0 || written == 0 || output != nullptr)) return Status::Ok();
  return Invalid("operation '" + signature.name + "': tensor " + std::to_string(index) + " is null but has " +
                 std::to_string(elements) + " elements");
}

Status ReadRequest(const Engine& engine, const se_request* request, Signature* signature,
                   std::vector<TensorMemory>* memory) {
  SE_RETURN_IF_ERROR(ReadSignature(request, engine.size(), signature));
  for (int32_t i = 0; i < request->num_tensors; ++i) {
    const se_tensor& tensor = request->tensors[i];
    SE_RETURN_IF_ERROR(CheckMemory(engine, *signature, static_cast<size_t>(i), tensor.input, tensor.output));
    memory->push_back(
        {tensor.input, tensor.output, tensor.output != nullptr ? tensor.output_bytes : 0, tensor.residue});
  }
  return Status::Ok();
}

}  // namespace spark_estimator
