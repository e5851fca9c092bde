// A node of TensorFlow's that lets Python reduce tensors where they lie, and keeps no thread of TensorFlow's meanwhile.
//
// Compiled on first use by compiled.py, against the headers of the TensorFlow that is installed. The work itself is a
// Python function: see compiled.py for what it does. It is called in a thread of a pool that grows with the number of
// collectives in flight, because one that waits for other ranks must not keep another from being submitted.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Reduces `count` tensors. `dims` holds all their dimensions, `ranks` how many each has. 0 when all went well, else 1,
// or 2 for an argument that cannot be, with a sentence in `message`.
using Work = int32_t (*)(int64_t call, int32_t count, const void* const* inputs, void* const* outputs,
                         const int64_t* dims, const int32_t* ranks, char* message, int64_t capacity);

Work work = nullptr;

constexpr int64_t kMessageBytes = 8192;

// As many threads as there have been collectives in flight at once; they stay, asleep.
class Threads {
 public:
  void Run(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_ < tasks_.size()) {
      std::thread([this] { Serve(); }).detach();
    } else {
      wake_.notify_one();
    }
  }

 private:
  void Serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (tasks_.empty()) {
        ++idle_;
        wake_.wait(lock, [this] { return !tasks_.empty(); });
        --idle_;
      }
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
};

Threads& threads() {
  static Threads* made = new Threads;  // never destroyed: its threads do not end
  return *made;
}

class SparkEstimatorAllreduceOp : public AsyncOpKernel {
 public:
  explicit SparkEstimatorAllreduceOp(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("call", &call_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    std::vector<int64_t> dims;
    std::vector<int32_t> ranks;
    for (int number = 0; number < context->num_inputs(); ++number) {
      const Tensor& input = context->input(number);
      Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(context, context->forward_input_or_allocate_output({number}, number, input.shape(), &output),
                           done);
      inputs.push_back(input.data());
      outputs.push_back(output->data());
      for (int dim = 0; dim < input.dims(); ++dim) dims.push_back(input.dim_size(dim));
      ranks.push_back(input.dims());
    }
    const int64_t call = call_;
    threads().Run([context, call, done = std::move(done), inputs = std::move(inputs), outputs = std::move(outputs),
                   dims = std::move(dims), ranks = std::move(ranks)] {
      std::string message(kMessageBytes, '\0');
      const int32_t status = work == nullptr
                                 ? 1
                                 : work(call, static_cast<int32_t>(inputs.size()), inputs.data(), outputs.data(),
                                        dims.data(), ranks.data(), message.data(), kMessageBytes);
      if (status != 0) {
        message.resize(message.find('\0') == std::string::npos ? message.size() : message.find('\0'));
        context->SetStatus(status == 2 ? absl::InvalidArgumentError(message) : absl::UnknownError(message));
      }
      done();
    });
  }

 private:
  int64_t call_ = 0;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void spark_estimator_set_work(void* function) {
  work = reinterpret_cast<Work>(function);
}

// Stateful, so that it is neither computed when a graph is optimised nor taken for another of its kind.
REGISTER_OP("SparkEstimatorAllreduce")
    .Attr("call: int")
    .Attr("T: list({uint8, int8, int16, int32, int64, half, bfloat16, float, double, bool}) >= 1")
    .Input("tensors: T")
    .Output("reduced: T")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int number = 0; number < context->num_inputs(); ++number) {
        context->set_output(number, context->input(number));
      }
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("SparkEstimatorAllreduce").Device(tensorflow::DEVICE_CPU), SparkEstimatorAllreduceOp);
