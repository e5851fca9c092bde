// The engine as a library that can be measured: each way to call it is a variant.
#ifndef SPARK_ESTIMATOR_BENCHMARKS_ENGINE_LIBRARY_H_
#define SPARK_ESTIMATOR_BENCHMARKS_ENGINE_LIBRARY_H_

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "benchmarks/measured_rank.h"
#include "spark_estimator/engine.h"

namespace spark_estimator::benchmarks {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define SPARK_ESTIMATOR_BENCH_CLONES __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define SPARK_ESTIMATOR_BENCH_CLONES
#endif

// What any reduction of two arrays costs: two read, one written.
SPARK_ESTIMATOR_BENCH_CLONES static void AddArrays(const float* __restrict a, const float* __restrict b,
                                                   float* __restrict c, size_t count) {
  for (size_t index = 0; index < count; ++index) c[index] = a[index] + b[index];
}

// What moving bytes from one place to another costs at least: each is read once and written once, past the caches.
inline void CopyOnce(const void* from, void* to, size_t bytes) {
#if defined(__SSE2__)
  const auto* source = static_cast<const __m128i*>(from);
  auto* destination = static_cast<__m128i*>(to);
  for (size_t index = 0; index < bytes / sizeof(__m128i); ++index) {
    _mm_stream_si128(destination + index, _mm_loadu_si128(source + index));
  }
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

// Variants: "plan" (se_plan_run, private memory), "shared" (the same, memory of se_shared_allocate), "run" (se_run, by
// name), "submit" (se_submit, se_wait), and "bound": no collective, but for an allreduce c = a + b over this rank's
// share of the bytes, for an alltoall one copy of this rank's input to its output.
class EngineLibrary {
 public:
  EngineLibrary(se_engine* engine, int rank, int size) : engine_(engine) {
    library_.self = this;
    library_.rank = rank;
    library_.size = size;
    library_.refusal = [](void* self, const bench_form* form) { return Self(self)->Refusal(*form); };
    library_.allocate = [](void* self, const bench_form* form, size_t bytes) {
      return Self(self)->Allocate(*form, bytes);
    };
    library_.release = [](void* self, const bench_form* form, void* memory) { Self(self)->Release(*form, memory); };
    library_.prepare = [](void* self, bench_form* form) { return Self(self)->Prepare(form); };
    library_.unprepare = [](void*, bench_form* form) {
      delete static_cast<Ready*>(form->state);
      form->state = nullptr;
    };
    library_.run = [](void* self, const bench_form* form, int slot) { return Self(self)->Run(*form, slot); };
    library_.barrier = [](void* self) { return Self(self)->Barrier(); };
    void* probe = nullptr;
    shares_ = se_shared_allocate(engine_, 64, &probe) == SE_OK;
    if (shares_) se_shared_free(engine_, probe);
    se_request request = Named("barrier between samples", SE_BARRIER);
    if (se_plan_create(engine_, &request, &barrier_) != SE_OK) barrier_ = nullptr;
  }
  EngineLibrary(const EngineLibrary&) = delete;
  EngineLibrary& operator=(const EngineLibrary&) = delete;
  ~EngineLibrary() {
    if (barrier_ != nullptr) se_plan_destroy(barrier_);
  }

  // Null if the engine refused the plan of the barrier; se_last_error has the reason.
  const bench_library* library() const { return barrier_ == nullptr ? nullptr : &library_; }

 private:
  // The prepared data of one form.
  struct Ready {
    std::string name;
    se_tensor tensor{};
    int64_t dim = 0;
    se_request request{};
    se_plan* plan = nullptr;
    std::unique_ptr<float[]> sum;  // of the bound
    ~Ready() {
      if (plan != nullptr) se_plan_destroy(plan);
    }
  };

  static EngineLibrary* Self(void* self) { return static_cast<EngineLibrary*>(self); }
  static bool Is(const bench_form& form, const char* variant) { return std::strcmp(form.variant, variant) == 0; }

  static se_request Named(const char* name, int32_t op) {
    se_request request{};
    request.struct_bytes = sizeof request;
    request.name = name;
    request.op = op;
    request.reduce_op = SE_SUM;
    request.prescale = request.postscale = 1;
    return request;
  }

  const char* Refusal(const bench_form& form) const {
    if (Is(form, "bound")) {
      const bool known = form.op == BENCH_ALLREDUCE || form.op == BENCH_ALLTOALL;
      return known ? nullptr : "the bound is that of an allreduce or an alltoall";
    }
    if (Is(form, "shared") && !shares_) return "these ranks share no memory";
    for (const char* variant : {"plan", "shared", "run", "submit"}) {
      if (Is(form, variant)) return nullptr;
    }
    return "the engine doesn't have this variant";
  }

  void* Allocate(const bench_form& form, size_t bytes) {
    if (!Is(form, "shared")) return std::aligned_alloc(64, bytes);
    void* memory = nullptr;
    return se_shared_allocate(engine_, static_cast<int64_t>(bytes), &memory) == SE_OK ? memory : nullptr;
  }

  void Release(const bench_form& form, void* memory) {
    if (Is(form, "shared")) {
      se_shared_free(engine_, memory);
    } else {
      std::free(memory);
    }
  }

  const char* Prepare(bench_form* form) {
    constexpr int32_t kOps[] = {SE_ALLREDUCE, SE_BROADCAST, SE_ALLGATHER, SE_REDUCESCATTER, SE_ALLTOALL, SE_BARRIER};
    constexpr int32_t kTypes[] = {SE_FLOAT32, SE_FLOAT64, SE_FLOAT16, SE_BFLOAT16,
                                  SE_INT8,    SE_UINT8,   SE_INT32,   SE_INT64};
    auto ready = std::make_unique<Ready>();
    if (Is(*form, "bound")) {
      const char* error = form->op == BENCH_ALLREDUCE ? PrepareBound(*form, ready.get()) : nullptr;
      form->state = ready.release();
      form->unchecked = 1;
      return error;
    }
    ready->name = std::string(form->variant) + "." + bench_op_names[form->op] + "." + bench_dtype_names[form->dtype] +
                  "." + std::to_string(form->bytes);
    ready->dim = static_cast<int64_t>(form->count);
    ready->tensor.dtype = kTypes[form->dtype];
    ready->tensor.num_dims = 1;
    ready->tensor.dims = &ready->dim;
    if (form->op == BENCH_ALLGATHER || form->op == BENCH_ALLTOALL) {
      ready->tensor.output_bytes = static_cast<int64_t>(form->output_count * bench_dtype_bytes[form->dtype]);
    }
    Aim(*form, 0, ready.get());
    ready->request = Named(ready->name.c_str(), kOps[form->op]);
    ready->request.num_tensors = form->op == BENCH_BARRIER ? 0 : 1;
    ready->request.tensors = &ready->tensor;
    const bool planned = Is(*form, "plan") || Is(*form, "shared");
    const int32_t status = planned ? se_plan_create(engine_, &ready->request, &ready->plan) : SE_OK;
    form->state = ready.release();
    return status == SE_OK ? nullptr : se_last_error();
  }

  // A rank's share of the two sources is in its input: both are rewritten with it.
  const char* PrepareBound(const bench_form& form, Ready* ready) const {
    const size_t share = Share(form);
    ready->sum = std::make_unique<float[]>(static_cast<size_t>(form.batch) * share);
    float* input = reinterpret_cast<float*>(form.inputs);
    std::fill(input, input + form.input_stride / sizeof(float), 2.0F);
    AddArrays(input, Second(form, input), ready->sum.get(), share);
    const bool right = std::all_of(ready->sum.get(), ready->sum.get() + share, [](float sum) { return sum == 4.0F; });
    return right ? nullptr : "the bound's kernel adds wrongly";
  }

  size_t Share(const bench_form& form) const {
    return static_cast<size_t>(form.bytes) / sizeof(float) / static_cast<size_t>(library_.size);
  }
  const float* Second(const bench_form& form, const float* first) const {
    return library_.size == 1 ? first : first + Share(form);
  }

  static void Aim(const bench_form& form, int slot, Ready* ready) {
    ready->tensor.input = bench_input(&form, slot);
    ready->tensor.output = bench_output(&form, slot);
  }

  const char* Run(const bench_form& form, int slot) {
    auto* ready = static_cast<Ready*>(form.state);
    if (Is(form, "bound") && form.op == BENCH_ALLTOALL) {
      CopyOnce(bench_input(&form, slot), bench_output(&form, slot), static_cast<size_t>(form.bytes));
      return nullptr;
    }
    if (Is(form, "bound")) {
      const auto* first = reinterpret_cast<const float*>(bench_input(&form, slot));
      float* sum = ready->sum.get() + static_cast<size_t>(slot) * Share(form);
      AddArrays(first, Second(form, first), sum, Share(form));
      asm volatile("" : : "r"(sum) : "memory");
      return nullptr;
    }
    Aim(form, slot, ready);
    int64_t handle = 0;
    int32_t status = SE_OK;
    if (ready->plan != nullptr) {
      status = se_plan_run(ready->plan, &ready->tensor.input, &ready->tensor.output, nullptr, kHangSeconds, &handle);
    } else if (Is(form, "run")) {
      status = se_run(engine_, &ready->request, kHangSeconds, &handle);
    } else {
      status = se_submit(engine_, &ready->request, &handle);
      if (status == SE_OK) status = se_wait(engine_, handle, kHangSeconds);
    }
    if (status != SE_OK) return status == SE_IN_PROGRESS ? "it hangs" : se_last_error();
    return handle == 0 ? nullptr : Finish(form, ready->tensor.output, handle);
  }

  const char* Finish(const bench_form& form, void* output, int64_t handle) {
    if (form.op == BENCH_ALLGATHER || form.op == BENCH_ALLTOALL) {
      se_result result{};
      if (se_get_result(engine_, handle, 0, &result) != SE_OK) return se_last_error();
      // The caller's memory suffices; an engine that makes its own nevertheless pays for the copy.
      if (result.data != output) std::memcpy(output, result.data, static_cast<size_t>(result.bytes));
    }
    se_release(engine_, handle);
    return nullptr;
  }

  const char* Barrier() {
    int64_t handle = 0;
    const int32_t status = se_plan_run(barrier_, nullptr, nullptr, nullptr, kHangSeconds, &handle);
    if (status != SE_OK) return status == SE_IN_PROGRESS ? "the barrier between samples hangs" : se_last_error();
    if (handle != 0) se_release(engine_, handle);
    return nullptr;
  }

  static constexpr double kHangSeconds = 60;

  se_engine* const engine_;
  bench_library library_{};
  bool shares_ = false;
  se_plan* barrier_ = nullptr;
};

}  // namespace spark_estimator::benchmarks

#endif  // SPARK_ESTIMATOR_BENCHMARKS_ENGINE_LIBRARY_H_
