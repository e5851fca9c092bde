#include "gpu/shared_gpu_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/contain.h"
#include "gpu/pause.h"
#include "gpu/shared_gpu_plan.h"

namespace spark_estimator {
namespace {

// A status as bytes that ranks can give each other.
struct Verdict {
  int32_t code = SE_OK;
  std::array<char, 508> reason{};

  explicit Verdict(const Status& status = Status()) : code(status.code()) {
    const size_t length = std::min(status.message().size(), reason.size() - 1);
    std::memcpy(reason.data(), status.message().data(), length);
  }
  bool ok() const { return code == SE_OK; }
  Status ToStatus() const { return Status(static_cast<se_status>(code), reason.data()); }
};

// What a rank shows of itself before others map its memory.
struct Card {
  Verdict verdict;
  CudaMemoryHandle handle;
  std::array<char, 40> uuid{};
  uint64_t slot_bytes = 0;
};

constexpr size_t kTrialNumbers = 256;
constexpr int kTrialBarriers = 4;  // more than there are slots
static_assert(2 * kTrialNumbers * sizeof(float) <= ExchangeBuffer::kPrivateBytes);

}  // namespace

Status SharedGpuGroup::Usable(const CudaApi& cuda, const DriverApi& driver, int device, int size) {
  const std::string which = "CUDA device " + std::to_string(device);
  if (size > kMostRanks) {
    return Status(SE_SYSTEM_ERROR, which + " is shared by " + std::to_string(size) + " ranks, and at most " +
                                       std::to_string(kMostRanks) + " can exchange tensors on it");
  }
  int addressing = 0;
  int operations = 0;
  SE_RETURN_IF_ERROR(driver.Attribute(device, kDriverUnifiedAddressing, &addressing));
  SE_RETURN_IF_ERROR(driver.Attribute(device, kDriverMemoryOperations64, &operations));
  if (addressing == 0) {
    return Status(SE_SYSTEM_ERROR,
                  which + " has no unified addressing, without which processes cannot share its memory");
  }
  if (operations == 0) {
    return Status(SE_SYSTEM_ERROR, which +
                                       " or its driver does not let a stream wait for a word of memory "
                                       "(cuStreamWaitValue64), by which ranks on one GPU wait for each other");
  }
  const CudaDeviceScope scope(cuda, device);
  Status status = scope.status();
  if (status.ok()) {
    ExchangeBuffer buffer(cuda, 0, 1, 1, InputPacking::kAlignment);
    status = buffer.Allocate(nullptr);
    CudaMemoryHandle handle;
    if (status.ok()) status = buffer.Export(&handle);
    buffer.Free();
  }
  if (status.ok()) return status;
  return status.Within(which +
                       " does not let processes share its memory (CUDA IPC; WSL and some virtual GPUs have none)");
}

Status SharedGpuGroup::Create(const CudaApi& cuda, DeviceKernels& kernels, Options options,
                              std::unique_ptr<SharedGpuGroup>* group) {
  auto created = std::make_unique<SharedGpuGroup>(cuda, kernels, std::move(options));
  SE_RETURN_IF_ERROR(created->Connect());
  *group = std::move(created);
  return Status::Ok();
}

SharedGpuGroup::SharedGpuGroup(const CudaApi& cuda, DeviceKernels& kernels, Options options)
    : cuda_(cuda),
      kernels_(kernels),
      options_(std::move(options)),
      events_(cuda, options_.device),
      buffer_(cuda, options_.rank, options_.size, kSlots, options_.slot_bytes) {}

SharedGpuGroup::~SharedGpuGroup() {
  if (context_ == nullptr) return;
  {
    const DriverContextScope scope(kernels_.driver(), context_);
    bool unused = false;
    (void)Contain(Status::OutOfMemory(), [&] {
      unused = SayGoodbye();
      return Status::Ok();
    });
    if (unused) buffer_.Free();
    if (stream_ != nullptr) cuda_.StreamDestroy(stream_);
    if (release_stream_ != nullptr) cuda_.StreamDestroy(release_stream_);
  }
  kernels_.driver().DevicePrimaryCtxRelease(options_.device);
}

bool SharedGpuGroup::SayGoodbye() {
  if (!buffer_.allocated()) return false;
  const Seconds limit = std::min(options_.farewell, options_.deadline);
  if (!offered_) return IdleWithin(limit);
  Status status = Healthy();
  if (status.ok()) status = AwaitStream("leaving the group", limit);
  if (status.ok()) status = Exchange("leaving the group", nullptr, 0, nullptr);  // nobody reads any more
  if (status.ok()) {
    buffer_.CloseOthers();
    return Exchange("leaving the group", nullptr, 0, nullptr).ok();  // nobody has it mapped any more
  }
  // What waited was released, unless it waits for a caller's stream, too. Kernels that are still to come do nothing,
  // but are to find the memory that they leave alone.
  if (IdleWithin(limit)) buffer_.CloseOthers();
  return false;
}

bool SharedGpuGroup::IdleWithin(Seconds limit) {
  const Time end = After(limit);
  GrowingPause pause;
  for (;;) {
    if (cuda_.QueryStream(stream_) != kCudaNotReady && cuda_.QueryStream(release_stream_) != kCudaNotReady) return true;
    if (Clock::now() >= end) return false;
    pause.Sleep();
  }
}

Status SharedGpuGroup::Connect() {
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  if (context_ != nullptr) return Status(SE_INTERNAL, Who() + " connects a second time");
  SE_RETURN_IF_ERROR(Failure());
  Card mine;
  Status prepared = Prepare();
  // Here the context may be missing, and nothing of the device is touched then.
  if (prepared.ok()) {
    const DriverContextScope scope(kernels_.driver(), context_);
    prepared = scope.status();
    if (prepared.ok()) prepared = buffer_.Export(&mine.handle);
    std::string uuid;
    if (prepared.ok()) prepared = DeviceUuid(kernels_.driver(), options_.device, &uuid);
    std::memcpy(mine.uuid.data(), uuid.data(), std::min(uuid.size(), mine.uuid.size() - 1));
  }
  mine.verdict = Verdict(Named(prepared));
  mine.slot_bytes = options_.slot_bytes;
  std::vector<Card> cards(static_cast<size_t>(options_.size));
  SE_RETURN_IF_ERROR(Exchange("meeting the other ranks", &mine, sizeof(mine), cards.data()));
  std::vector<CudaMemoryHandle> handles;
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    const Card& card = cards[rank];
    if (!card.verdict.ok()) return Fail(card.verdict.ToStatus());
    if (card.uuid != cards[0].uuid || card.slot_bytes != cards[0].slot_bytes) {
      const auto shows = [&](size_t who) {
        return "rank " + std::to_string(who) + " exchanges slots of " + std::to_string(cards[who].slot_bytes) +
               " bytes on GPU " + cards[who].uuid.data();
      };
      return Fail(Status(SE_INTERNAL, shows(0) + ", and " + shows(rank)));
    }
    handles.push_back(card.handle);
  }
  offered_ = !alone();
  const DriverContextScope scope(kernels_.driver(), context_);
  SE_RETURN_IF_ERROR(Agree(OpenOthers(handles)));
  {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    connected_ = true;
  }
  return Agree(Trial());
}

