// The C ABI over Engine: checks arguments, turns Status into a code and a thread's last sentence. No logic of its own.
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/kernels.h"
#include "base/rows.h"
#include "engine/engine.h"
#include "spark_estimator/engine.h"
#include "transport/segment.h"

struct se_engine {
  std::unique_ptr<spark_estimator::Engine> engine;
  int generation = 0;  // of the process that made it, see Generation()
};

struct se_plan {
  se_engine* engine = nullptr;
  spark_estimator::Plan plan;
};

namespace {

using spark_estimator::Engine;
using spark_estimator::EngineConfig;
using spark_estimator::Part;
using spark_estimator::PeerConfig;
using spark_estimator::Seconds;
using spark_estimator::Signature;
using spark_estimator::Status;
using spark_estimator::TensorMemory;
using spark_estimator::UniqueFd;

constexpr size_t kLongestName = 4095;
constexpr int32_t kMostTensors = 1 << 20;
constexpr int32_t kMostDims = 64;

thread_local std::string last_error;

// How many forks this process is away from the first one that used the library: cheaper to ask than its number.
std::atomic<int> fork_generation{0};

int Generation() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); }); });
  return fork_generation.load(std::memory_order_relaxed);
}

int32_t Report(const Status& status) {
  if (!status.ok() && status.code() != SE_IN_PROGRESS) last_error = status.message();
  return status.code();
}

Status Invalid(std::string message) { return Status(SE_INVALID_ARGUMENT, std::move(message)); }

// No exception may cross the C ABI; the only one to be expected is a failed allocation.
template <typename Function>
int32_t Guarded(Function function) {
  try {
    return Report(function());
  } catch (const std::bad_alloc&) {
    return Report(Status(SE_NO_MEMORY, "the engine could not allocate memory"));
  } catch (const std::exception& error) {
    return Report(Status(SE_INTERNAL, error.what()));
  }
}

bool Forked(const se_engine* engine) { return engine->generation != fork_generation.load(std::memory_order_relaxed); }

Status Usable(const se_engine* engine) {
  if (engine == nullptr || !engine->engine) return Invalid("the engine is null");
  if (Forked(engine)) {
    return Invalid("this process was forked from the one that joined the job; a forked child cannot use its ring");
  }
  return Status::Ok();
}

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
  const auto element = static_cast<int64_t>(spark_estimator::DtypeBytes(tensor.dtype));
  if (element == 0) return Invalid(which + "unknown dtype code " + std::to_string(tensor.dtype));
  if (tensor.num_dims < 0 || tensor.num_dims > kMostDims || (tensor.num_dims > 0 && tensor.dims == nullptr)) {
    return Invalid(which + std::to_string(tensor.num_dims) + " dimensions");
  }
  part->dtype = tensor.dtype;
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
  const int64_t rows = part.dims.empty() ? 0 : part.dims[0];
  if (request.splits == nullptr) return Status::Ok();
  signature->splits.assign(request.splits, request.splits + size);
  int64_t total = 0;
  for (const int64_t split : signature->splits) {
    if (split < 0) return Invalid(label + "negative split " + std::to_string(split));
    if (__builtin_add_overflow(total, split, &total)) return Invalid(label + "the splits' sum overflows");
  }
  if (!part.dims.empty() && total != rows) {
    return Invalid(label + "the splits sum to " + std::to_string(total) + ", but the first dimension is " +
                   std::to_string(rows));
  }
  return Status::Ok();
}

// What the engine's own names for unnamed requests end in, before their numbers. No user's name may look like one.
constexpr const char* kUnnamedEnding = ".noname";

bool IsNameOfUnnamed(const std::string& name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  return digits < name.size() && name.substr(0, digits).ends_with(std::string(kUnnamedEnding) + ".");
}

