#include "engine/coordinator.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/dtype.h"

namespace spark_estimator {
namespace {

std::string NumberText(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

std::string ShapeText(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
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

// "rank 0 has [2, 3]; ranks 1, 2 have [3, 2]", or nothing when all say the same.
std::string Differences(const std::map<int, Signature>& by_rank,
                        const std::function<std::string(const Signature&)>& aspect) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const auto& [rank, request] : by_rank) {
    const std::string value = aspect(request);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& entry) { return entry.first == value; });
    if (group == groups.end()) group = groups.insert(groups.end(), {value, {}});
    group->second.push_back(rank);
  }
  if (groups.size() < 2) return "";
  std::string text;
  for (const auto& [value, ranks] : groups) {
    text += (text.empty() ? "" : "; ") + RanksText(ranks) + (ranks.size() == 1 ? " has " : " have ") + value;
  }
  return text;
}

// For long bucket lists: where two lists of counts part ways says more than both in full.
std::string CountsText(const Signature& request, const std::vector<int64_t>& reference) {
  const auto [mine, other] =
      std::mismatch(request.dims.begin(), request.dims.end(), reference.begin(), reference.end());
  const std::string total = std::to_string(request.num_buffers) + " tensors";
  if (mine == request.dims.end()) return total + ", " + std::to_string(request.Elements()) + " elements";
  return total + ", tensor " + std::to_string(mine - request.dims.begin()) + " with " + std::to_string(*mine) +
         " elements";
}

// Why requests that agree cannot be carried out all the same; empty when they can.
std::string Impossible(const Signature& request, int size) {
  if (request.process_set != 0) {
    return "process set " + std::to_string(request.process_set) + " is not registered; only 0, all ranks, exists";
  }
  if (request.op == SE_BROADCAST && (request.root_rank < 0 || request.root_rank >= size)) {
    return "root rank " + std::to_string(request.root_rank) + " is outside 0.." + std::to_string(size - 1);
  }
  if (request.op == SE_ALLREDUCE && request.dtype == SE_BOOL && request.reduce_op == SE_AVERAGE) {
    return "the average of bool tensors is not defined; use op=Sum (or), Min (and), or another dtype";
  }
  if (request.op == SE_ALLREDUCE && request.dtype == SE_BOOL && (request.prescale != 1.0 || request.postscale != 1.0)) {
    return "bool tensors cannot be scaled";
  }
  if (request.op == SE_ALLGATHER && request.dims.empty()) {
    return "allgather joins tensors along their first dimension, and a 0-d tensor has none; reshape it to [1]";
  }
  return "";
}

}  // namespace

std::string Stall::Describe() const {
  return op + " '" + name + "' has waited " + std::to_string(std::llround(waited_seconds)) + " s for " +
         RanksText(missing_ranks) + ", which did not submit it";
}

Coordinator::Coordinator(int size, int64_t fusion_threshold_bytes)
    : size_(size), fusion_threshold_bytes_(fusion_threshold_bytes) {}

void Coordinator::Add(int rank, Signature request, Time now) {
  std::string name = request.name;
  auto [entry, added] = waiting_.try_emplace(name);
  Meeting& meeting = entry->second;
  if (added) {
    meeting.first_asked = now;
    meeting.order = next_order_++;
  }
  meeting.by_rank.insert_or_assign(rank, std::move(request));
  if (static_cast<int>(meeting.by_rank.size()) < size_) return;
  ready_.push_back(Conclude(meeting));
  waiting_.erase(entry);
}

