#include "engine/gpu/gpu_staging.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>  // for sleep_for
#include <utility>

#include "base/clock.h"
#include "base/contain.h"
#include "base/dtype.h"
#include "base/rows.h"

namespace spark_estimator {
namespace {

constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Status PlaceOnGpu(GpuDevice& device, Request& request, size_t part, size_t bytes, CudaStream stream, void** output) {
  Gathered& gathered = request.gathered[part];
  const TensorMemory& memory = request.memory[part];
  gathered.bytes = static_cast<int64_t>(bytes);
  if (memory.output != nullptr && static_cast<size_t>(memory.output_bytes) >= bytes) {
    gathered.data = memory.output;
  } else if (bytes > 0) {
    SE_RETURN_IF_ERROR(device.Allocate(bytes, stream, &gathered.on_gpu));
    gathered.data = gathered.on_gpu.get();
  }
  *output = gathered.data;
  return Status::Ok();
}

GpuStaging::GpuStaging(std::shared_ptr<GpuDevice> device, Executor* host, Liveness* liveness, int rank, int size)
    : device_(std::move(device)), host_(host), liveness_(liveness), rank_(rank), size_(size) {}

GpuStaging::~GpuStaging() {
  AwaitCopies();
  for (Pinned& slot : slots_) Unpin(&slot);
  Unpin(&whole_);
  if (!device_) return;
  const CudaDeviceScope scope(device_->cuda(), device_->number());
  UnshareSlots();
  for (const CudaStream stream : {in_, out_}) {
    if (stream != nullptr) device_->cuda().StreamDestroy(stream);
  }
}

Status GpuStaging::Run(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows) {
  SE_RETURN_IF_ERROR(Start(requests));
  Request& first = *requests[0];
  const Signature& signature = *first.signature;
  Status status;
  if (signature.op == SE_ALLREDUCE && signature.reduce_op != SE_ADASUM) {
    std::vector<int32_t> dtypes;
    for (const RequestPtr& request : requests) {
      for (const Part& part : request->signature->parts) {
        if (std::ranges::find(dtypes, part.dtype) == dtypes.end()) dtypes.push_back(part.dtype);
      }
    }
    for (const int32_t dtype : dtypes) SE_RETURN_IF_ERROR(Allreduce(requests, dtype));
  } else if (signature.op == SE_BROADCAST) {
    SE_RETURN_IF_ERROR(Broadcast(first));
  } else {
    SE_RETURN_IF_ERROR(Whole(first, rows));
  }
  if (!device_) return Status::Ok();
  GpuMarkPtr done;
  SE_RETURN_IF_ERROR(device_->MarkBehind(out_, &done));
  for (const RequestPtr& request : requests) {
    request->gpu.done = done;
    for (Gathered& gathered : request->gathered) gathered.on_gpu.BusyUntil(done);
  }
  return Status::Ok();
}

Status GpuStaging::ShareSlots(Arena* arena, SharedGroup* shared, const HostExchange& exchange) {
  if (shared == nullptr || !device_) return Status::Ok();  // as on all ranks
  const CudaApi& cuda = device_->cuda();
  const CudaDeviceScope scope(cuda, device_->number());
  constexpr size_t kBytes = kSlots * kSlotBytes;
  uint64_t offset = 0;
  int64_t own_offset = -1;
  if (arena->Allocate(kBytes, &shared_).ok()) {
    arena_ = arena;
    // CUDA copies memory that it does not know piece by piece, through its own pinned memory.
    if (cuda.HostRegister(shared_, kBytes, 0) != kCudaSuccess) {
      cuda.GetLastError();
      static_cast<void>(arena_->Free(std::exchange(shared_, nullptr)));
    } else if (arena->Find(shared_, kBytes, &offset)) {
      own_offset = static_cast<int64_t>(offset);
    }
  }
  std::vector<int64_t> offsets(static_cast<size_t>(size_));
  SE_RETURN_IF_ERROR(exchange(&own_offset, sizeof(own_offset), offsets.data()));
  if (std::ranges::any_of(offsets, [](int64_t place) { return place < 0; })) {
    UnshareSlots();
    return Status::Ok();
  }
  for (int rank = 0; rank < size_; ++rank) {
    of_.push_back(shared->of(rank).arena() + offsets[static_cast<size_t>(rank)]);
  }
  for (size_t i = 0; i < kSlots; ++i) {
    slots_[i].data = static_cast<uint8_t*>(shared_) + i * kSlotBytes;
    slots_[i].bytes = kSlotBytes;
    slots_[i].is_shared = true;
  }
  return Status::Ok();
}

// All of them, those of an operation that failed halfway, too: they must be over before the memory is the system's
// again.
void GpuStaging::AwaitCopies() {
  if (!device_) return;
  const CudaDeviceScope scope(device_->cuda(), device_->number());
  for (const CudaStream stream : {in_, out_}) {
    GpuMarkPtr end;
    if (stream == nullptr) continue;
    const Status marked = Contain(Status::OutOfMemory(), [&] { return device_->MarkBehind(stream, &end); });
    if (marked.ok()) device_->cuda().EventSynchronize(end->event());
  }
}

void GpuStaging::UnshareSlots() {
  if (shared_ == nullptr) return;
  device_->cuda().HostUnregister(shared_);
  static_cast<void>(arena_->Free(std::exchange(shared_, nullptr)));
}

// Copies from the device run after the callers' enqueued work; and so do copies back, since the CPU waits in between.
Status GpuStaging::Start(const std::vector<RequestPtr>& requests) {
  if (!device_) return Status::Ok();
  if (in_ == nullptr) SE_RETURN_IF_ERROR(device_->MakeStream(&in_));
  if (out_ == nullptr) SE_RETURN_IF_ERROR(device_->MakeStream(&out_));
  for (const RequestPtr& request : requests) {
    SE_RETURN_IF_ERROR(device_->Await(in_, request->gpu.ready));
  }
  return Status::Ok();
}

// --- in pieces

Status GpuStaging::Allreduce(const std::vector<RequestPtr>& requests, int32_t dtype) {
  const size_t element = DtypeBytes(dtype);
  std::vector<Piece> pieces;
  for (const RequestPtr& request : requests) {
    for (size_t i = 0; i < request->memory.size(); ++i) {
      const Part& part = request->signature->parts[i];
      if (part.dtype != dtype) continue;
      pieces.push_back({request->memory[i].input, request->memory[i].output, static_cast<size_t>(part.Bytes()), true});
    }
  }
  const Signature& signature = *requests[0]->signature;
  return Pipeline(Cut(pieces),
                  [&](void* data, size_t bytes) { return RunOnHost(signature, dtype, bytes / element, data); });
}

Status GpuStaging::Broadcast(const Request& request) {
  const Signature& signature = *request.signature;
  const bool is_root = rank_ == signature.root_rank;
  const TensorMemory& memory = request.memory[0];
  const std::vector<Chunk> chunks =
      Cut({{is_root ? memory.input : nullptr, memory.output, static_cast<size_t>(request.bytes), false}});
  return Pipeline(chunks, [&](void* data, size_t bytes) { return RunOnHost(signature, SE_UINT8, bytes, data); });
}

// Memory in the order in which it comes, in portions that fit a slot. A slot holds whole elements of any type.
std::vector<GpuStaging::Chunk> GpuStaging::Cut(const std::vector<Piece>& pieces) {
  std::vector<Chunk> chunks;
  size_t room = 0;
  for (Piece rest : pieces) {
    while (rest.bytes > 0) {
      if (room == 0) {
        chunks.emplace_back();
        room = kSlotBytes;
      }
      const size_t bytes = std::min(room, rest.bytes);
      chunks.back().push_back({rest.input, rest.output, bytes, rest.zeros});
      if (rest.input != nullptr) rest.input = static_cast<const uint8_t*>(rest.input) + bytes;
      if (rest.output != nullptr) rest.output = static_cast<uint8_t*>(rest.output) + bytes;
      rest.bytes -= bytes;
      room -= bytes;
    }
  }
  return chunks;
}

Status GpuStaging::Pipeline(const std::vector<Chunk>& chunks, const Work& work) {
  std::vector<size_t> slot_of(chunks.size());
  std::vector<GpuMarkPtr> there(chunks.size());
  const auto bring_in = [&](size_t index) {
    slot_of[index] = std::exchange(next_slot_, (next_slot_ + 1) % kSlots);
    return BringIn(chunks[index], slots_[slot_of[index]], &there[index]);
  };
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i == 0) SE_RETURN_IF_ERROR(bring_in(0));
    if (i + 1 < chunks.size()) SE_RETURN_IF_ERROR(bring_in(i + 1));
    SE_RETURN_IF_ERROR(AwaitOnCpu(there[i]));
    Pinned& slot = slots_[slot_of[i]];
    size_t bytes = 0;
    for (const Piece& piece : chunks[i]) bytes += piece.bytes;
    SE_RETURN_IF_ERROR(work(slot.data, bytes));
    SE_RETURN_IF_ERROR(TakeOut(chunks[i], slot));
  }
  return Status::Ok();
}

