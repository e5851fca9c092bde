#include "tensorflow/nodes.h"

#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorflow/tensorflow_api.h"
#include "tensorflow/waiting_threads.h"

namespace spark_estimator {
namespace {

constexpr size_t kMessageBytes = 8192;

// What the engine can compute with, and what it moves as bytes.
constexpr const char* kSendable =
    "T: list({uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double, bool}) >= 1";
constexpr const char* kMovable = "T: list({numbertype, bool}) >= 1";

// The shapes that a graph can know before it runs.
enum class Shapes {
  kOfInputs,
  kScalar,
  kUnknown
};

struct OpForm {
  const char* name;
  std::array<const char*, 2> inputs;
  std::array<const char*, 2> outputs;
  std::array<const char*, 5> attributes;  // beside those that all have
  Shapes shapes;
  bool in_place;  // output i has the shape and, if TensorFlow forwards it, the memory of input i
};

// Factors are tensors of float64: TensorFlow's float attributes have 32 bits, and would change float64's results.
constexpr std::array<OpForm, 8> kForms = {{
    {"SparkEstimatorAllreduce",
     {"tensors: T"},
     {"reduced: T"},
     {kSendable, "reduce_op: int", "prescale_factor: tensor", "postscale_factor: tensor", "residues: string = ''"},
     Shapes::kOfInputs,
     true},
    {"SparkEstimatorReducescatter",
     {"tensors: T"},
     {"reduced: T"},
     {kSendable, "reduce_op: int", "prescale_factor: tensor", "postscale_factor: tensor"},
     Shapes::kUnknown,
     false},
    {"SparkEstimatorAllgather", {"tensors: T"}, {"gathered: T"}, {kSendable}, Shapes::kUnknown, false},
    {"SparkEstimatorBroadcast", {"tensors: T"}, {"copied: T"}, {kSendable, "root_rank: int"}, Shapes::kOfInputs, true},
    {"SparkEstimatorBroadcastVariables",
     {"tensors: T"},
     {"copied: T"},
     {kMovable, "root_rank: int"},
     Shapes::kOfInputs,
     true},
    {"SparkEstimatorAlltoall",
     {"tensors: T", "splits: int32"},
     {"rows: T", "received: int32"},
     {kSendable},
     Shapes::kUnknown,
     false},
    {"SparkEstimatorAgree", {}, {}, {"text: string"}, Shapes::kUnknown, false},
    {"SparkEstimatorQuestion", {}, {"answer: int32"}, {"text: string"}, Shapes::kScalar, false},
}};

bool Has(const OpForm& form, std::string_view attribute) {
  for (const char* each : form.attributes) {
    if (each == nullptr) continue;
    const std::string_view specification(each);
    if (specification.substr(0, specification.find(':')) == attribute) return true;
  }
  return false;
}

// TensorFlow's registry belongs to the process, and its callbacks get no pointer of this library to find an object by:
// the reason for these globals. They are made once and never destroyed.
std::atomic<const TensorflowApi*> api_in_use = nullptr;
std::atomic<se_tensorflow_work> work_in_use = nullptr;

const TensorflowApi& Api() { return *api_in_use.load(std::memory_order_acquire); }

WaitingThreads& Threads() {
  static auto* const threads = new WaitingThreads;
  return *threads;
}

// A TF_Status that is freed at the end of its scope.
class TfStatusScope {
 public:
  TfStatusScope() : status_(Api().NewStatus()) {}
  ~TfStatusScope() { Api().DeleteStatus(status_); }
  TfStatusScope(const TfStatusScope&) = delete;
  TfStatusScope& operator=(const TfStatusScope&) = delete;

  TfStatus* get() { return status_; }
  bool ok() const { return Api().GetCode(status_) == kTfOk; }
  void Set(int code, const char* message) { Api().SetStatus(status_, code, message); }

 private:
  TfStatus* status_;
};

// What one node does, from its attributes.
struct Node {
  const OpForm* form = nullptr;
  std::string request;
  std::string text;
  std::string process_set_ranks;
  int32_t reduce_op = SE_SUM;
  int32_t root_rank = 0;
  int32_t process_set = 0;
  double prescale = 1.0;
  double postscale = 1.0;
};

class AttributeReader {
 public:
  AttributeReader(TfOpKernelConstruction* construction, TfStatusScope* status)
      : construction_(construction), status_(status) {}

