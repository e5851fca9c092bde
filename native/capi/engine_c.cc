// The C ABI over Engine: checks arguments, turns Status into a code and a thread's last error text. It has no other
// logic.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/kept_memory.h"
#include "base/kernels/kernels.h"
#include "base/rows.h"
#include "capi/encryption.h"
#include "capi/guarded.h"
#include "capi/read_request.h"
#include "engine/engine.h"
#include "engine/membership/overlay.h"
#include "spark_estimator/engine.h"
#include "transport/segment.h"

struct se_engine {
  std::unique_ptr<spark_estimator::Engine> engine;
  std::string crypto_library;
  int generation = 0;  // of the process that made it, see Generation()
};

struct se_plan {
  se_engine* engine = nullptr;
  spark_estimator::Plan plan;
};

namespace {

using spark_estimator::CheckMemory;
using spark_estimator::CudaStream;
using spark_estimator::Engine;
using spark_estimator::EngineConfig;
using spark_estimator::GpuPlace;
using spark_estimator::Guarded;
using spark_estimator::LateSockets;
using spark_estimator::NeedsOutput;
using spark_estimator::PeerConfig;
using spark_estimator::ReadRequest;
using spark_estimator::ReadSignature;
using spark_estimator::Seconds;
using spark_estimator::Signature;
using spark_estimator::Status;
using spark_estimator::StreamSocket;
using spark_estimator::TensorMemory;
using spark_estimator::UniqueFd;

// How many forks this process is away from the first one that used the library: cheaper to ask than its number.
std::atomic<int> fork_generation{0};

int Generation() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); }); });
  return fork_generation.load(std::memory_order_relaxed);
}

Status Invalid(std::string message) { return Status(SE_INVALID_ARGUMENT, std::move(message)); }

bool Forked(const se_engine* engine) { return engine->generation != fork_generation.load(std::memory_order_relaxed); }

bool IsUsable(const se_engine* engine) { return engine != nullptr && engine->engine && !Forked(engine); }

Status Usable(const se_engine* engine) {
  if (engine == nullptr || !engine->engine) return Invalid("the engine is null");
  if (Forked(engine)) {
    return Invalid("this process was forked from the one that joined the job; a forked child cannot use its ring");
  }
  return Status::Ok();
}

// The same for what asks an engine for something. `what`, a name or nullptr, is what is refused when there is no
// memory.
template <typename Function>
int32_t GuardedIn(const se_engine* engine, const char* what, Function&& function) noexcept {
  if (!IsUsable(engine)) return Guarded([&] { return Usable(engine); });
  bool thrown = false;
  const Status status = spark_estimator::Contain(engine->engine->no_memory(), [&] {
    thrown = true;
    Status returned = function();
    thrown = false;
    return returned;
  });
  if (!thrown || what == nullptr) return spark_estimator::Report(status);
  return spark_estimator::Report(
      spark_estimator::WithinIfPossible(status, [&] { return "'" + std::string(what) + "' was not submitted"; }));
}

const char* NameOf(const se_request* request) {
  return request != nullptr && request->struct_bytes == sizeof(se_request) ? request->name : nullptr;
}

const se_engine* EngineOf(const se_plan* plan) { return plan != nullptr ? plan->engine : nullptr; }

const char* NameOf(const se_plan* plan) { return plan != nullptr ? plan->plan.signature->name.c_str() : nullptr; }

Status CheckPlan(const se_plan* plan, const void* const* inputs, void* const* outputs) {
  const Signature& signature = *plan->plan.signature;
  if (!signature.parts.empty() && (inputs == nullptr || (outputs == nullptr && NeedsOutput(signature.op)))) {
    return Invalid("operation '" + signature.name + "': addresses are missing");
  }
  for (size_t i = 0; i < signature.parts.size(); ++i) {
    if (inputs[i] != nullptr && (outputs == nullptr || outputs[i] != nullptr)) continue;
    SE_RETURN_IF_ERROR(
        CheckMemory(*plan->engine->engine, signature, i, inputs[i], outputs != nullptr ? outputs[i] : nullptr));
  }
  return Status::Ok();
}

