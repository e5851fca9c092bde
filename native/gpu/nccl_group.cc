#include "gpu/nccl_group.h"

#include <algorithm>
#include <utility>

#include "base/contain.h"
#include "gpu/nccl_calls.h"
#include "gpu/pause.h"

namespace spark_estimator {
namespace {

constexpr const char* kHint = "; with NCCL_DEBUG=INFO in the environment of all ranks NCCL logs what it does";

// Operators of one communicator that are kept. More distinct factors than this mean that the factor changes all the
// time.
constexpr size_t kFactorsKept = 64;

se_status CodeOf(int result) {
  switch (result) {
    case kNcclRemoteError:
      return SE_PEER_LOST;
    case kNcclInternalError:
    case kNcclInvalidArgument:
    case kNcclInvalidUsage:
      return SE_INTERNAL;
    default:
      return SE_SYSTEM_ERROR;
  }
}

}  // namespace

Status NcclGroup::MakeId(const NcclApi& nccl, NcclUniqueId* id) {
  const int result = nccl.GetUniqueId(id);
  if (result == kNcclSuccess) return Status::Ok();
  return Status(CodeOf(result), "NCCL makes no id for a communicator: " + nccl.Explain(result, nullptr) + kHint);
}

Status NcclGroup::Create(const NcclApi& nccl, const CudaApi& cuda, Options options, std::unique_ptr<NcclGroup>* group) {
  auto created = std::make_unique<NcclGroup>(nccl, cuda, std::move(options));
  SE_RETURN_IF_ERROR(created->Connect());
  *group = std::move(created);
  return Status::Ok();
}

NcclGroup::NcclGroup(const NcclApi& nccl, const CudaApi& cuda, Options options)
    : nccl_(nccl), cuda_(cuda), options_(std::move(options)), events_(cuda, options_.device) {}

NcclGroup::~NcclGroup() {
  const CudaDeviceScope device(cuda_, options_.device);
  const Status left = Contain(Status::OutOfMemory(), [this] {
    SayGoodbye();
    return Status::Ok();
  });
  if (!left.ok()) (void)Fail(left);
  if (stream_ == nullptr) return;
  // Freeing memory waits for the device: only when the stream has finished and has no kernels of NCCL. It may still
  // wait for a caller's stream; then its memory stays until the process ends.
  GrowingPause pause;
  const Time end = After(options_.farewell);
  int state = cuda_.QueryStream(stream_);
  for (; state == kCudaNotReady && Clock::now() < end; state = cuda_.QueryStream(stream_)) pause.Sleep();
  if (state != kCudaNotReady) {
    for (void* data : scratch_) cuda_.Free(data);
  }
  cuda_.StreamDestroy(stream_);
}

void NcclGroup::SayGoodbye() {
  int result = kNcclSuccess;
  Status refused;
  {
    const std::lock_guard<std::mutex> lock(comm_mutex_);
    if (comm_ == nullptr) return;
    for (const Factor& factor : factors_) nccl_.RedOpDestroy(factor.op, comm_);
    result = nccl_.CommFinalize(comm_);
    if (!NcclHasTaken(result)) refused = Explained("leaving the group", result);
  }
  if (!refused.ok()) {
    (void)Fail(refused);
    return;
  }
  // Until all ranks' operations are over. A failure aborts.
  if (!AwaitNccl("leaving the group", std::min(options_.farewell, options_.deadline)).ok()) return;
  const std::lock_guard<std::mutex> lock(comm_mutex_);
  if (comm_ != nullptr) nccl_.CommDestroy(std::exchange(comm_, nullptr));
}

Status NcclGroup::Connect() {
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  if (stream_ != nullptr) return Status(SE_INTERNAL, Who() + " connects a second time");
  const CudaDeviceScope device(cuda_, options_.device);
  if (!device.status().ok()) return Fail(device.status().Within(Who()));
  if (const Status status = OpenStream(); !status.ok()) return Fail(status.Within(Who()));
  Status refused;
  {
    const std::lock_guard<std::mutex> lock(comm_mutex_);
    if (!failure_.ok()) return failure_;
    NcclConfig config;
    config.blocking = 0;
    const int result = nccl_.CommInitRankConfig(&comm_, options_.size, options_.id, options_.rank, &config);
    if (!NcclHasTaken(result)) refused = Explained("joining the NCCL communicator", result);
  }
  if (!refused.ok()) return Fail(refused);
  SE_RETURN_IF_ERROR(AwaitNccl("joining the NCCL communicator", options_.deadline));
  // For later barriers.
  void* data = nullptr;
  Status status = Scratch(kAlignment, &data);
  if (status.ok()) status = Clear(data, kAlignment);
  return status.ok() ? status : Fail(status.Within(Who()));
}

Status NcclGroup::OpenStream() {
  // Work that waits for a collective waits for the other ranks, too: its few blocks have precedence over those of
  // computations.
  int least = 0;
  int greatest = 0;
  SE_RETURN_IF_ERROR(
      cuda_.Check(cuda_.DeviceGetStreamPriorityRange(&least, &greatest), "asking for the streams' priorities"));
  return cuda_.Check(cuda_.StreamCreateWithPriority(&stream_, kCudaStreamNonBlocking, greatest), "making a stream");
}

Status NcclGroup::Run(const char* what, CudaEvent ready, CudaEvent done, const std::function<Status()>& prepare,
                      const std::function<int(NcclComm)>& call) {
  const std::lock_guard<std::mutex> operation(operation_mutex_);
  SE_RETURN_IF_ERROR(Healthy());
  const CudaDeviceScope device(cuda_, options_.device);
  Status status = device.status();
  if (status.ok() && ready != nullptr) {
    status = cuda_.Check(cuda_.StreamWaitEvent(stream_, ready, 0), "waiting for the caller's event");
  }
  if (status.ok() && prepare) status = prepare();
  if (!status.ok()) return Fail(status.Within(Who() + ", " + what));
  if (call) {
    Status refused;
    {
      const std::lock_guard<std::mutex> lock(comm_mutex_);
      if (!failure_.ok()) return failure_;
      NcclCalls calls;
      calls.Add(nccl_.GroupStart());
      if (calls.going_on()) {
        calls.Add(call(comm_));
        calls.Add(nccl_.GroupEnd());  // also behind a refused call: the group is the thread's, and would stay open
      }
      if (!calls.going_on()) refused = Explained(what, calls.result());
    }
    if (!refused.ok()) return Fail(refused);
    SE_RETURN_IF_ERROR(AwaitNccl(what, options_.deadline));
  }
  if (done == nullptr) return Status::Ok();
  status = cuda_.Check(cuda_.EventRecord(done, stream_), "recording the end");
  return status.ok() ? status : Fail(status.Within(Who() + ", " + what));
}

Status NcclGroup::AsyncError() {
  bool in_progress = false;
  return Look("between operations", &in_progress);
}

void NcclGroup::Abort(const Status& why) {
  (void)Fail(why.ok() ? Status(SE_SHUT_DOWN, Who() + " has aborted its NCCL communicator") : why);
}

Status NcclGroup::Look(const std::string& what, bool* in_progress) {
  Status status;
  {
    const std::lock_guard<std::mutex> lock(comm_mutex_);
    if (!failure_.ok()) return failure_;
    if (comm_ == nullptr) return NotConnected();
    int state = kNcclSuccess;
    int result = nccl_.CommGetAsyncError(comm_, &state);
    if (result == kNcclSuccess) result = state;
    *in_progress = result == kNcclInProgress;
    if (!NcclHasTaken(result)) status = Explained(what, result);
  }
  return status.ok() ? status : Fail(status);
}

Status NcclGroup::AwaitNccl(const std::string& what, Seconds limit) {
  const Time start = Clock::now();
  GrowingPause pause;
  for (;;) {
    bool in_progress = false;
    SE_RETURN_IF_ERROR(Look(what, &in_progress));
    if (!in_progress) return Status::Ok();
    if (options_.abandoned) {
      const Status gone = options_.abandoned();
      if (!gone.ok()) {
        return Fail(gone.Within(Who() + " gave up " + what + " after " + InSeconds(Seconds(SecondsSince(start)))));
      }
    }
    if (SecondsSince(start) >= limit.count()) return Fail(TookTooLong(what, limit));
    pause.Sleep();
  }
}

Status NcclGroup::OperatorFor(const Reduction& reduction, int* op, NcclType* type) {
  const NcclReduction wanted = NcclReductionOf(reduction, options_.size);
  *op = wanted.op;
  *type = wanted.type;
  if (wanted.factor == 1) return Status::Ok();
  for (const Factor& known : factors_) {
    if (known.type != wanted.type || known.factor != wanted.factor) continue;
    *op = known.op;
    return Status::Ok();
  }
  const std::lock_guard<std::mutex> lock(comm_mutex_);
  if (!failure_.ok()) return failure_;
  if (factors_.size() == kFactorsKept) {  // the oldest is removed: its users have been launched
    nccl_.RedOpDestroy(factors_.front().op, comm_);
    factors_.erase(factors_.begin());
  }
  NcclScalar scalar = NcclScalarOf(wanted.factor, wanted.type);
  const int result = nccl_.RedOpCreatePreMulSum(op, scalar.bytes, wanted.type, kNcclScalarHostImmediate, comm_);
  if (!NcclHasTaken(result))
    return Status(CodeOf(result), "making an operator for a factor: " + nccl_.Explain(result, comm_) + kHint);
  factors_.push_back({wanted.type, wanted.factor, *op});
  return Status::Ok();
}

Status NcclGroup::Scratch(size_t bytes, void** data) {
  if (bytes > scratch_bytes_) {
    const size_t enough = std::max(Aligned(bytes), 2 * scratch_bytes_);
    void* memory = nullptr;
    SE_RETURN_IF_ERROR(
        cuda_.Check(cuda_.Malloc(&memory, enough), "allocating " + std::to_string(enough) + " bytes on the device"));
    scratch_.push_back(memory);
    scratch_bytes_ = enough;
  }
  *data = scratch_.back();
  return Status::Ok();
}

Status NcclGroup::Clear(void* data, size_t bytes) {
  return cuda_.Check(cuda_.MemsetAsync(data, 0, bytes, stream_),
                     "clearing " + std::to_string(bytes) + " bytes on the device");
}

Status NcclGroup::Fail(const Status& why) {
  NcclComm comm = nullptr;
  {
    const std::lock_guard<std::mutex> lock(comm_mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = why;
    comm = std::exchange(comm_, nullptr);
  }
  // Nothing else refers to it any more, and a caller that queries the failure need not wait while NCCL ends its
  // kernels.
  if (comm != nullptr) {
    const CudaDeviceScope device(cuda_, options_.device);
    nccl_.CommAbort(comm);
  }
  return why;
}

Status NcclGroup::Healthy() {
  const std::lock_guard<std::mutex> lock(comm_mutex_);
  if (!failure_.ok()) return failure_;
  return comm_ != nullptr ? Status::Ok() : NotConnected();
}

Status NcclGroup::Explained(const std::string& what, int result) const {
  return Status(CodeOf(result), Who() + ", " + what + ": " + nccl_.Explain(result, comm_) + kHint);
}

Status NcclGroup::TookTooLong(const std::string& what, Seconds limit) {
  std::string last;
  {
    const std::lock_guard<std::mutex> lock(comm_mutex_);
    if (comm_ != nullptr) last = nccl_.Explain(kNcclInProgress, comm_);
  }
  return Status(SE_TIMED_OUT, Who() + ", " + what + ": not done within " + InSeconds(limit) + "; " + last + kHint);
}

Status NcclGroup::NotConnected() const { return Status(SE_INTERNAL, Who() + " has not joined its communicator"); }

Status NcclGroup::Refused(const std::string& what) const { return Status(SE_INVALID_ARGUMENT, Who() + ": " + what); }

std::string NcclGroup::Who() const {
  return "rank " + std::to_string(options_.rank) + " of " + std::to_string(options_.size) + " (CUDA device " +
         std::to_string(options_.device) + ")";
}

}  // namespace spark_estimator
