#include "engine/negotiation/coordinator.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/dtype.h"
#include "base/rows.h"
#include "engine/wire/validity.h"

namespace spark_estimator {
namespace {

std::string NumberText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

std::string ListText(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

std::string RanksText(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

std::string Upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return text;
}

// What to do about ranks that contradict each other.
std::string Remedy(const Signature& request) {
  return request.unnamed() ? "Calls without a name are matched by their order on each rank: make the same calls in the "
                             "same order on all ranks, or give them names."
                           : "All ranks must make the same call under the same name; different tensors need "
                             "different names.";
}

bool FreeFirstDimension(int32_t op) { return op == SE_ALLGATHER || op == SE_ALLTOALL; }

// The dimensions that must be alike on all ranks.
std::vector<int64_t> Compared(const Signature& signature, const Part& part) {
  const bool skip = FreeFirstDimension(signature.op) && !part.dims.empty();
  return std::vector<int64_t>(part.dims.begin() + (skip ? 1 : 0), part.dims.end());
}

bool SamePart(const Signature& a, const Signature& b, size_t index) {
  const Part& mine = a.parts[index];
  const Part& other = b.parts[index];
  return mine.dtype == other.dtype && mine.int8 == other.int8 && mine.dims.size() == other.dims.size() &&
         Compared(a, mine) == Compared(b, other);
}

// A part's type, and what it is sent as where that is another one.
std::string TypeText(const Part& part) { return DtypeName(part.dtype) + (part.int8 ? " sent as int8" : ""); }

// For long lists of tensors: the first difference between `signature` and `reference` is clearer than both in full.
std::string GroupText(const Signature& signature, const Signature& reference) {
  const std::string total = std::to_string(signature.parts.size()) + " tensors";
  for (size_t i = 0; i < std::min(signature.parts.size(), reference.parts.size()); ++i) {
    if (SamePart(signature, reference, i)) continue;
    return total + ", tensor " + std::to_string(i) + " of " + TypeText(signature.parts[i]) + " " +
           ListText(signature.parts[i].dims);
  }
  return total;
}

}  // namespace

std::string Stall::Describe() const {
  return op + " '" + name + "' has waited " + std::to_string(std::llround(waited_seconds)) + " s for " +
         RanksText(missing_global_ranks) + ", which did not submit it";
}

Coordinator::Coordinator(std::vector<int> global_ranks, int64_t fusion_threshold_bytes)
    : global_ranks_(std::move(global_ranks)), fusion_threshold_bytes_(fusion_threshold_bytes) {}

std::string Coordinator::Differences(const Meeting& meeting,
                                     const std::function<std::string(const Signature&)>& aspect) const {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const auto& [rank, request] : meeting.by_rank) {
    const std::string value = aspect(request);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& entry) { return entry.first == value; });
    if (group == groups.end()) group = groups.insert(groups.end(), {value, {}});
    group->second.push_back(rank);
  }
  if (groups.size() < 2) return "";
  std::string text;
  for (const auto& [value, ranks] : groups) {
    text += (text.empty() ? "" : "; ") + RanksText(Global(ranks)) + (ranks.size() == 1 ? " has " : " have ") + value;
  }
  return text;
}

void Coordinator::Add(int rank, Signature request, Time now) {
  if (request.op == SE_JOIN) return Join(rank, request.name);
  if (request.unnamed()) {
    // Its rank is notified that it has failed; no rank will use this number again.
    const auto given_up = given_up_.find(request.name);
    if (given_up != given_up_.end() && request.number <= given_up->second) return;
  }
  const std::string name = FullName(request);
  auto [entry, added] = waiting_.try_emplace(name);
  Meeting& meeting = entry->second;
  if (added) {
    meeting.first_asked = now;
    meeting.order = next_order_++;
  }
  meeting.by_rank.insert_or_assign(rank, std::move(request));
  ConcludeIfComplete(name);
}

void Coordinator::Join(int rank, const std::string& name) {
  joined_[rank] = name;
  last_joined_ = rank;
  all_joined_ = static_cast<int>(joined_.size()) == size();
  std::vector<std::pair<uint64_t, std::string>> complete;
  for (const auto& [waiting, meeting] : waiting_) {
    if (Complete(meeting)) complete.push_back({meeting.order, waiting});
  }
  std::sort(complete.begin(), complete.end());
  for (const auto& [order, waiting] : complete) ConcludeIfComplete(waiting);
}

bool Coordinator::Complete(const Meeting& meeting) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (!meeting.by_rank.contains(rank) && !joined_.contains(rank)) return false;
  }
  return true;
}