Status GpuStaging::BringIn(const Chunk& chunk, Pinned& slot, GpuMarkPtr* there) {
  if (slot.data == nullptr) SE_RETURN_IF_ERROR(Pin(kSlotBytes, &slot));
  auto* place = static_cast<uint8_t*>(slot.data);
  bool by_cpu = false;
  for (const Piece& piece : chunk) by_cpu |= piece.input == nullptr;
  // The CPU is about to write what the device may still be reading.
  if (by_cpu) SE_RETURN_IF_ERROR(AwaitOnCpu(slot.busy_until));
  if (device_) SE_RETURN_IF_ERROR(device_->Await(in_, slot.busy_until));
  for (const Piece& piece : chunk) {
    if (piece.input != nullptr) {
      SE_RETURN_IF_ERROR(device_->Copy(place, piece.input, piece.bytes, in_));
    } else if (piece.zeros) {
      std::memset(place, 0, piece.bytes);
    }
    place += piece.bytes;
  }
  return device_ ? device_->MarkBehind(in_, there) : Status::Ok();
}

Status GpuStaging::TakeOut(const Chunk& chunk, Pinned& slot) {
  const auto* place = static_cast<const uint8_t*>(slot.data);
  bool any = false;
  for (const Piece& piece : chunk) {
    if (piece.output != nullptr) {
      SE_RETURN_IF_ERROR(device_->Copy(piece.output, place, piece.bytes, out_));
      any = true;
    }
    place += piece.bytes;
  }
  return any ? device_->MarkBehind(out_, &slot.busy_until) : Status::Ok();
}