Coordinator::Ready Coordinator::Conclude(const Meeting& meeting) const {
  Ready ready;
  ready.request = meeting.by_rank.begin()->second;
  const Signature& first = ready.request;
  const auto differ = [&](const std::string& what, const std::function<std::string(const Signature&)>& aspect) {
    if (!ready.error.empty()) return;
    const std::string text = Differences(meeting.by_rank, aspect);
    if (!text.empty()) ready.error = "Mismatched " + Upper(OpName(first.op)) + " " + what + ": " + text;
  };
  {
    const std::string text = Differences(meeting.by_rank, [](const Signature& s) { return OpName(s.op); });
    if (!text.empty()) ready.error = "Mismatched operations: " + text;
  }
  differ("process sets", [](const Signature& s) { return std::to_string(s.process_set); });
  differ("data types", [](const Signature& s) { return DtypeName(s.dtype); });
  differ("tensor counts", [](const Signature& s) { return std::to_string(s.num_buffers) + " tensors"; });
  if (first.op == SE_ALLREDUCE) differ("reduce ops", [](const Signature& s) { return ReduceOpName(s.reduce_op); });
  if (first.op == SE_BROADCAST) differ("root ranks", [](const Signature& s) { return std::to_string(s.root_rank); });
  differ("prescale factors", [](const Signature& s) { return NumberText(s.prescale); });
  differ("postscale factors", [](const Signature& s) { return NumberText(s.postscale); });
  if (first.op == SE_ALLGATHER) {
    differ("numbers of dimensions", [](const Signature& s) { return std::to_string(s.dims.size()); });
    differ("tensor shapes beyond the first dimension", [](const Signature& s) {
      return ShapeText(s.dims.empty() ? s.dims : std::vector<int64_t>(s.dims.begin() + 1, s.dims.end()));
    });
  } else if (first.num_buffers > 1) {
    const Signature& last = meeting.by_rank.rbegin()->second;
    differ("tensor sizes",
           [&](const Signature& s) { return CountsText(s, s.dims == first.dims ? last.dims : first.dims); });
  } else {
    differ("tensor shapes", [](const Signature& s) { return ShapeText(s.dims); });
  }
  if (ready.error.empty()) ready.error = Impossible(first, size_);
  if (ready.error.empty() && first.op == SE_ALLGATHER) {
    for (const auto& [rank, request] : meeting.by_rank) ready.rows.push_back(request.dims[0]);
  }
  return ready;
}

bool Coordinator::CanFuse(const Signature& a, const Signature& b) const {
  return a.op == SE_ALLREDUCE && b.op == SE_ALLREDUCE && a.dtype == b.dtype && a.reduce_op == b.reduce_op &&
         a.prescale == b.prescale && a.postscale == b.postscale;
}

std::vector<Response> Coordinator::TakeReady() {
  std::vector<Response> responses;
  const Signature* open = nullptr;  // the first request of the response that may still take more
  int64_t open_bytes = 0;
  for (const Ready& ready : ready_) {
    const int64_t bytes = ready.request.Elements() * static_cast<int64_t>(DtypeBytes(ready.request.dtype));
    if (ready.error.empty() && open != nullptr && CanFuse(*open, ready.request) &&
        open_bytes + bytes <= fusion_threshold_bytes_) {
      responses.back().names.push_back(ready.request.name);
      open_bytes += bytes;
      continue;
    }
    Response response;
    response.sequence = next_sequence_++;
    response.names = {ready.request.name};
    response.error = ready.error;
    response.rows = ready.rows;
    responses.push_back(std::move(response));
    open = ready.error.empty() && ready.request.op == SE_ALLREDUCE ? &ready.request : nullptr;
    open_bytes = bytes;
  }
  ready_.clear();
  return responses;
}

std::vector<int> Coordinator::Missing(const Meeting& meeting) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (!meeting.by_rank.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

std::vector<Stall> Coordinator::TakeStalled(double age_seconds, Time now) {
  std::vector<std::pair<uint64_t, Stall>> stalls;
  for (auto& [name, meeting] : waiting_) {
    const double waited = Seconds(now - meeting.first_asked).count();
    if (meeting.stall_told || waited < age_seconds) continue;
    meeting.stall_told = true;
    stalls.push_back(
        {meeting.order, Stall{name, OpName(meeting.by_rank.begin()->second.op), waited, Missing(meeting)}});
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
    ready.error =
        Stall{name, OpName(ready.request.op), Seconds(now - meeting.first_asked).count(), Missing(meeting)}.Describe() +
        "; given up (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)";
    ready_.push_back(std::move(ready));
    waiting_.erase(name);
  }
}

}  // namespace spark_estimator