void Coordinator::ConcludeIfComplete(const std::string& name) {
  const auto entry = waiting_.find(name);
  if (entry == waiting_.end() || !Complete(entry->second)) return;
  ready_.push_back(Conclude(entry->second));
  waiting_.erase(entry);
}

Coordinator::Ready Coordinator::Conclude(const Meeting& meeting) const {
  Ready ready;
  ready.request = meeting.by_rank.begin()->second;
  const Signature& first = ready.request;
  const Signature& last = meeting.by_rank.rbegin()->second;
  const auto differ = [&](const std::string& what, const std::function<std::string(const Signature&)>& aspect) {
    if (!ready.error.empty()) return;
    const std::string text = Differences(meeting, aspect);
    if (!text.empty()) ready.error = "Mismatched " + Upper(OpName(first.op)) + " " + what + ": " + text;
  };
  {
    const std::string text = Differences(meeting, [](const Signature& s) { return OpName(s.op); });
    if (!text.empty()) ready.error = "Mismatched operations: " + text;
  }
  const bool agreed_so_far = ready.error.empty();
  differ("places", [](const Signature& s) { return std::string(s.place == SE_GPU ? "a GPU tensor" : "a CPU tensor"); });
  if (agreed_so_far && !ready.error.empty()) {
    ready.error += " (as one has whose HOROVOD_GPU_OPERATIONS is copy, or whose PyTorch has no CUDA)";
  }
  differ("tensor counts", [](const Signature& s) {
    return std::to_string(s.parts.size()) + (s.parts.size() == 1 ? " tensor" : " tensors");
  });
  if (first.op == SE_ALLREDUCE || first.op == SE_REDUCESCATTER) {
    differ("reduce ops", [](const Signature& s) { return ReduceOpName(s.reduce_op); });
    differ("prescale factors", [](const Signature& s) { return NumberText(s.prescale); });
    differ("postscale factors", [](const Signature& s) { return NumberText(s.postscale); });
  }
  if (first.op == SE_BROADCAST) {
    differ("root ranks", [&](const Signature& s) {
      const bool known = s.root_rank >= 0 && s.root_rank < size();
      return std::to_string(known ? global_ranks_[static_cast<size_t>(s.root_rank)] : s.root_rank);
    });
  }
  if (first.parts.size() == 1) {
    differ("data types", [](const Signature& s) { return TypeText(s.parts[0]); });
    if (FreeFirstDimension(first.op)) {
      differ("numbers of dimensions", [](const Signature& s) { return std::to_string(s.parts[0].dims.size()); });
      differ("tensor shapes beyond the first dimension",
             [](const Signature& s) { return ListText(Compared(s, s.parts[0])); });
    } else {
      differ("tensor shapes", [](const Signature& s) { return ListText(s.parts[0].dims); });
    }
  } else if (first.parts.size() > 1) {
    differ("tensors", [&](const Signature& s) {
      for (size_t i = 0; i < s.parts.size(); ++i) {
        if (!SamePart(s, first, i)) return GroupText(s, first);
      }
      return GroupText(s, last);
    });
  }
  const bool contradictory = !ready.error.empty();
  if (!contradictory) ready.error = Impossible(first);
  if (!ready.error.empty()) ready.error += " (name '" + FullName(first) + "')";
  if (contradictory) ready.error += ". " + Remedy(first);
  if (ready.error.empty()) ready.rows = Rows(meeting);
  return ready;
}

// Why requests that agree cannot be carried out now; empty when they can.
std::string Coordinator::Impossible(const Signature& request) const {
  const std::string joined_ranks = [&] {
    std::vector<int> ranks;
    for (const auto& [rank, name] : joined_) ranks.push_back(rank);
    return RanksText(Global(ranks)) + (ranks.size() == 1 ? " has" : " have") + " called join()";
  }();
  if (!joined_.empty() && request.op != SE_ALLREDUCE && request.op != SE_BARRIER) {
    return OpName(request.op) + " is not possible once " + joined_ranks +
           ": a rank has no tensor after join(). Call join() only when nothing but allreduces and barriers follows on "
           "any rank";
  }
  if (!joined_.empty() && request.op == SE_ALLREDUCE && request.reduce_op != SE_SUM &&
      request.reduce_op != SE_AVERAGE) {
    return "an allreduce by " + ReduceOpName(request.reduce_op) + " is not possible once " + joined_ranks +
           ": a rank contributes zeros after join(), which only Sum and Average allow";
  }
  return "";
}