CudaStream StreamOf(void* stream) { return static_cast<CudaStream>(stream); }

GpuPlace PlaceOf(const se_request& request) { return {request.device, StreamOf(request.stream)}; }

int32_t DataCount(const se_peer& peer) { return std::clamp(peer.data_count, 0, SE_MAX_DATA); }

// All descriptors are taken over before anything can fail, as the interface documents.
void TakeDescriptors(const se_config& config, const se_peer* peers, EngineConfig* settings,
                     std::vector<PeerConfig>* others) {
  settings->own_segment.Reset(config.own_segment_fd);
  if (config.size < 2 || peers == nullptr) return;
  try {
    others->resize(static_cast<size_t>(config.size - 1));
    for (PeerConfig& peer : *others) peer.data.Reserve(SE_MAX_DATA);
  } catch (...) {
    for (int32_t i = 0; i + 1 < config.size; ++i) {
      for (const int fd : {peers[i].control_fd, peers[i].segment_fd}) UniqueFd(fd).Reset(-1);
      for (int32_t data = 0; data < DataCount(peers[i]); ++data) UniqueFd(peers[i].data_fds[data]).Reset(-1);
    }
    throw;
  }
  for (size_t i = 0; i < others->size(); ++i) {
    PeerConfig& peer = (*others)[i];
    peer.control = UniqueFd(peers[i].control_fd);
    peer.segment.Reset(peers[i].segment_fd);
    for (int32_t data = 0; data < DataCount(peers[i]); ++data) peer.data.Add(UniqueFd(peers[i].data_fds[data]));
  }
}

// Whether connections with `rank` can be made after the start.
Status CheckLate(const Engine& engine, int32_t rank) {
  if (engine.has_overlay() && rank >= 0 && rank < engine.size() && rank != engine.rank()) return Status::Ok();
  return Invalid("rank " + std::to_string(rank) + " cannot be connected later");
}

Status ReadConfig(const se_config* config, const se_peer* peers, EngineConfig* settings,
                  std::vector<PeerConfig>* others) {
  if (config == nullptr || config->struct_bytes != sizeof(se_config)) return Invalid("se_config has a wrong size");
  if (config->size < 1 || config->rank < 0 || config->rank >= config->size) {
    return Invalid("rank " + std::to_string(config->rank) + " of " + std::to_string(config->size) + " cannot be");
  }
  TakeDescriptors(*config, peers, settings, others);
  settings->rank = config->rank;
  settings->size = config->size;
  settings->global_rank = config->global_rank;
  settings->process_set = config->process_set;
  settings->overlay = config->overlay != 0;
  settings->cores = std::max(1, config->cores);
  settings->overlap = config->overlap != 0;
  settings->affinity_core = config->affinity_core;
  settings->hierarchical = config->hierarchical;
  settings->cache_capacity = config->cache_capacity;
  settings->heartbeat_seconds = config->heartbeat_seconds;
  settings->silence_seconds = config->silence_seconds;
  settings->fusion_threshold_bytes = config->fusion_threshold_bytes;
  settings->start_timeout_seconds = config->start_timeout_seconds;
  settings->stall_warning_seconds = config->stall_warning_seconds;
  settings->stall_shutdown_seconds = config->stall_shutdown_seconds;
  settings->spin_microseconds = config->spin_microseconds;
  settings->name = config->name != nullptr ? config->name : "";
  if (config->gpu_operations < SE_GPU_AUTO || config->gpu_operations > SE_GPU_STAGED) {
    return Invalid("gpu_operations " + std::to_string(config->gpu_operations) + " cannot be");
  }
  settings->gpu_operations = config->gpu_operations;
  settings->ranks_on_host = config->ranks_on_host;
  settings->gpu_libraries.cuda = config->cuda_library != nullptr ? config->cuda_library : "";
  settings->gpu_libraries.nccl = config->nccl_library != nullptr ? config->nccl_library : "";
  if (config->size > 1 && peers == nullptr) return Invalid("a job of several ranks needs its peers");
  for (size_t i = 0; i < others->size(); ++i) {
    PeerConfig& peer = (*others)[i];
    peer.rank = peers[i].rank;
    peer.global_rank = peers[i].global_rank;
    peer.name = peers[i].name != nullptr ? peers[i].name : "";
  }
  const std::vector<int> neighbours = spark_estimator::overlay::Neighbours(config->rank, config->size);
  std::vector<bool> seen(static_cast<size_t>(config->size), false);
  for (const PeerConfig& peer : *others) {
    if (peer.rank < 0 || peer.rank >= config->size || peer.rank == config->rank ||
        seen[static_cast<size_t>(peer.rank)]) {
      return Invalid("the list of peers names rank " + std::to_string(peer.rank) + " wrongly or twice");
    }
    seen[static_cast<size_t>(peer.rank)] = true;
    const auto data = peer.data.sockets();
    const bool has_data = (!data.empty() || settings->overlay) && std::ranges::all_of(data, &StreamSocket::valid);
    const bool needs_control = !settings->overlay || std::ranges::binary_search(neighbours, peer.rank);
    if ((needs_control && !peer.control.valid()) || !has_data) {
      return Invalid("rank " + std::to_string(peer.rank) + " lacks a connection");
    }
  }
  return EncryptConnections(*config, peers, others);
}

}  // namespace