// The op of `like` on this number of elements of host memory, in place.
Status GpuStaging::RunOnHost(const Signature& like, int32_t dtype, size_t count, void* data) {
  auto signature = std::make_shared<Signature>(like);
  signature->parts = {Part{dtype, {static_cast<int64_t>(count)}}};
  auto request = std::make_shared<Request>();
  request->bytes = signature->Bytes();
  request->signature = std::move(signature);
  request->memory = {{data, data, 0}};
  // Tensors that are widened or scaled first are not reduced in place.
  const bool widens = like.reduce_op == SE_AVERAGE && IsInteger(dtype) && dtype != SE_INT64;
  if (!of_.empty() && like.op == SE_ALLREDUCE && like.prescale == 1.0 && !widens) {
    std::vector<uint8_t*> data_of;
    const ptrdiff_t offset = static_cast<uint8_t*>(data) - static_cast<uint8_t*>(shared_);
    for (uint8_t* memory : of_) data_of.push_back(memory + offset);
    host_->UseArenas(std::move(data_of));
  }
  return host_->Run({request}, {});
}

// --- as a whole

Status GpuStaging::Whole(Request& request, const std::vector<int64_t>& rows) {
  const Signature& signature = *request.signature;
  const size_t parts = signature.parts.size();
  if (parts == 0) {  // a barrier
    SE_RETURN_IF_ERROR(AwaitOnCpu(request.gpu.ready));
    auto barrier = std::make_shared<Request>();
    barrier->signature = request.signature;
    return host_->Run({barrier}, rows);
  }
  std::vector<size_t> input_bytes;
  std::vector<size_t> output_bytes;
  size_t total = 0;
  for (size_t i = 0; i < parts; ++i) {
    input_bytes.push_back(static_cast<size_t>(signature.parts[i].Bytes()));
    output_bytes.push_back(OutputBytes(request, i, rows));
    total += Aligned(input_bytes[i]) + Aligned(output_bytes[i]);
  }
  SE_RETURN_IF_ERROR(AwaitOnCpu(whole_.busy_until));
  if (whole_.bytes < total) {
    Unpin(&whole_);
    SE_RETURN_IF_ERROR(Pin(total, &whole_));
  }
  auto on_host = std::make_shared<Request>();
  on_host->signature = request.signature;
  on_host->bytes = request.bytes;
  auto* place = static_cast<uint8_t*>(whole_.data);
  for (size_t i = 0; i < parts; ++i) {
    if (request.memory[i].input != nullptr) {
      SE_RETURN_IF_ERROR(device_->Copy(place, request.memory[i].input, input_bytes[i], in_));
    } else if (input_bytes[i] > 0) {
      std::memset(place, 0, input_bytes[i]);
    }
    uint8_t* output = place + Aligned(input_bytes[i]);
    on_host->memory.push_back({place, output, static_cast<int64_t>(output_bytes[i])});
    place = output + Aligned(output_bytes[i]);
  }
  if (device_) {
    GpuMarkPtr there;
    SE_RETURN_IF_ERROR(device_->MarkBehind(in_, &there));
    SE_RETURN_IF_ERROR(AwaitOnCpu(there));
  }
  SE_RETURN_IF_ERROR(host_->Run({on_host}, rows));
  const bool gathers = signature.op == SE_ALLGATHER || signature.op == SE_ALLTOALL;
  if (gathers) request.gathered.resize(parts);
  for (size_t i = 0; i < parts; ++i) {
    void* output = request.memory[i].output;
    if (gathers) {
      request.gathered[i].rows = on_host->gathered[i].rows;
      SE_RETURN_IF_ERROR(PlaceOnGpu(*device_, request, i, output_bytes[i], out_, &output));
    }
    if (output == nullptr) continue;  // joined, or nothing
    SE_RETURN_IF_ERROR(device_->Copy(output, on_host->memory[i].output, output_bytes[i], out_));
  }
  if (device_) SE_RETURN_IF_ERROR(device_->MarkBehind(out_, &whole_.busy_until));
  if (whole_.bytes <= kKeptBytes) return Status::Ok();
  SE_RETURN_IF_ERROR(AwaitOnCpu(whole_.busy_until));
  Unpin(&whole_);
  return Status::Ok();
}

