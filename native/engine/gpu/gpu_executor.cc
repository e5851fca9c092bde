#include "engine/gpu/gpu_executor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/dtype.h"
#include "base/rows.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace {

constexpr Seconds kFarewell{2};  // for leaving an NCCL group

Reduction ReductionOf(const Signature& signature, int32_t dtype) {
  return {dtype, signature.reduce_op, signature.prescale, signature.postscale};
}

// Dtypes in the order of their first tensor: the same on all ranks.
std::vector<int32_t> DtypesOf(const std::vector<RequestPtr>& requests) {
  std::vector<int32_t> dtypes;
  for (const RequestPtr& request : requests) {
    for (const Part& part : request->signature->parts) {
      if (std::ranges::find(dtypes, part.dtype) == dtypes.end()) dtypes.push_back(part.dtype);
    }
  }
  return dtypes;
}

size_t RowBytes(const Part& part) {
  size_t bytes = DtypeBytes(part.dtype);
  for (size_t i = 1; i < part.dims.size(); ++i) bytes *= static_cast<size_t>(part.dims[i]);
  return bytes;
}

size_t Sum(const std::vector<size_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), size_t{0}); }

}  // namespace

GpuExecutor::GpuExecutor(Options options, Host host) : options_(std::move(options)), host_(host) {}

GpuExecutor::~GpuExecutor() {
  if (alone_ == nullptr) return;
  const CudaDeviceScope scope(device_->cuda(), device_->number());
  device_->cuda().StreamDestroy(alone_);
}

// --- the callers' side

std::shared_ptr<GpuDevice> GpuExecutor::device() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return device_;
}

Status GpuExecutor::Accept(int number, CudaStream stream, GpuWork* work) {
  std::shared_ptr<GpuDevice> device;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!device_) {
      const Status opened = GpuDevice::Open(options_.libraries.cuda, number, &device_);
      if (!opened.ok()) {
        return Status(SE_INVALID_ARGUMENT, "GPU tensors cannot be used: " + opened.message() +
                                               "; HOROVOD_GPU_OPERATIONS=copy has the framework copy them instead");
      }
    }
    if (device_->number() != number) {
      return Status(SE_INVALID_ARGUMENT, "the tensors are on CUDA device " + std::to_string(number) +
                                             ", and this rank has used device " + std::to_string(device_->number()) +
                                             " before: a rank uses one GPU. Call torch.cuda.set_device("
                                             "hvd.local_rank()) first, or move the tensors");
    }
    device = device_;
  }
  SE_RETURN_IF_ERROR(CheckNotCapturing(device->cuda(), stream));
  work->device = number;
  work->stream = stream;
  return device->MarkBehind(stream, &work->ready);
}

Status GpuExecutor::AwaitOn(const Request& request, CudaStream stream) {
  std::shared_ptr<GpuDevice> used;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_.ok()) return aborted_;
    used = device_;
  }
  return used ? used->Await(stream, request.gpu.done) : Status::Ok();
}

Status GpuExecutor::CopyResult(Request& request, size_t part, void* output, CudaStream stream) {
  SE_RETURN_IF_ERROR(AwaitOn(request, stream));
  Gathered& gathered = request.gathered[part];
  if (!gathered.on_gpu) return Status::Ok();  // no bytes, or where the caller wanted it
  const std::shared_ptr<GpuDevice> used = device();
  SE_RETURN_IF_ERROR(used->Copy(output, gathered.data, static_cast<size_t>(gathered.bytes), stream));
  GpuMarkPtr copied;
  SE_RETURN_IF_ERROR(used->MarkBehind(stream, &copied));
  gathered.on_gpu.BusyUntil(std::move(copied));
  return Status::Ok();
}

std::string GpuExecutor::Describe() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return description_;
}

// --- agreeing