Status ReadSignature(const se_request* request, int size, Signature* signature) {
  if (request == nullptr || request->struct_bytes != sizeof(se_request)) return Invalid("se_request has a wrong size");
  if (request->name == nullptr) return Invalid("a request needs a name");
  signature->name = request->name;
  if (signature->name.empty() || signature->name.size() > kLongestName) {
    return Invalid("a name must have 1 to " + std::to_string(kLongestName) + " bytes, not " +
                   std::to_string(signature->name.size()));
  }
  const std::string label = "request '" + signature->name + "': ";
  if (request->unnamed != 0 && request->unnamed != 1) return Invalid(label + "unnamed must be 0 or 1");
  if (request->unnamed != 0) {
    signature->number = 0;
    if (!signature->name.ends_with(kUnnamedEnding)) {
      return Invalid(label + "the kind of unnamed requests must end in '" + kUnnamedEnding + "'");
    }
  } else if (IsNameOfUnnamed(signature->name)) {
    return Invalid(label + "names like this one are given to requests without a name; use another");
  }
  const int32_t op = request->op;
  if (op < SE_ALLREDUCE || op > SE_JOIN) return Invalid(label + "unknown op code " + std::to_string(op));
  const bool reduces = op == SE_ALLREDUCE || op == SE_REDUCESCATTER;
  if (reduces && !spark_estimator::IsReduceOp(request->reduce_op)) {
    return Invalid(label + "unknown reduce op code " + std::to_string(request->reduce_op));
  }
  if (!CountFits(op, request->num_tensors) || (request->num_tensors > 0 && request->tensors == nullptr)) {
    return Invalid(label + std::to_string(request->num_tensors) + " tensors do not fit the op " +
                   spark_estimator::OpName(op));
  }
  signature->op = op;
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
  return ReadSplits(label, *request, size, signature);
}

bool NeedsOutput(int32_t op) { return op == SE_ALLREDUCE || op == SE_BROADCAST || op == SE_REDUCESCATTER; }

// Whether tensor `index` of `signature` can be read and written where it is said to lie.
Status CheckMemory(const Engine& engine, const Signature& signature, size_t index, const void* input,
                   const void* output) {
  const Part& part = signature.parts[index];
  const int64_t elements = part.Elements();
  int64_t written = NeedsOutput(signature.op) ? elements : 0;
  if (signature.op == SE_REDUCESCATTER && !part.dims.empty()) {
    written = spark_estimator::RowsOf(part.dims[0], engine.rank(), engine.size());
  }
  if ((elements == 0 || input != nullptr) && (elements == 0 || written == 0 || output != nullptr)) return Status::Ok();
  return Invalid("request '" + signature.name + "': tensor " + std::to_string(index) + " is null but has " +
                 std::to_string(elements) + " elements");
}

Status ReadRequest(const Engine& engine, const se_request* request, Signature* signature,
                   std::vector<TensorMemory>* memory) {
  SE_RETURN_IF_ERROR(ReadSignature(request, engine.size(), signature));
  for (int32_t i = 0; i < request->num_tensors; ++i) {
    const se_tensor& tensor = request->tensors[i];
    SE_RETURN_IF_ERROR(CheckMemory(engine, *signature, static_cast<size_t>(i), tensor.input, tensor.output));
    memory->push_back({tensor.input, tensor.output, tensor.output != nullptr ? tensor.output_bytes : 0});
  }
  return Status::Ok();
}

Status CheckPlan(const se_plan* plan, const void* const* inputs, void* const* outputs) {
  if (plan == nullptr) return Invalid("the plan is null");
  SE_RETURN_IF_ERROR(Usable(plan->engine));
  const Signature& signature = *plan->plan.signature;
  if (!signature.parts.empty() && (inputs == nullptr || (outputs == nullptr && NeedsOutput(signature.op)))) {
    return Invalid("request '" + signature.name + "': addresses are missing");
  }
  for (size_t i = 0; i < signature.parts.size(); ++i) {
    if (inputs[i] != nullptr && (outputs == nullptr || outputs[i] != nullptr)) continue;
    SE_RETURN_IF_ERROR(
        CheckMemory(*plan->engine->engine, signature, i, inputs[i], outputs != nullptr ? outputs[i] : nullptr));
  }
  return Status::Ok();
}