std::vector<int64_t> Coordinator::Rows(const Meeting& meeting) const {
  std::vector<int64_t> rows;
  const Signature& first = meeting.by_rank.begin()->second;
  if (first.op == SE_ALLGATHER) {
    for (size_t part = 0; part < first.parts.size(); ++part) {
      for (const auto& [rank, request] : meeting.by_rank) rows.push_back(request.parts[part].dims[0]);
    }
  } else if (first.op == SE_ALLTOALL) {
    for (const auto& [rank, request] : meeting.by_rank) {
      for (int to = 0; to < size(); ++to) {
        rows.push_back(request.splits.empty() ? RowsOf(request.parts[0].dims[0], to, size())
                                              : request.splits[static_cast<size_t>(to)]);
      }
    }
  }
  return rows;
}

std::vector<Response> Coordinator::TakeReady() {
  std::vector<Response> responses;
  const Signature* open = nullptr;  // the first request of the response that may still take more
  int64_t open_bytes = 0;
  for (const Ready& ready : ready_) {
    const int64_t bytes = ready.request.Bytes();
    if (ready.error.empty() && open != nullptr && CanFuse(*open, ready.request) &&
        open_bytes + bytes <= fusion_threshold_bytes_) {
      responses.back().names.push_back(FullName(ready.request));
      if (!joined_.empty()) responses.back().signatures.push_back(ready.request);
      open_bytes += bytes;
      continue;
    }
    Response response;
    response.kind = ready.error.empty() ? Response::Kind::kRun : Response::Kind::kFail;
    response.names = {FullName(ready.request)};
    if (!ready.error.empty()) response.number = ready.request.number;
    response.text = ready.error;
    response.rows = ready.rows;
    if (!joined_.empty() && ready.error.empty()) response.signatures = {ready.request};
    responses.push_back(std::move(response));
    open = ready.error.empty() && ready.request.op == SE_ALLREDUCE ? &ready.request : nullptr;
    open_bytes = bytes;
  }
  ready_.clear();
  if (all_joined_) {
    Response response;
    response.kind = Response::Kind::kJoined;
    response.last_joined = last_joined_;
    responses.push_back(std::move(response));
    joined_.clear();
    all_joined_ = false;
    given_up_.clear();  // unnamed requests are counted from 0 again
  }
  return responses;
}

std::vector<int> Coordinator::Missing(const Meeting& meeting) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank) {
    if (!meeting.by_rank.contains(rank) && !joined_.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

std::vector<int> Coordinator::Global(const std::vector<int>& ranks) const {
  std::vector<int> global;
  for (const int rank : ranks) global.push_back(global_ranks_[static_cast<size_t>(rank)]);
  return global;
}

std::vector<Stall> Coordinator::TakeStalled(double age_seconds, Time now) {
  std::vector<std::pair<uint64_t, Stall>> stalls;
  for (auto& [name, meeting] : waiting_) {
    const double waited = Seconds(now - meeting.first_asked).count();
    if (meeting.stall_reported || waited < age_seconds) continue;
    meeting.stall_reported = true;
    const std::vector<int> missing = Missing(meeting);
    stalls.push_back(
        {meeting.order, Stall{name, OpName(meeting.by_rank.begin()->second.op), waited, missing, Global(missing)}});
  }
  std::sort(stalls.begin(), stalls.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Stall> in_order;
  for (auto& [order, stall] : stalls) in_order.push_back(std::move(stall));
  return in_order;
}

void Coordinator::FailStalled(double age_seconds, Time now) {
  std::vector<std::string> overdue;
  for (const auto& [name, meeting] : waiting_) {
    if (Seconds(now - meeting.first_asked).count() >= age_seconds) overdue.push_back(name);
  }
  std::sort(overdue.begin(), overdue.end(),
            [&](const std::string& a, const std::string& b) { return waiting_.at(a).order < waiting_.at(b).order; });
  for (const std::string& name : overdue) {
    const Meeting& meeting = waiting_.at(name);
    Ready ready;
    ready.request = meeting.by_rank.begin()->second;
    const std::vector<int> missing = Missing(meeting);
    ready.error =
        Stall{name, OpName(ready.request.op), Seconds(now - meeting.first_asked).count(), missing, Global(missing)}
            .Describe() +
        "; given up, as HOROVOD_STALL_SHUTDOWN_TIME_SECONDS has passed";
    if (!ready.request.unnamed()) {
      // A missing rank's request may be in flight and cross this: it then matches the others' next one of that name.
      ready.rows.assign(missing.begin(), missing.end());
    } else {
      int64_t& through = given_up_.try_emplace(ready.request.name, ready.request.number).first->second;
      through = std::max(through, ready.request.number);
    }
    ready_.push_back(std::move(ready));
    waiting_.erase(name);
  }
}

}  // namespace spark_estimator