extern "C" {

int32_t se_abi_version(void) { return SE_ABI_VERSION; }

const char* se_last_error(void) { return spark_estimator::LastFailure().message().c_str(); }

const char* se_build_info(void) {
  const char* text = "";
  Guarded([&] {
    static const std::string info =
        std::string("compiler ") + __VERSION__ + ", kernels " + spark_estimator::GetKernels().instruction_set;
    text = info.c_str();
    return Status::Ok();
  });
  return text;
}

int64_t se_dtype_bytes(int32_t dtype) { return static_cast<int64_t>(spark_estimator::DtypeBytes(dtype)); }

int64_t se_rows_of(int64_t rows, int32_t rank, int32_t size) { return spark_estimator::RowsOf(rows, rank, size); }

int32_t se_neighbours(int32_t rank, int32_t size, int32_t* ranks) {
  int32_t count = 0;
  (void)Guarded([&] {
    for (const int neighbour : spark_estimator::overlay::Neighbours(rank, size)) ranks[count++] = neighbour;
    return Status::Ok();
  });
  return count;
}

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
    EngineConfig settings;
    std::vector<PeerConfig> others;
    SE_RETURN_IF_ERROR(ReadConfig(config, peers, &settings, &others));
    auto made = std::make_unique<se_engine>();
    made->generation = Generation();
    if (config->crypto_library != nullptr) made->crypto_library = config->crypto_library;
    SE_RETURN_IF_ERROR(Engine::Create(std::move(settings), std::move(others), &made->engine));
    *engine = made.release();
    return Status::Ok();
  });
}

int32_t se_submit(se_engine* engine, const se_request* request, int64_t* handle) {
  return GuardedIn(engine, NameOf(request), [&]() -> Status {
    auto signature = std::make_shared<Signature>();
    std::vector<TensorMemory> memory;
    SE_RETURN_IF_ERROR(ReadRequest(*engine->engine, request, signature.get(), &memory));
    return engine->engine->Submit(std::move(signature), std::move(memory), PlaceOf(*request), handle);
  });
}

int32_t se_run(se_engine* engine, const se_request* request, double timeout_seconds, int64_t* handle) {
  *handle = 0;
  return GuardedIn(engine, NameOf(request), [&]() -> Status {
    auto signature = std::make_shared<Signature>();
    std::vector<TensorMemory> memory;
    SE_RETURN_IF_ERROR(ReadRequest(*engine->engine, request, signature.get(), &memory));
    return engine->engine->Run(std::move(signature), std::move(memory), PlaceOf(*request), Seconds(timeout_seconds),
                               handle);
  });
}

int32_t se_poll(se_engine* engine, int64_t handle) {
  return GuardedIn(engine, nullptr, [&]() -> Status { return engine->engine->Poll(handle); });
}

