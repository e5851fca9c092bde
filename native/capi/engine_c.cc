// The C ABI over Engine: checks arguments, turns Status into a code and a thread's last sentence. No logic of its own.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/kernels.h"
#include "engine/engine.h"
#include "spark_estimator/engine.h"
#include "transport/segment.h"

struct se_engine {
  std::unique_ptr<spark_estimator::Engine> engine;
};

namespace {

using spark_estimator::Engine;
using spark_estimator::EngineConfig;
using spark_estimator::PeerConfig;
using spark_estimator::Seconds;
using spark_estimator::Signature;
using spark_estimator::Status;
using spark_estimator::UniqueFd;

constexpr size_t kLongestName = 4095;

thread_local std::string last_error;

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

Status Usable(const se_engine* engine) {
  if (engine == nullptr || !engine->engine) return Invalid("the engine is null");
  if (!engine->engine->OwnedByThisProcess()) {
    return Invalid("this process was forked from the one that joined the job; a forked child cannot use its ring");
  }
  return Status::Ok();
}

Status ReadRequest(const se_request* request, Signature* signature, std::vector<se_buffer>* buffers) {
  if (request == nullptr || request->struct_bytes != sizeof(se_request)) return Invalid("se_request has a wrong size");
  if (request->name == nullptr) return Invalid("a request needs a name");
  signature->name = request->name;
  if (signature->name.empty() || signature->name.size() > kLongestName) {
    return Invalid("a name must have 1 to " + std::to_string(kLongestName) + " bytes, not " +
                   std::to_string(signature->name.size()));
  }
  const std::string label = "request '" + signature->name + "': ";
  if (request->op < SE_ALLREDUCE || request->op > SE_BARRIER)
    return Invalid(label + "unknown op code " + std::to_string(request->op));
  if (spark_estimator::DtypeBytes(request->dtype) == 0)
    return Invalid(label + "unknown dtype code " + std::to_string(request->dtype));
  if (request->op == SE_ALLREDUCE && !spark_estimator::IsReduceOp(request->reduce_op)) {
    return Invalid(label + "unknown reduce op code " + std::to_string(request->reduce_op));
  }
  const int32_t n = request->num_buffers;
  const bool count_fits = request->op == SE_BARRIER ? n == 0 : request->op == SE_ALLREDUCE ? n >= 1 : n == 1;
  if (!count_fits)
    return Invalid(label + std::to_string(n) + " buffers do not fit the op " + spark_estimator::OpName(request->op));
  if (request->num_dims < 0 || (n > 1 && request->num_dims != n)) {
    return Invalid(label + std::to_string(request->num_dims) + " dims do not fit " + std::to_string(n) + " buffers");
  }
  signature->op = request->op;
  signature->dtype = request->dtype;
  signature->reduce_op = request->op == SE_ALLREDUCE ? request->reduce_op : SE_SUM;
  signature->root_rank = request->op == SE_BROADCAST ? request->root_rank : 0;
  signature->process_set = request->process_set;
  signature->num_buffers = n;
  signature->prescale = request->op == SE_ALLREDUCE ? request->prescale : 1.0;
  signature->postscale = request->op == SE_ALLREDUCE ? request->postscale : 1.0;
  signature->dims.assign(request->dims, request->dims + request->num_dims);
  buffers->assign(request->buffers, request->buffers + n);

  int64_t elements = 0;
  for (int32_t i = 0; i < n; ++i) {
    const se_buffer& buffer = (*buffers)[static_cast<size_t>(i)];
    const bool needs_output = request->op != SE_ALLGATHER;
    if (buffer.count < 0)
      return Invalid(label + "buffer " + std::to_string(i) + " has " + std::to_string(buffer.count) + " elements");
    if (buffer.count > 0 && (buffer.input == nullptr || (needs_output && buffer.output == nullptr))) {
      return Invalid(label + "buffer " + std::to_string(i) + " is null but has " + std::to_string(buffer.count) +
                     " elements");
    }
    if (n > 1 && signature->dims[static_cast<size_t>(i)] != buffer.count) {
      return Invalid(label + "dims[" + std::to_string(i) + "] is not buffer " + std::to_string(i) + "'s count");
    }
    elements += buffer.count;
  }
  for (const int64_t dim : signature->dims) {
    if (dim < 0) return Invalid(label + "negative dimension " + std::to_string(dim));
  }
  if (n > 0 && signature->Elements() != elements) {
    return Invalid(label + "the shape holds " + std::to_string(signature->Elements()) + " elements, the buffer " +
                   std::to_string(elements));
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

int32_t se_segment_create(int32_t size, int32_t* fd) {
  return Guarded([&]() -> Status {
    if (size < 1 || fd == nullptr) return Invalid("a segment needs a job of at least one rank");
    UniqueFd made;
    SE_RETURN_IF_ERROR(spark_estimator::Segment::Create(size, &made));
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
    SE_RETURN_IF_ERROR(Engine::Create(std::move(own), std::move(others), &made->engine));
    *engine = made.release();
    return Status::Ok();
  });
}

int32_t se_submit(se_engine* engine, const se_request* request, int64_t* handle) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    Signature signature;
    std::vector<se_buffer> buffers;
    SE_RETURN_IF_ERROR(ReadRequest(request, &signature, &buffers));
    return engine->engine->Submit(std::move(signature), std::move(buffers), handle);
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

int32_t se_get_result(se_engine* engine, int64_t handle, se_result* result) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    return engine->engine->GetResult(handle, result);
  });
}

int32_t se_take_result_data(se_engine* engine, int64_t handle, void** data) {
  return Guarded([&]() -> Status {
    SE_RETURN_IF_ERROR(Usable(engine));
    return engine->engine->TakeResultData(handle, data);
  });
}

void se_free(void* data) { std::free(data); }

void se_release(se_engine* engine, int64_t handle) {
  if (Usable(engine).ok()) engine->engine->Release(handle);
}

int64_t se_counter(se_engine* engine, const char* name) {
  return Usable(engine).ok() && name != nullptr ? engine->engine->Counter(name) : -1;
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
  if (engine->engine && !engine->engine->OwnedByThisProcess()) return;
  delete engine;
}

void se_engine_abandon_after_fork(se_engine* engine) {
  if (engine != nullptr && engine->engine && !engine->engine->OwnedByThisProcess()) engine->engine->AbandonAfterFork();
}

}  // extern "C"