Status GpuExecutor::Meet() {
  auto nccl = std::make_unique<NcclApi>();
  const auto size = static_cast<size_t>(options_.size);
  GpuFacts own_facts = LookAtGpu(device(), options_.libraries, options_.size, nccl.get());
  own_facts.operations = options_.operations;
  own_facts.ranks_on_host = options_.ranks_on_host;
  std::vector<GpuFacts> facts(size);
  SE_RETURN_IF_ERROR(Exchange(&own_facts, sizeof(own_facts), facts.data()));
  std::vector<std::string> names;
  for (int rank = 0; rank < options_.size; ++rank) names.push_back(host_.liveness->NameOf(rank));
  GpuDecision decision;
  SE_RETURN_IF_ERROR(Decide(facts, names, &decision));
  nccl_ = std::move(nccl);
  SE_RETURN_IF_ERROR(Prepare(options_.operations == SE_GPU_NCCL, &decision));
  way_ = decision.way;
  const std::lock_guard<std::mutex> lock(mutex_);
  description_ = std::move(decision.text);
  return Status::Ok();
}

Status GpuExecutor::Exchange(const void* mine, size_t bytes, void* all) {
  const auto size = static_cast<size_t>(options_.size);
  auto signature = std::make_shared<Signature>();
  signature->name = "GPUs";
  auto request = std::make_shared<Request>();
  request->bytes = static_cast<int64_t>(bytes);
  std::vector<int64_t> rows;
  if (bytes == 0) {
    signature->op = SE_BARRIER;
  } else {
    signature->op = SE_ALLGATHER;
    signature->parts = {Part{SE_UINT8, {request->bytes}}};
    request->memory = {{mine, all, static_cast<int64_t>(size * bytes)}};
    rows.assign(size, request->bytes);
  }
  request->signature = std::move(signature);
  return host_.executor->Run({request}, rows);
}

Status GpuExecutor::Prepare(bool demanded, GpuDecision* decision) {
  const HostExchange exchange = [this](const void* mine, size_t bytes, void* all) {
    return Exchange(mine, bytes, all);
  };
  const std::shared_ptr<GpuDevice> used = device();
  if (decision->way == GpuWay::kNccl) {
    NcclGroup::Options options;
    options.rank = options_.rank;
    options.size = options_.size;
    options.device = used->number();
    options.deadline = options_.deadline;
    options.farewell = kFarewell;
    // A rank that has left asks no peer any more, and waits for the time of a farewell.
    options.abandoned = [this] { return has_left_ ? Status::Ok() : host_.liveness->Check(); };
    // It fails on all ranks or on none. A lost peer is another matter.
    const Status invited = ShareNcclId(*nccl_, *used, options_.rank, options_.size, exchange, &options.id);
    if (invited.ok()) {
      return NcclGroup::Create(*nccl_, used->cuda(), std::move(options), &group_)
          .Within("making a group of GPUs by NCCL (HOROVOD_GPU_OPERATIONS=staged does without it)");
    }
    if (demanded || !host_.liveness->Check().ok()) return invited;
    *decision = {GpuWay::kStaged, "GPU tensors go through pinned host memory, as NCCL failed: " + invited.message()};
  }
  if (decision->way != GpuWay::kStaged) return Status::Ok();
  staging_ = std::make_unique<GpuStaging>(used, host_.executor, host_.liveness, options_.rank, options_.size);
  return staging_->ShareSlots(host_.arena, host_.shared, exchange);
}

// --- operations

Status GpuExecutor::Run(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows) {
  if (way_ == GpuWay::kOpen) SE_RETURN_IF_ERROR(Meet());
  const Signature& signature = *requests[0]->signature;
  const bool scales = signature.prescale != 1.0 || signature.postscale != 1.0;
  if (group_ ? Offered(requests) : way_ == GpuWay::kAlone && !scales) {
    Increase(host_.counters->operations);
    Increase(host_.counters->gpu_operations);
    if (requests.size() > 1) Increase(host_.counters->fused_requests, static_cast<int64_t>(requests.size()));
    if (group_) {
      algorithm_ = "NCCL";
      return RunOnGroup(requests, rows);
    }
    algorithm_ = "LOCAL";
    for (const RequestPtr& request : requests) SE_RETURN_IF_ERROR(RunAlone(*request, rows));
    return Status::Ok();
  }
  if (!staging_ || (!staging_->has_device() && device())) {
    staging_ = std::make_unique<GpuStaging>(device(), host_.executor, host_.liveness, options_.rank, options_.size);
  }
  algorithm_ = "STAGED";
  Increase(host_.counters->staged_operations);
  return staging_->Run(requests, rows);
}