  void Read(const char* name, std::string* value) {
    int32_t list = 0;
    int32_t bytes = 0;
    if (status_->ok()) Api().OpKernelConstruction_GetAttrSize(construction_, name, &list, &bytes, status_->get());
    if (!status_->ok() || bytes <= 0) return;
    value->resize(static_cast<size_t>(bytes));
    Api().OpKernelConstruction_GetAttrString(construction_, name, value->data(), value->size(), status_->get());
  }
  void Read(const char* name, int32_t* value) {
    if (status_->ok()) Api().OpKernelConstruction_GetAttrInt32(construction_, name, value, status_->get());
  }
  void Read(const char* name, bool* value) {
    unsigned char byte = 0;
    if (status_->ok()) Api().OpKernelConstruction_GetAttrBool(construction_, name, &byte, status_->get());
    *value = byte != 0;
  }
  // A scalar of float64.
  void Read(const char* name, double* value) {
    TfTensor* tensor = nullptr;
    if (status_->ok()) Api().OpKernelConstruction_GetAttrTensor(construction_, name, &tensor, status_->get());
    if (!status_->ok()) return;
    if (Api().TensorByteSize(tensor) == sizeof *value) {
      std::memcpy(value, Api().TensorData(tensor), sizeof *value);
    } else {
      const std::string message = std::string("attribute ") + name + " is not one number of float64";
      status_->Set(kTfInvalidArgument, message.c_str());
    }
    Api().DeleteTensor(tensor);
  }