size_t GpuStaging::OutputBytes(const Request& request, size_t part, const std::vector<int64_t>& rows) const {
  const Signature& signature = *request.signature;
  const Part& tensor = signature.parts[part];
  const auto size = static_cast<size_t>(size_);
  size_t row_bytes = DtypeBytes(tensor.dtype);
  for (size_t i = 1; i < tensor.dims.size(); ++i) row_bytes *= static_cast<size_t>(tensor.dims[i]);
  switch (signature.op) {
    case SE_ALLGATHER: {
      const auto begin = rows.begin() + static_cast<ptrdiff_t>(part * size);
      return static_cast<size_t>(std::accumulate(begin, begin + size_, int64_t{0})) * row_bytes;
    }
    case SE_ALLTOALL: {
      size_t received = 0;
      for (size_t from = 0; from < size; ++from) {
        received += static_cast<size_t>(rows[from * size + static_cast<size_t>(rank_)]);
      }
      return received * row_bytes;
    }
    case SE_REDUCESCATTER:
      return static_cast<size_t>(RowsOf(tensor.dims[0], rank_, size_)) * row_bytes;
    default:
      return static_cast<size_t>(tensor.Bytes());
  }
}

// --- memory and waiting

Status GpuStaging::Pin(size_t bytes, Pinned* memory) {
  if (device_) {
    const CudaDeviceScope scope(device_->cuda(), device_->number());
    SE_RETURN_IF_ERROR(scope.status());
    SE_RETURN_IF_ERROR(device_->cuda().Check(
        device_->cuda().HostAlloc(&memory->data, bytes, 0),
        "pinning " + std::to_string(bytes) + " bytes of host memory, through which GPU tensors are to travel"));
  } else {
    Memory plain;
    SE_RETURN_IF_ERROR(AllocateMemory(bytes, &plain));
    memory->data = plain.release();
  }
  memory->by_cuda = device_ != nullptr;
  memory->bytes = bytes;
  return Status::Ok();
}

void GpuStaging::Unpin(Pinned* memory) {
  if (memory->data == nullptr || memory->is_shared) return;
  if (memory->by_cuda) {
    const CudaDeviceScope scope(device_->cuda(), device_->number());
    device_->cuda().FreeHost(memory->data);  // waits until nothing works on it
  } else {
    FreeMemory(memory->data);
  }
  *memory = Pinned();
}

Status GpuStaging::AwaitOnCpu(const GpuMarkPtr& mark) {
  if (!mark) return Status::Ok();
  const CudaApi& cuda = device_->cuda();
  constexpr Seconds kBusy{50e-6};  // a piece takes some hundred microseconds
  constexpr std::chrono::microseconds kPause{20};
  const Time began = Clock::now();
  Time next_look = began + kLivenessInterval;
  for (;;) {
    const int code = cuda.QueryEvent(mark->event());
    if (code == kCudaSuccess) return Status::Ok();
    if (code != kCudaNotReady) return cuda.Check(code, "waiting for the GPU");
    const Time now = Clock::now();
    if (now >= next_look) {
      SE_RETURN_IF_ERROR(liveness_->Check());
      next_look = now + kLivenessInterval;
    }
    if (now - began > kBusy) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace spark_estimator