int32_t se_wait(se_engine* engine, int64_t handle, double timeout_seconds) {
  return GuardedIn(engine, nullptr, [&]() -> Status { return engine->engine->Wait(handle, Seconds(timeout_seconds)); });
}

int32_t se_get_result(se_engine* engine, int64_t handle, int32_t tensor, se_result* result) {
  return GuardedIn(engine, nullptr, [&]() -> Status { return engine->engine->GetResult(handle, tensor, result); });
}

int32_t se_take_result_data(se_engine* engine, int64_t handle, int32_t tensor, void** data) {
  return GuardedIn(engine, nullptr, [&]() -> Status { return engine->engine->TakeResultData(handle, tensor, data); });
}

int32_t se_await_on_stream(se_engine* engine, int64_t handle, void* stream) {
  return GuardedIn(engine, nullptr,
                   [&]() -> Status { return engine->engine->AwaitOnStream(handle, StreamOf(stream)); });
}

int32_t se_copy_result(se_engine* engine, int64_t handle, int32_t tensor, void* output, void* stream) {
  return GuardedIn(engine, nullptr,
                   [&]() -> Status { return engine->engine->CopyResult(handle, tensor, output, StreamOf(stream)); });
}

void se_free(void* data) { spark_estimator::FreeMemory(data); }

void se_release(se_engine* engine, int64_t handle) {
  if (IsUsable(engine)) engine->engine->Release(handle);
}

int32_t se_plan_create(se_engine* engine, const se_request* request, se_plan** plan) {
  return GuardedIn(engine, nullptr, [&]() -> Status {
    auto signature = std::make_shared<Signature>();
    SE_RETURN_IF_ERROR(ReadSignature(request, engine->engine->size(), signature.get()));
    auto made = std::make_unique<se_plan>();
    made->engine = engine;
    made->plan.bytes = signature->Bytes();
    for (int32_t i = 0; i < request->num_tensors; ++i) {
      made->plan.output_bytes.push_back(request->tensors[i].output_bytes);
      made->plan.residues.push_back(request->tensors[i].residue);
    }
    made->plan.device = request->device;
    made->plan.signature = std::move(signature);
    *plan = made.release();
    return Status::Ok();
  });
}

int32_t se_plan_submit(se_plan* plan, const void* const* inputs, void* const* outputs, void* stream, int32_t flags,
                       int64_t* handle) {
  return GuardedIn(EngineOf(plan), NameOf(plan), [&]() -> Status {
    SE_RETURN_IF_ERROR(CheckPlan(plan, inputs, outputs));
    return plan->engine->engine->SubmitPlan(plan->plan, inputs, outputs, StreamOf(stream), (flags & SE_DEFER) != 0,
                                            handle);
  });
}

int32_t se_plan_run(se_plan* plan, const void* const* inputs, void* const* outputs, void* stream,
                    double timeout_seconds, int64_t* handle) {
  *handle = 0;
  return GuardedIn(EngineOf(plan), NameOf(plan), [&]() -> Status {
    SE_RETURN_IF_ERROR(CheckPlan(plan, inputs, outputs));
    return plan->engine->engine->RunPlan(plan->plan, inputs, outputs, StreamOf(stream), Seconds(timeout_seconds),
                                         handle);
  });
}

void se_plan_destroy(se_plan* plan) {
  if (plan == nullptr) return;
  if (IsUsable(plan->engine)) plan->engine->engine->Retire(plan->plan);
  delete plan;
}

int32_t se_shared_allocate(se_engine* engine, int64_t bytes, void** data) {
  return GuardedIn(engine, nullptr, [&]() -> Status {
    if (bytes < 0) return Invalid("cannot allocate " + std::to_string(bytes) + " bytes");
    return engine->engine->AllocateShared(static_cast<size_t>(bytes), data);
  });
}

void se_shared_free(se_engine* engine, void* data) {
  GuardedIn(engine, nullptr, [&]() -> Status { return engine->engine->FreeShared(data); });
}

int64_t se_counter(se_engine* engine, const char* name) {
  return IsUsable(engine) && name != nullptr ? engine->engine->Counter(name) : -1;
}