Status SharedGpuGroup::Prepare() {
  if (options_.size < 1 || options_.size > kMostRanks || options_.rank < 0 || options_.rank >= options_.size ||
      options_.slot_bytes == 0 || options_.slot_bytes % InputPacking::kAlignment != 0) {
    return Status(SE_INVALID_ARGUMENT, "slots of " + std::to_string(options_.slot_bytes) + " bytes among at most " +
                                           std::to_string(kMostRanks) + " ranks: the bytes must be a multiple of 16");
  }
  const DriverApi& driver = kernels_.driver();
  // Of the runtime: it says what is wrong with a device, and binds itself to the context.
  const CudaDeviceScope device(cuda_, options_.device);
  SE_RETURN_IF_ERROR(device.status());
  SE_RETURN_IF_ERROR(driver.Check(driver.DevicePrimaryCtxRetain(&context_, options_.device), "opening the device"));
  const DriverContextScope scope(driver, context_);
  SE_RETURN_IF_ERROR(scope.status());
  int least = 0;
  int greatest = 0;
  SE_RETURN_IF_ERROR(
      cuda_.Check(cuda_.DeviceGetStreamPriorityRange(&least, &greatest), "asking for the streams' priorities"));
  // What waits for a collective waits for the other ranks, too: its few blocks go before those of computations. The
  // release has a priority that streams seldom have, so that it does not queue behind one that waits for this group.
  SE_RETURN_IF_ERROR(
      cuda_.Check(cuda_.StreamCreateWithPriority(&stream_, kCudaStreamNonBlocking, greatest), "making a stream"));
  SE_RETURN_IF_ERROR(cuda_.Check(
      cuda_.StreamCreateWithPriority(&release_stream_, kCudaStreamNonBlocking, std::min(greatest + 1, least)),
      "making a stream"));
  SE_RETURN_IF_ERROR(kernels_.Find(options_.device, kNoDtype, "se_copy", &copy_));
  SE_RETURN_IF_ERROR(kernels_.Find(options_.device, kNoDtype, "se_tell", &tell_));
  // The trial's, now, while the ranks can still part without a trace.
  CudaFunction sum = nullptr;
  SE_RETURN_IF_ERROR(kernels_.Find(options_.device, SE_FLOAT32, DeviceKernels::NameOf(SE_FLOAT32, SE_SUM), &sum));
  SE_RETURN_IF_ERROR(buffer_.Allocate(stream_));
  {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    if (!failure_.ok()) return failure_;
    breakable_ = true;
  }
  return AwaitStream("clearing the counters", options_.deadline);
}