bool GpuExecutor::Offered(const std::vector<RequestPtr>& requests) const {
  const Signature& signature = *requests[0]->signature;
  if (signature.op != SE_ALLREDUCE && signature.op != SE_REDUCESCATTER) return group_->Offers(signature.op, {});
  const std::vector<int32_t> dtypes = DtypesOf(requests);
  return std::ranges::all_of(
      dtypes, [&](int32_t dtype) { return group_->Offers(signature.op, ReductionOf(signature, dtype)); });
}

Status GpuExecutor::RunOnGroup(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows) {
  const std::shared_ptr<GpuDevice> used = device();
  for (const RequestPtr& request : requests) SE_RETURN_IF_ERROR(used->Await(group_->stream(), request->gpu.ready));
  Request& first = *requests[0];
  const Signature& signature = *first.signature;
  switch (signature.op) {
    case SE_ALLREDUCE:
    case SE_REDUCESCATTER:
      SE_RETURN_IF_ERROR(Reduce(requests));
      break;
    case SE_BROADCAST: {
      const BroadcastTensor tensor{first.memory[0].input, first.memory[0].output, static_cast<size_t>(first.bytes)};
      SE_RETURN_IF_ERROR(group_->Broadcast({&tensor, 1}, signature.root_rank, nullptr, nullptr));
      break;
    }
    case SE_ALLGATHER:
      SE_RETURN_IF_ERROR(GatherOnGroup(first, rows));
      break;
    case SE_ALLTOALL:
      SE_RETURN_IF_ERROR(ExchangeOnGroup(first, rows));
      break;
    default:
      SE_RETURN_IF_ERROR(group_->Barrier(nullptr, nullptr));
  }
  GpuMarkPtr done;
  SE_RETURN_IF_ERROR(used->MarkBehind(group_->stream(), &done));
  for (const RequestPtr& request : requests) {
    request->gpu.done = done;
    for (Gathered& gathered : request->gathered) gathered.on_gpu.BusyUntil(done);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  last_ = std::move(done);
  return Status::Ok();
}

// Allreduces and reducescatters: all tensors of one dtype as one.
Status GpuExecutor::Reduce(const std::vector<RequestPtr>& requests) {
  const Signature& signature = *requests[0]->signature;
  for (const int32_t dtype : DtypesOf(requests)) {
    std::vector<ReduceTensor> whole;
    std::vector<ScatterTensor> scattered;
    std::vector<std::vector<size_t>> counts;
    counts.reserve(signature.parts.size());  // what the tensors point to
    for (const RequestPtr& request : requests) {
      for (size_t i = 0; i < request->memory.size(); ++i) {
        const Part& part = request->signature->parts[i];
        const TensorMemory& memory = request->memory[i];
        if (part.dtype != dtype || part.Elements() == 0) continue;
        if (signature.op == SE_ALLREDUCE) {
          whole.push_back({memory.input, memory.output, static_cast<size_t>(part.Elements())});
          continue;
        }
        std::vector<size_t>& count_of = counts.emplace_back();
        for (int rank = 0; rank < options_.size; ++rank) {
          const auto rows = static_cast<size_t>(RowsOf(part.dims[0], rank, options_.size));
          count_of.push_back(rows * RowBytes(part) / DtypeBytes(dtype));
        }
        scattered.push_back({memory.input, memory.output, count_of});
      }
    }
    const Reduction reduction = ReductionOf(signature, dtype);
    if (!whole.empty()) SE_RETURN_IF_ERROR(group_->Allreduce(whole, reduction, nullptr, nullptr));
    if (!scattered.empty()) SE_RETURN_IF_ERROR(group_->Reducescatter(scattered, reduction, nullptr, nullptr));
  }
  return Status::Ok();
}

Status GpuExecutor::GatherOnGroup(Request& request, const std::vector<int64_t>& rows) {
  const std::shared_ptr<GpuDevice> used = device();
  const auto size = static_cast<size_t>(options_.size);
  const size_t parts = request.memory.size();
  request.gathered.resize(parts);
  std::vector<std::vector<size_t>> bytes_of(parts);
  std::vector<GatherTensor> tensors;
  for (size_t i = 0; i < parts; ++i) {
    const size_t row_bytes = RowBytes(request.signature->parts[i]);
    const auto begin = rows.begin() + static_cast<ptrdiff_t>(i * size);
    request.gathered[i].rows.assign(begin, begin + options_.size);
    for (const int64_t count : request.gathered[i].rows) bytes_of[i].push_back(static_cast<size_t>(count) * row_bytes);
    void* output = nullptr;
    SE_RETURN_IF_ERROR(PlaceOnGpu(*used, request, i, Sum(bytes_of[i]), group_->stream(), &output));
    if (Sum(bytes_of[i]) > 0) tensors.push_back({request.memory[i].input, output, bytes_of[i]});
  }
  return tensors.empty() ? Status::Ok() : group_->Allgather(tensors, nullptr, nullptr);
}

Status GpuExecutor::ExchangeOnGroup(Request& request, const std::vector<int64_t>& rows) {
  const std::shared_ptr<GpuDevice> used = device();
  const auto size = static_cast<size_t>(options_.size);
  const auto me = static_cast<size_t>(options_.rank);
  const size_t row_bytes = RowBytes(request.signature->parts[0]);
  std::vector<size_t> send;
  std::vector<size_t> receive;
  request.gathered.resize(1);
  for (size_t rank = 0; rank < size; ++rank) {
    send.push_back(static_cast<size_t>(rows[me * size + rank]) * row_bytes);
    receive.push_back(static_cast<size_t>(rows[rank * size + me]) * row_bytes);
    request.gathered[0].rows.push_back(rows[rank * size + me]);
  }
  void* output = nullptr;
  SE_RETURN_IF_ERROR(PlaceOnGpu(*used, request, 0, Sum(receive), group_->stream(), &output));
  return group_->Alltoall(request.memory[0].input, send, output, receive, nullptr, nullptr);
}

// Without factors every op of one rank is a copy.
Status GpuExecutor::RunAlone(Request& request, const std::vector<int64_t>& rows) {
  const std::shared_ptr<GpuDevice> used = device();
  if (alone_ == nullptr) SE_RETURN_IF_ERROR(used->MakeStream(&alone_));
  SE_RETURN_IF_ERROR(used->Await(alone_, request.gpu.ready));
  const Signature& signature = *request.signature;
  const bool gathers = signature.op == SE_ALLGATHER || signature.op == SE_ALLTOALL;
  if (gathers) request.gathered.resize(request.memory.size());
  for (size_t i = 0; i < request.memory.size(); ++i) {
    const auto bytes = static_cast<size_t>(signature.parts[i].Bytes());
    void* output = request.memory[i].output;
    if (gathers) {
      request.gathered[i].rows = {rows[i]};
      SE_RETURN_IF_ERROR(PlaceOnGpu(*used, request, i, bytes, alone_, &output));
    }
    SE_RETURN_IF_ERROR(used->Copy(output, request.memory[i].input, bytes, alone_));
  }
  SE_RETURN_IF_ERROR(used->MarkBehind(alone_, &request.gpu.done));
  for (Gathered& gathered : request.gathered) gathered.on_gpu.BusyUntil(request.gpu.done);
  return Status::Ok();
}

// --- health

int GpuExecutor::Look() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_ ? device_->cuda().QueryEvent(last_->event()) : static_cast<int>(kCudaSuccess);
}

bool GpuExecutor::IsBusy() const { return Look() == kCudaNotReady; }

Status GpuExecutor::Check() {
  if (!group_) return Status::Ok();
  SE_RETURN_IF_ERROR(group_->AsyncError());
  const int state = Look();
  if (state == kCudaNotReady) return Status::Ok();
  return device()->cuda().Check(state, "looking after the GPU's part of the collectives");
}

void GpuExecutor::Leave() {
  has_left_ = true;
  group_.reset();
}

void GpuExecutor::Abort(const Status& why) {
  if (!group_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_.ok()) aborted_ = why;
  }
  group_->Abort(why);
}

}  // namespace spark_estimator
