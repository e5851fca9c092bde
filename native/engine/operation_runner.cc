#include "engine/operation_runner.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "base/scoped.h"

namespace spark_estimator {
namespace {

// A request's full name, made without an allocation where it is as short as usual.
class RecordedName {
 public:
  explicit RecordedName(const Request& request) : text_(request.signature->name) {
    if (request.number == Signature::kNamed) return;
    if (text_.size() + kDigits > sizeof(short_)) {
      long_ = FullName(request);
      text_ = long_;
      return;
    }
    char* at = std::copy(text_.begin(), text_.end(), short_);
    *at++ = '.';
    at = std::to_chars(at, short_ + sizeof(short_), request.number).ptr;
    text_ = std::string_view(short_, static_cast<size_t>(at - short_));
  }
  RecordedName(const RecordedName&) = delete;
  RecordedName& operator=(const RecordedName&) = delete;
  std::string_view text() const { return text_; }

 private:
  static constexpr size_t kDigits = 20;
  std::string_view text_;
  std::string long_;
  char short_[64];
};

}  // namespace

Status OperationRunner::Run(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows,
                            AgreedBy agreed_by) {
  if (state_ == State::kRunning) return Status(SE_INTERNAL, "an operation is running already");
  const Time began = Clock::now();
  const bool on_gpu = requests[0]->signature->place == SE_GPU;
  Status status;
  {
    const ScopedValue running(state_, State::kRunning);
    const ScopedValue<const std::vector<RequestPtr>*> what(running_, &requests);
    status = on_gpu ? parts_.gpu->Run(requests, rows) : parts_.executor->Run(requests, rows);
  }
  const char* algorithm = on_gpu ? parts_.gpu->algorithm() : parts_.executor->algorithm();
  if (!status.ok()) {
    for (const RequestPtr& request : requests) request->recorded = true;
    Record(*requests[0], static_cast<int>(requests.size()), algorithm, began, Clock::now(), status.code(), agreed_by);
    return status;
  }
  executed_ += 1;
  const Time ended = Clock::now();
  Increase(parts_.counters->execution_nanoseconds,
           std::chrono::duration_cast<std::chrono::nanoseconds>(ended - began).count());
  // One line in the flight recorder, but each tensor has its row in the timeline.
  auto num_requests = static_cast<int>(requests.size());
  for (const RequestPtr& request : requests) {
    Record(*request, std::exchange(num_requests, 0), algorithm, began, ended, SE_OK, agreed_by);
  }
  parts_.requests->Complete(requests, Status::Ok());
  return Status::Ok();
}

std::string OperationRunner::Label() const {
  int64_t bytes = 0;
  for (const RequestPtr& request : *running_) bytes += request->bytes;
  const size_t more = running_->size() - 1;
  return LabelOf(*(*running_)[0]) + (more > 0 ? " and " + std::to_string(more) + " more" : "") + " (" +
         std::to_string(bytes) + " bytes)";
}

void OperationRunner::CompleteInline(const RequestPtr& request) {
  Increase(parts_.counters->operations);
  Increase(parts_.counters->inline_operations);
  executed_ += 1;
  const Time now = Clock::now();
  Record(*request, 1, "inline", now, now, SE_OK, AgreedBy::kRounds);
  parts_.requests->Complete(*request, Status::Ok());
}

void OperationRunner::Record(const Request& request, int num_requests, const char* algorithm, Time started,
                             Time finished, int32_t status, AgreedBy agreed_by) {
  const Signature& signature = *request.signature;
  const bool by_rounds = agreed_by == AgreedBy::kRounds;
  const RecordedName name(request);
  OpRecord record;
  record.sequence = executed_;
  record.name = name.text();
  record.num_requests = num_requests;
  record.op = signature.op;
  record.dtype = signature.parts.empty() ? SE_UINT8 : signature.parts[0].dtype;
  record.bytes = request.bytes;
  record.algorithm = algorithm;
  record.submitted = request.submitted == Time{} ? started : request.submitted;
  // A plan's request may still have the time at which an earlier submission of it was agreed on.
  record.agreed = by_rounds || request.agreed < record.submitted ? started : request.agreed;
  record.started = started;
  record.finished = finished;
  record.status = status;
  record.fast = by_rounds;
  if (num_requests > 0) parts_.recorder->Add(record);
  if (parts_.timeline->on()) parts_.timeline->Op(record);
}

}  // namespace spark_estimator