Status SharedGpuGroup::OpenOthers(std::span<const CudaMemoryHandle> handles) {
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    SE_RETURN_IF_ERROR(buffer_.Open(rank, handles[static_cast<size_t>(rank)]));
  }
  return Status::Ok();
}

// Whether the memory is the same, a wait ends and a sum is right; and each slot is used twice.
Status SharedGpuGroup::Trial() {
  std::vector<float>& numbers = trial_numbers_;
  constexpr size_t kBytes = kTrialNumbers * sizeof(float);
  const auto rank = static_cast<size_t>(options_.rank);
  for (size_t i = 0; i < kTrialNumbers; ++i) numbers.push_back(static_cast<float>(i + rank));
  auto* input = static_cast<uint8_t*>(buffer_.private_memory());
  uint8_t* output = input + kBytes;
  SE_RETURN_IF_ERROR(
      cuda_.Check(cuda_.MemcpyAsync(input, numbers.data(), kBytes, kCudaMemcpyDefault, stream_), "writing numbers"));
  SE_RETURN_IF_ERROR(AwaitStream("writing numbers", options_.deadline));
  const char* const what = "trying an allreduce among the ranks of one GPU";
  Plan barrier(options_.size);
  barrier.meets = true;
  for (int i = 0; i < kTrialBarriers; ++i) SE_RETURN_IF_ERROR(Run(what, barrier, nullptr, nullptr));
  Plan sum(options_.size);
  sum.given.Add(input, kBytes);
  sum.reduced.Add(output, kBytes);
  SE_RETURN_IF_ERROR(Reduce(what, &sum, {SE_FLOAT32, SE_SUM, 1, 1}, nullptr, nullptr));
  SE_RETURN_IF_ERROR(AwaitStream(what, options_.deadline));
  // Not before the stream is through: a copy to such memory would make the CPU wait for it, with no deadline.
  SE_RETURN_IF_ERROR(
      cuda_.Check(cuda_.MemcpyAsync(numbers.data(), output, kBytes, kCudaMemcpyDefault, stream_), "reading numbers"));
  SE_RETURN_IF_ERROR(AwaitStream("reading numbers", options_.deadline));
  const auto size = static_cast<size_t>(options_.size);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto expected = static_cast<float>(size * i + size * (size - 1) / 2);
    if (numbers[i] == expected) continue;
    return Fail(Status(SE_SYSTEM_ERROR, std::string(what) + " gave " + std::to_string(numbers[i]) + " instead of " +
                                            std::to_string(expected) + " for number " + std::to_string(i)));
  }
  return Status::Ok();
}