const char* se_counter_names(void) {
  const char* names = "";
  Guarded([&] {
    names = Engine::CounterNames();
    return Status::Ok();
  });
  return names;
}

int32_t se_describe(se_engine* engine, const char* what, char* text, int64_t capacity, int64_t* bytes) {
  return GuardedIn(engine, nullptr, [&]() -> Status {
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
  return GuardedIn(engine, nullptr, [&]() -> Status {
    if (path == nullptr || *path == '\0') return Invalid("a timeline needs a path");
    return engine->engine->StartTimeline(path, mark_cycles != 0);
  });
}

int32_t se_timeline_stop(se_engine* engine) {
  return GuardedIn(engine, nullptr, [&]() -> Status {
    engine->engine->StopTimeline();
    return Status::Ok();
  });
}

int32_t se_await_question(se_engine* engine, double timeout_seconds, int64_t* question) {
  return GuardedIn(engine, nullptr,
                   [&]() -> Status { return engine->engine->AwaitQuestion(Seconds(timeout_seconds), question); });
}

int32_t se_answer(se_engine* engine, int64_t question, const char* text) {
  return GuardedIn(engine, nullptr, [&]() -> Status {
    engine->engine->Answer(question, text != nullptr ? text : "");
    return Status::Ok();
  });
}

int32_t se_await_wanted_peer(se_engine* engine, double timeout_seconds, int32_t* rank) {
  return GuardedIn(engine, nullptr,
                   [&]() -> Status { return engine->engine->AwaitWantedPeer(Seconds(timeout_seconds), rank); });
}

int32_t se_connect_peer(se_engine* engine, const se_peer* peer) {
  std::array<UniqueFd, SE_MAX_DATA> sockets;  // before anything can fail
  const auto count = static_cast<size_t>(DataCount(*peer));
  for (size_t i = 0; i < count; ++i) sockets[i].Reset(peer->data_fds[i]);
  return GuardedIn(engine, nullptr, [&]() -> Status {
    SE_RETURN_IF_ERROR(CheckLate(*engine->engine, peer->rank));
    if (count == 0 || !std::all_of(sockets.begin(), sockets.begin() + count, [](auto& fd) { return fd.valid(); })) {
      return Invalid("rank " + std::to_string(peer->rank) + " lacks a connection");
    }
    LateSockets::Arrival arrival{peer->rank, {}, ""};
    arrival.socket.Reserve(count);
    for (size_t i = 0; i < count; ++i) arrival.socket.Add(std::move(sockets[i]));
    SE_RETURN_IF_ERROR(spark_estimator::EncryptData(engine->crypto_library, *peer, &arrival.socket));
    engine->engine->Deliver(std::move(arrival));
    return Status::Ok();
  });
}

int32_t se_refuse_peer(se_engine* engine, int32_t rank, const char* reason) {
  return GuardedIn(engine, nullptr, [&]() -> Status {
    SE_RETURN_IF_ERROR(CheckLate(*engine->engine, rank));
    engine->engine->Deliver({rank, {}, reason != nullptr ? reason : "it was refused"});
    return Status::Ok();
  });
}

int32_t se_order_ring(se_engine* engine, const int32_t* ranks, int32_t halves_in_ring) {
  return GuardedIn(engine, nullptr, [&]() -> Status {
    return engine->engine->OrderRing(std::vector<int>(ranks, ranks + engine->engine->size()), halves_in_ring != 0);
  });
}

int32_t se_engine_shutdown(se_engine* engine) {
  return GuardedIn(engine, nullptr, [&]() -> Status {
    engine->engine->Shutdown();
    return Status::Ok();
  });
}

void se_engine_destroy(se_engine* engine) {
  if (engine == nullptr) return;
  // In a forked child the thread does not exist and must not be joined: the memory is freed when the child ends.
  if (engine->engine && Forked(engine)) return;
  delete engine;
}

void se_engine_abandon_after_fork(se_engine* engine) {
  if (engine != nullptr && engine->engine && Forked(engine)) engine->engine->AbandonAfterFork();
}

}  // extern "C"