 private:
  TfOpKernelConstruction* construction_;
  TfStatusScope* status_;
};

// Removes `/then/_7`, as TensorFlow puts before the nodes of a branch or body after the name of its cond, case or
// while.
bool RemoveBranch(std::string_view* name) {
  const size_t number = name->rfind("/_");
  if (number == std::string_view::npos || name->find_first_not_of("0123456789", number + 2) != std::string_view::npos) {
    return false;
  }
  const size_t branch = name->substr(0, number).rfind('/');
  if (branch == std::string_view::npos) return false;
  name->remove_suffix(name->size() - branch);
  return true;
}

// Removes the last part of a name, with the slash before it: all of it, or from a slash on.
bool RemoveLast(std::string_view* name, std::string_view last) {
  if (!name->ends_with(last)) return false;
  const size_t rest = name->size() - last.size();
  if (rest > 0 && (*name)[rest - 1] != '/') return false;
  name->remove_suffix(rest > 0 ? last.size() + 1 : last.size());
  return true;
}

// Removes the name of a cond, case or while: its scope and, for that of a gradient, a name below the scope.
void RemoveControlFlow(std::string_view* name, std::string_view scope) {
  if (scope.empty()) {
    RemoveLast(name, name->substr(name->rfind('/') + 1));
    return;
  }
  for (size_t start = name->rfind(scope); start != std::string_view::npos; start = name->rfind(scope, start - 1)) {
    const size_t end = start + scope.size();
    if ((start == 0 || (*name)[start - 1] == '/') && (end == name->size() || (*name)[end] == '/')) {
      name->remove_suffix(name->size() - (start == 0 ? 0 : start - 1));
      return;
    }
    if (start == 0) return;
  }
}

// The prefix that distinguishes copies of a node: TensorFlow puts it before a node's name if a graph is imported below
// a prefix, or if a function's body replaces a call of it. Each such copy is a separate request, with the same name on
// ranks that build the same graph, as in Horovod, whose requests have the names of their nodes.
//
// `built_as` has the name that the node was built with in its graph, after a line for each cond, case or while around
// it: its scope. What TensorFlow puts before a name for these makes no copy. It has the names and the numbers of what
// is built around it, which differ between ranks where one has built another optimizer or writes summaries.
std::string Copy(std::string_view name, std::string_view built_as) {
  const size_t line = built_as.rfind('\n');
  const std::string_view node = built_as.substr(line == std::string_view::npos ? 0 : line + 1);
  if (!RemoveLast(&name, node)) return "@" + std::string(name);
  std::string_view scopes = line == std::string_view::npos ? "" : built_as.substr(0, line + 1);
  while (!scopes.empty() && RemoveBranch(&name)) {
    scopes.remove_suffix(1);
    const size_t start = scopes.rfind('\n') + 1;  // 0 where there is no other line
    RemoveControlFlow(&name, scopes.substr(start));
    scopes = scopes.substr(0, start);
  }
  return name.empty() ? "" : "@" + std::string(name);
}

using NodePointer = std::shared_ptr<const Node>;

// A kernel is the pointer to its node: TensorFlow may delete it while its last run still ends.
void* CreateKernel(TfOpKernelConstruction* construction, const OpForm& form) {
  TfStatusScope status;
  try {
    Node node;
    AttributeReader reader(construction, &status);
    bool by_node_name = false;
    node.form = &form;
    reader.Read("request", &node.request);
    reader.Read("by_node_name", &by_node_name);
    reader.Read("process_set_id", &node.process_set);
    reader.Read("process_set_ranks", &node.process_set_ranks);
    std::string built_as;
    reader.Read("node_name", &built_as);
    if (Has(form, "text")) reader.Read("text", &node.text);
    if (Has(form, "residues")) reader.Read("residues", &node.text);
    if (Has(form, "root_rank")) reader.Read("root_rank", &node.root_rank);
    if (Has(form, "reduce_op")) {
      reader.Read("reduce_op", &node.reduce_op);
      reader.Read("prescale_factor", &node.prescale);
      reader.Read("postscale_factor", &node.postscale);
    }
    if (status.ok()) {
      const TfStringView view = Api().OpKernelConstruction_GetName(construction);
      const std::string_view name(view.data, view.bytes);
      if (by_node_name) {
        node.request.append(".").append(name);
      } else if (!built_as.empty()) {
        node.request.append(Copy(name, built_as));
      }
      return new NodePointer(std::make_shared<const Node>(std::move(node)));
    }
  } catch (const std::exception& error) {
    status.Set(kTfResourceExhausted, error.what());
  }
  Api().OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void DestroyKernel(void* kernel) { delete static_cast<NodePointer*>(kernel); }

// One run of a node.
struct Run {
  NodePointer node;
  TfOpKernelContext* context = nullptr;
  std::vector<std::vector<int64_t>> dims;  // of the inputs
  std::vector<se_tensorflow_tensor> inputs;
  std::vector<void*> outputs;

  void Fail(int code, const std::string& message) const {
    TfStatusScope status;
    status.Set(code, message.c_str());
    Api().OpKernelContext_Failure(context, status.get());
  }
};

int32_t AllocateOutput(void* context, int32_t output, int32_t num_dims, const int64_t* dims, void** data) {
  const Run& run = *static_cast<const Run*>(context);
  const int dtype = Api().ExpectedOutputDataType(run.context, output);
  size_t bytes = Api().DataTypeSize(dtype);
  for (int32_t dim = 0; dim < num_dims; ++dim) bytes *= static_cast<size_t>(dims[dim]);
  TfStatusScope status;
  TfTensor* tensor = Api().AllocateOutput(run.context, output, dtype, dims, num_dims, bytes, status.get());
  if (!status.ok() || tensor == nullptr) return SE_NO_MEMORY;
  *data = Api().TensorData(tensor);
  Api().DeleteTensor(tensor);  // only this reference to it
  return SE_OK;
}

void TakeInputs(Run* run, TfStatusScope* status) {
  const int count = Api().NumInputs(run->context);
  for (int input = 0; input < count; ++input) {
    TfTensor* tensor = nullptr;
    Api().GetInput(run->context, input, &tensor, status->get());
    if (!status->ok()) return;
    std::vector<int64_t> dims(static_cast<size_t>(Api().NumDims(tensor)));
    for (size_t dim = 0; dim < dims.size(); ++dim) dims[dim] = Api().Dim(tensor, static_cast<int>(dim));
    run->inputs.push_back({Api().TensorData(tensor), static_cast<int64_t>(Api().TensorByteSize(tensor)),
                           Api().TensorType(tensor), static_cast<int32_t>(dims.size()), nullptr});
    run->dims.push_back(std::move(dims));
    // At once: TensorFlow forwards the memory of an input only while nothing else refers to it. The data stays: the
    // context has the input, or the output has its memory.
    Api().DeleteTensor(tensor);
  }
  for (size_t input = 0; input < run->inputs.size(); ++input) run->inputs[input].dims = run->dims[input].data();
}

void MakeOutputs(Run* run, TfStatusScope* status) {
  run->outputs.resize(static_cast<size_t>(Api().NumOutputs(run->context)), nullptr);
  if (!run->node->form->in_place) return;
  for (size_t output = 0; output < run->outputs.size(); ++output) {
    const int candidate = static_cast<int>(output);
    const std::vector<int64_t>& dims = run->dims[output];
    int forwarded = -1;
    TfTensor* tensor = Api().ForwardInputOrAllocateOutput(run->context, &candidate, 1, candidate, dims.data(),
                                                          static_cast<int>(dims.size()), &forwarded, status->get());
    if (!status->ok()) return;
    run->outputs[output] = Api().TensorData(tensor);
    Api().DeleteTensor(tensor);
  }
}

// TensorFlow's code for a failed run, which is Horovod's: a mismatch and a job that has not started are failed
// preconditions there.
int CodeOf(int32_t outcome) {
  switch (outcome) {
    case SE_INVALID_ARGUMENT:
    case SE_DUPLICATE_NAME:
      return kTfInvalidArgument;
    case SE_MISMATCH:
      return kTfFailedPrecondition;
    default:
      return kTfUnknown;
  }
}

void Work(Run* run) {
  const Node& node = *run->node;
  std::array<char, kMessageBytes> message{};
  se_tensorflow_call call{};
  call.struct_bytes = sizeof call;
  call.op = node.form->name;
  call.request = node.request.c_str();
  call.text = node.text.c_str();
  call.reduce_op = node.reduce_op;
  call.root_rank = node.root_rank;
  call.process_set = node.process_set;
  call.process_set_ranks = node.process_set_ranks.c_str();
  call.prescale = node.prescale;
  call.postscale = node.postscale;
  call.num_inputs = static_cast<int32_t>(run->inputs.size());
  call.num_outputs = static_cast<int32_t>(run->outputs.size());
  call.inputs = run->inputs.data();
  call.outputs = run->outputs.data();
  call.context = run;
  call.allocate = AllocateOutput;
  const int32_t outcome = work_in_use.load()(&call, message.data(), static_cast<int64_t>(message.size() - 1));
  if (outcome != SE_OK) {
    run->Fail(CodeOf(outcome), message.data());
  } else if (call.completed == 0) {
    run->Fail(kTfUnknown, node.request + ": an exception that could not be reported; stderr may have it");
  }
}

// Returns at once; `callback` is run when the outputs are there, or the run has failed.
void Compute(void* kernel, TfOpKernelContext* context, TfAsyncOpKernelDoneCallback* callback) {
  // TensorFlow passes the address of a std::function on its stack, which is destroyed when this function has returned
  // (tensorflow/c/kernels.cc, CAsyncOpKernel::ComputeAsync): it has to be copied, which TensorFlow's C API does not
  // offer. Both sides have libstdc++'s std::function, of one layout since GCC 4; the caller of se_tensorflow_register
  // makes sure that this TensorFlow's callback is one.
  const auto& on_stack = *reinterpret_cast<const std::function<void()>*>(callback);
  TfStatusScope status;
  try {
    const std::function<void()> done = on_stack;
    auto run = std::make_shared<Run>();
    run->context = context;
    run->node = *static_cast<const NodePointer*>(kernel);
    TakeInputs(run.get(), &status);
    if (status.ok()) MakeOutputs(run.get(), &status);
    if (status.ok()) {
      Threads().Run([run, done] {
        Work(run.get());
        done();
      });
      return;
    }
  } catch (const std::exception& error) {
    status.Set(kTfResourceExhausted, error.what());
  }
  Api().OpKernelContext_Failure(context, status.get());
  on_stack();
}

void InferShapes(TfShapeInferenceContext* context, TfStatus* status, Shapes shapes) {
  Api().ShapeInferenceContextSetUnknownShape(context, status);  // of all outputs
  if (shapes == Shapes::kUnknown) return;
  // Only the first: TensorFlow's C API refuses others ("0 < i" for "i < 0" in tensorflow/c/ops.cc). The rest of a group
  // get theirs where the graph is built, and from the graph's file where it is loaded.
  TfStatusScope of_first;
  TfShapeHandle* shape = nullptr;
  if (shapes == Shapes::kScalar) {
    shape = Api().ShapeInferenceContextScalar(context);
  } else {
    shape = Api().NewShapeHandle();
    Api().ShapeInferenceContextGetInput(context, 0, shape, of_first.get());
  }
  if (of_first.ok()) Api().ShapeInferenceContextSetOutput(context, 0, shape, of_first.get());
  Api().DeleteShapeHandle(shape);
}

template <Shapes kShapes>
void Infer(TfShapeInferenceContext* context, TfStatus* status) {
  InferShapes(context, status, kShapes);
}

template <size_t kForm>
void* Create(TfOpKernelConstruction* construction) {
  return CreateKernel(construction, kForms[kForm]);
}

template <size_t kForm>
Status RegisterForm() {
  const OpForm& form = kForms[kForm];
  TfOpDefinitionBuilder* op = Api().NewOpDefinitionBuilder(form.name);
  for (const char* each : form.inputs) {
    if (each != nullptr) Api().OpDefinitionBuilderAddInput(op, each);
  }
  for (const char* each : form.outputs) {
    if (each != nullptr) Api().OpDefinitionBuilderAddOutput(op, each);
  }
  for (const char* each : form.attributes) {
    if (each != nullptr) Api().OpDefinitionBuilderAddAttr(op, each);
  }
  for (const char* each : {"request: string", "by_node_name: bool = false", "node_name: string = ''",
                           "process_set_id: int = 0", "process_set_ranks: string = ''"}) {
    Api().OpDefinitionBuilderAddAttr(op, each);
  }
  // So that it is neither computed when a graph is optimised nor merged with another of its kind.
  Api().OpDefinitionBuilderSetIsStateful(op, true);
  Api().OpDefinitionBuilderSetShapeInferenceFunction(op, form.shapes == Shapes::kOfInputs ? Infer<Shapes::kOfInputs>
                                                         : form.shapes == Shapes::kScalar ? Infer<Shapes::kScalar>
                                                                                          : Infer<Shapes::kUnknown>);
  TfStatusScope status;
  Api().RegisterOpDefinition(op, status.get());  // which deletes the builder
  if (status.ok()) {
    TfKernelBuilder* kernel = Api().NewAsyncKernelBuilder(form.name, "CPU", Create<kForm>, Compute, DestroyKernel);
    Api().RegisterKernelBuilder(form.name, kernel, status.get());  // which keeps the builder
  }
  if (status.ok()) return Status::Ok();
  return Status(SE_INTERNAL,
                std::string("TensorFlow refuses the op ") + form.name + ": " + Api().Message(status.get()));
}

template <size_t... kForm>
Status RegisterForms(std::index_sequence<kForm...>) {
  Status status;
  (void)((status = RegisterForm<kForm>(), status.ok()) && ...);
  return status;
}

}  // namespace

Status RegisterTensorflowNodes(const std::string& path, se_tensorflow_work work) {
  static auto* const mutex = new std::mutex;
  static auto* const outcome = new Status;  // of the one try to register
  std::lock_guard<std::mutex> lock(*mutex);
  if (api_in_use.load() == nullptr) {
    auto api = std::make_unique<TensorflowApi>();
    SE_RETURN_IF_ERROR(TensorflowApi::Open(path, api.get()));
    api_in_use = api.release();
    work_in_use = work;
    *outcome = RegisterForms(std::make_index_sequence<kForms.size()>());
  }
  work_in_use = work;
  return *outcome;
}

}  // namespace spark_estimator