Status SharedGpuGroup::Agree(const Status& mine) {
  const Verdict verdict(Named(mine));
  std::vector<Verdict> verdicts(static_cast<size_t>(options_.size));
  SE_RETURN_IF_ERROR(Exchange("connecting", &verdict, sizeof(verdict), verdicts.data()));
  for (const Verdict& theirs : verdicts) {
    if (theirs.ok()) continue;
    (void)Fail(theirs.ToStatus());
    return theirs.ToStatus();  // also where this rank had failed, too
  }
  return Failure();
}

Status SharedGpuGroup::Exchange(const std::string& what, const void* mine, size_t bytes, void* all) {
  const Status status = options_.exchange(mine, bytes, all);
  return status.ok() ? status : Fail(status.Within(Who() + ", " + what));
}

Status SharedGpuGroup::Run(const char* what, const Plan& plan, CudaEvent ready, CudaEvent done) {
  SE_RETURN_IF_ERROR(Healthy());
  const DriverContextScope scope(kernels_.driver(), context_);
  Status status = scope.status();
  if (status.ok()) status = Enqueue(plan, ready, done);
  return status.ok() ? status : Fail(status.Within(Who() + ", " + what));
}

Status SharedGpuGroup::Enqueue(const Plan& plan, CudaEvent ready, CudaEvent done) {
  if (ready != nullptr) {
    SE_RETURN_IF_ERROR(cuda_.Check(cuda_.StreamWaitEvent(stream_, ready, 0), "waiting for the caller's event"));
  }
  SE_RETURN_IF_ERROR(Chunks(*this, plan).Run());
  if (done == nullptr) return Status::Ok();
  return cuda_.Check(cuda_.EventRecord(done, stream_), "recording the end");
}

Status SharedGpuGroup::AwaitStream(const std::string& what, Seconds limit) {
  const Time start = Clock::now();
  GrowingPause pause;
  for (;;) {
    const int state = cuda_.QueryStream(stream_);
    SE_RETURN_IF_ERROR(Failure());
    if (state == kCudaSuccess) return Status::Ok();
    if (state != kCudaNotReady) return Fail(cuda_.Check(state, what).Within(Who()));
    if (options_.abandoned) {
      const Status gone = options_.abandoned();
      if (!gone.ok()) {
        return Fail(gone.Within(Who() + " gave up " + what + " after " + InSeconds(Seconds(SecondsSince(start)))));
      }
    }
    if (SecondsSince(start) >= limit.count()) {
      return Fail(Status(SE_TIMED_OUT, Who() + ", " + what + ": not done within " + InSeconds(limit) +
                                           "; another rank of this GPU does not come to it, or the GPU is busy"));
    }
    pause.Sleep();
  }
}

Status SharedGpuGroup::AsyncError() { return Healthy(); }

void SharedGpuGroup::Abort(const Status& why) {
  (void)Fail(why.ok() ? Status(SE_SHUT_DOWN, Who() + " has left its group") : why);
}

Status SharedGpuGroup::Fail(const Status& why) {
  bool release = false;
  {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = why;
    release = breakable_;
  }
  if (release) {
    const DriverContextScope scope(kernels_.driver(), context_);
    // When that fails the device is lost, and with it whatever waits.
    if (scope.status().ok()) (void)buffer_.Break(release_stream_);
  }
  return why;
}

Status SharedGpuGroup::Failure() {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return failure_;
}

Status SharedGpuGroup::Healthy() {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  if (!failure_.ok()) return failure_;
  return connected_ ? Status::Ok() : Status(SE_INTERNAL, Who() + " has not joined the ranks of its GPU");
}

Status SharedGpuGroup::Refused(const std::string& what) const {
  return Status(SE_INVALID_ARGUMENT, Who() + ": " + what);
}

Status SharedGpuGroup::Named(const Status& status) const {
  return status.ok() || status.message().starts_with(Who()) ? status : status.Within(Who());
}

std::string SharedGpuGroup::Who() const {
  return "rank " + std::to_string(options_.rank) + " of " + std::to_string(options_.size) + " (sharing CUDA device " +
         std::to_string(options_.device) + ")";
}

}  // namespace spark_estimator