Status ReadConfig(const se_config* config, const se_peer* peers, EngineConfig* own, std::vector<PeerConfig>* others) {
  if (config == nullptr || config->struct_bytes != sizeof(se_config)) return Invalid("se_config has a wrong size");
  if (config->size < 1 || config->rank < 0 || config->rank >= config->size) {
    return Invalid("rank " + std::to_string(config->rank) + " of " + std::to_string(config->size) + " cannot be");
  }
  own->rank = config->rank;
  own->size = config->size;
  own->global_rank = config->global_rank;
  own->process_set = config->process_set;
  own->cores = std::max(1, config->cores);
  own->overlap = config->overlap != 0;
  own->affinity_core = config->affinity_core;
  own->hierarchical = config->hierarchical;
  own->cache_capacity = config->cache_capacity;
  own->autotune = config->autotune != 0;
  own->autotune_warmup_samples = config->autotune_warmup_samples;
  own->autotune_steps_per_sample = config->autotune_steps_per_sample;
  own->autotune_max_samples = config->autotune_max_samples;
  own->heartbeat_seconds = config->heartbeat_seconds;
  own->silence_seconds = config->silence_seconds;
  own->autotune_log = config->autotune_log != nullptr ? config->autotune_log : "";
  own->own_segment.Reset(config->own_segment_fd);
  own->fusion_threshold_bytes = config->fusion_threshold_bytes;
  own->start_timeout_seconds = config->start_timeout_seconds;
  own->stall_warning_seconds = config->stall_warning_seconds;
  own->stall_shutdown_seconds = config->stall_shutdown_seconds;
  own->spin_microseconds = config->spin_microseconds;
  own->name = config->name != nullptr ? config->name : "";
  if (config->size > 1 && peers == nullptr) return Invalid("a job of several ranks needs its peers");
  // All descriptors are taken over before anything can fail, as the interface says.
  for (int32_t i = 0; i + 1 < config->size; ++i) {
    PeerConfig peer;
    peer.rank = peers[i].rank;
    peer.global_rank = peers[i].global_rank;
    peer.control.Reset(peers[i].control_fd);
    peer.data.Reset(peers[i].data_fd);
    peer.segment.Reset(peers[i].segment_fd);
    peer.name = peers[i].name != nullptr ? peers[i].name : "";
    others->push_back(std::move(peer));
  }
  std::vector<bool> seen(static_cast<size_t>(config->size), false);
  for (const PeerConfig& peer : *others) {
    if (peer.rank < 0 || peer.rank >= config->size || peer.rank == config->rank ||
        seen[static_cast<size_t>(peer.rank)]) {
      return Invalid("the list of peers names rank " + std::to_string(peer.rank) + " wrongly or twice");
    }
    seen[static_cast<size_t>(peer.rank)] = true;
    if (!peer.control.valid() || !peer.data.valid()) {
      return Invalid("rank " + std::to_string(peer.rank) + " lacks a connection");
    }
  }
  return Status::Ok();
}

}  // namespace

extern "C" {

int32_t se_abi_version(void) { return SE_ABI_VERSION; }

const char* se_last_error(void) { return last_error.c_str(); }

const char* se_build_info(void) {
  static const std::string info =
      std::string("compiler ") + __VERSION__ + ", kernels " + spark_estimator::GetKernels().instruction_set;
  return info.c_str();
}

int64_t se_dtype_bytes(int32_t dtype) { return static_cast<int64_t>(spark_estimator::DtypeBytes(dtype)); }

int64_t se_rows_of(int64_t rows, int32_t rank, int32_t size) { return spark_estimator::RowsOf(rows, rank, size); }

int32_t se_segment_create(int32_t local_size, int32_t* fd) {
  return Guarded([&]() -> Status {
    if (local_size < 1 || fd == nullptr) return Invalid("a segment needs at least one rank");
    UniqueFd made;
    SE_RETURN_IF_ERROR(spark_estimator::Segment::Create(local_size, &made));
    *fd = made.Release();
    return Status::Ok();
  });
}

int32_t se_engine_create(const se_config* config, const se_peer* peers, se_engine** engine) {
  return Guarded([&]() -> Status {
    EngineConfig own;
    std::vector<PeerConfig> others;
    SE_RETURN_IF_ERROR(ReadConfig(config, peers, &own, &others));
    auto made = std::make_unique<se_engine>();
    made->generation = Generation();
    SE_RETURN_IF_ERROR(Engine::Create(std::move(own), std::move(others), &made->engine));
    *engine = made.release();
    return Status::Ok();
  });
}

int32_t se_submit(se_engine* engine, const se_request* request, int64_t* handle) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    auto signature = std::make_shared<Signature>();
    std::vector<TensorMemory> memory;
    SE_RETURN_IF_ERROR(ReadRequest(*engine->engine, request, signature.get(), &memory));
    return engine->engine->Submit(std::move(signature), std::move(memory), handle);
  });
}

int32_t se_run(se_engine* engine, const se_request* request, double timeout_seconds, int64_t* handle) {
  return Guarded([&]() -> Status {
    *handle = 0;
    SE_RETURN_IF_ERROR(Usable(engine));
    auto signature = std::make_shared<Signature>();
    std::vector<TensorMemory> memory;
    SE_RETURN_IF_ERROR(ReadRequest(*engine->engine, request, signature.get(), &memory));
    return engine->engine->Run(std::move(signature), std::move(memory), Seconds(timeout_seconds), handle);
  });
}

int32_t se_poll(se_engine* engine, int64_t handle) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    return engine->engine->Poll(handle);
  });
}

int32_t se_wait(se_engine* engine, int64_t handle, double timeout_seconds) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    return engine->engine->Wait(handle, Seconds(timeout_seconds));
  });
}

int32_t se_get_result(se_engine* engine, int64_t handle, int32_t tensor, se_result* result) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    return engine->engine->GetResult(handle, tensor, result);
  });
}

int32_t se_take_result_data(se_engine* engine, int64_t handle, int32_t tensor, void** data) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    return engine->engine->TakeResultData(handle, tensor, data);
  });
}

void se_free(void* data) { std::free(data); }

void se_release(se_engine* engine, int64_t handle) {
  if (Usable(engine).ok()) engine->engine->Release(handle);
}

int32_t se_plan_create(se_engine* engine, const se_request* request, se_plan** plan) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    auto signature = std::make_shared<Signature>();
    SE_RETURN_IF_ERROR(ReadSignature(request, engine->engine->size(), signature.get()));
    auto made = std::make_unique<se_plan>();
    made->engine = engine;
    made->plan.bytes = signature->Bytes();
    for (int32_t i = 0; i < request->num_tensors; ++i) {
      made->plan.output_bytes.push_back(request->tensors[i].output_bytes);
    }
    made->plan.signature = std::move(signature);
    *plan = made.release();
    return Status::Ok();
  });
}

int32_t se_plan_submit(se_plan* plan, const void* const* inputs, void* const* outputs, int32_t flags, int64_t* handle) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(CheckPlan(plan, inputs, outputs));
    return plan->engine->engine->SubmitPlan(plan->plan, inputs, outputs, (flags & SE_DEFER) != 0, handle);
  });
}

int32_t se_plan_run(se_plan* plan, const void* const* inputs, void* const* outputs, double timeout_seconds,
                    int64_t* handle) {
  return Guarded([&]() -> Status {
    *handle = 0;
    SE_RETURN_IF_ERROR(CheckPlan(plan, inputs, outputs));
    return plan->engine->engine->RunPlan(plan->plan, inputs, outputs, Seconds(timeout_seconds), handle);
  });
}

void se_plan_destroy(se_plan* plan) {
  if (plan == nullptr) return;
  if (Usable(plan->engine).ok()) plan->engine->engine->Retire(plan->plan);
  delete plan;
}

int32_t se_shared_allocate(se_engine* engine, int64_t bytes, void** data) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    if (bytes < 0) return Invalid("cannot allocate " + std::to_string(bytes) + " bytes");
    return engine->engine->AllocateShared(static_cast<size_t>(bytes), data);
  });
}

void se_shared_free(se_engine* engine, void* data) {
  Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    return engine->engine->FreeShared(data);
  });
}

int64_t se_counter(se_engine* engine, const char* name) {
  return Usable(engine).ok() && name != nullptr ? engine->engine->Counter(name) : -1;
}

const char* se_counter_names(void) { return Engine::CounterNames(); }

int32_t se_describe(se_engine* engine, const char* what, char* text, int64_t capacity, int64_t* bytes) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    std::string whole;
    SE_RETURN_IF_ERROR(engine->engine->Describe(what != nullptr ? what : "", &whole));
    *bytes = static_cast<int64_t>(whole.size());
    if (text == nullptr || capacity < 1) return Status::Ok();
    const size_t copied = std::min(whole.size(), static_cast<size_t>(capacity - 1));
    std::memcpy(text, whole.data(), copied);
    text[copied] = '\0';
    return Status::Ok();
  });
}

int32_t se_timeline_start(se_engine* engine, const char* path, int32_t mark_cycles) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    if (path == nullptr || *path == '\0') return Invalid("a timeline needs a path");
    return engine->engine->StartTimeline(path, mark_cycles != 0);
  });
}

int32_t se_timeline_stop(se_engine* engine) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    engine->engine->StopTimeline();
    return Status::Ok();
  });
}

int32_t se_await_question(se_engine* engine, double timeout_seconds, int64_t* question) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    return engine->engine->AwaitQuestion(Seconds(timeout_seconds), question);
  });
}

int32_t se_answer(se_engine* engine, int64_t question, const char* text) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    engine->engine->Answer(question, text != nullptr ? text : "");
    return Status::Ok();
  });
}

int32_t se_engine_shutdown(se_engine* engine) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    engine->engine->Shutdown();
    return Status::Ok();
  });
}

void se_engine_destroy(se_engine* engine) {
  if (engine == nullptr) return;
  // In a forked child the thread does not exist and must not be joined: the memory goes when the child does.
  if (engine->engine && Forked(engine)) return;
  delete engine;
}

void se_engine_abandon_after_fork(se_engine* engine) {
  if (engine != nullptr && engine->engine && Forked(engine)) engine->engine->AbandonAfterFork();
}

}  // extern "C"
