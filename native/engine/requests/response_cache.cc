#include "engine/requests/response_cache.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {
namespace {

// All NaNs are sent as the same bits in a negotiation.
double Canonical(double factor) { return std::isnan(factor) ? std::numeric_limits<double>::quiet_NaN() : factor; }

void Write(ByteWriter& writer, const Signature& signature, size_t first_dim) {
  writer.Text(signature.name);
  writer.Number(signature.op);
  writer.Number(signature.reduce_op);
  writer.Number(signature.root_rank);
  writer.Number(signature.place);
  writer.Number(Canonical(signature.prescale));
  writer.Number(Canonical(signature.postscale));
  writer.Number(static_cast<uint32_t>(signature.parts.size()));
  for (const Part& part : signature.parts) {
    writer.Number(part.dtype);
    writer.Number(static_cast<uint8_t>(part.int8));
    writer.Number(static_cast<uint32_t>(part.dims.size()));
    for (size_t i = first_dim; i < part.dims.size(); ++i) writer.Number(part.dims[i]);
  }
}

// All that this rank sends about a request.
std::string OwnKey(const Signature& signature) {
  ByteWriter writer;
  Write(writer, signature, 0);
  writer.Numbers(signature.splits);
  return writer.Take();
}

// All that every rank knows of it.
std::string AgreementKey(const Signature& signature, const std::vector<int64_t>& rows) {
  const bool has_rows = signature.op == SE_ALLGATHER || signature.op == SE_ALLTOALL;
  ByteWriter writer;
  Write(writer, signature, has_rows ? 1 : 0);
  writer.Numbers(rows);
  return writer.Take();
}

}  // namespace

ResponseCache::ResponseCache(size_t capacity) : slots_(capacity) {
  for (size_t id = 0; id < capacity; ++id) slots_[id].age = by_age_.insert(by_age_.end(), static_cast<int32_t>(id));
}

const ResponseCache::Entry* ResponseCache::Find(const Signature& signature) const {
  if (slots_.empty()) return nullptr;
  if (signature.unnamed()) {
    const auto entry_id = by_own_.find(OwnKey(signature));
    return entry_id == by_own_.end() ? nullptr : &slots_[static_cast<size_t>(entry_id->second)].entry;
  }
  const auto entry_id = by_name_.find(signature.name);
  if (entry_id == by_name_.end()) return nullptr;
  const Entry& entry = slots_[static_cast<size_t>(entry_id->second)].entry;
  return entry.signature.get() == &signature || *entry.signature == signature ? &entry : nullptr;
}

const ResponseCache::Entry* ResponseCache::At(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= slots_.size()) return nullptr;
  const Entry& entry = slots_[static_cast<size_t>(id)].entry;
  return entry.id < 0 ? nullptr : &entry;
}

void ResponseCache::Insert(std::shared_ptr<const Signature> signature, std::vector<int64_t> rows) {
  if (slots_.empty()) return;
  ++generation_;
  const bool unnamed = signature->unnamed();
  std::string agreement = unnamed ? AgreementKey(*signature, rows) : "";
  const Index& index = unnamed ? by_agreement_ : by_name_;
  const auto entry_id = index.find(unnamed ? agreement : signature->name);
  const int32_t id = entry_id != index.end() ? entry_id->second : by_age_.front();
  Slot& slot = slots_[static_cast<size_t>(id)];
  Clear(slot);
  slot.entry = Entry{id, std::move(signature), std::move(rows)};
  if (unnamed) {
    slot.agreement = std::move(agreement);
    by_agreement_.emplace(slot.agreement, id);
    slot.own_key = OwnKey(*slot.entry.signature);
    by_own_.erase(slot.own_key);  // its key may be in another slot
    by_own_.emplace(slot.own_key, id);
  } else {
    by_name_.emplace(slot.entry.signature->name, id);
  }
  Touch(id);
}

void ResponseCache::Clear(Slot& slot) {
  if (slot.entry.id < 0) return;
  if (slot.entry.signature->unnamed()) {
    by_agreement_.erase(slot.agreement);
    const auto own_entry = by_own_.find(slot.own_key);
    if (own_entry != by_own_.end() && own_entry->second == slot.entry.id) by_own_.erase(own_entry);
  } else {
    by_name_.erase(slot.entry.signature->name);
  }
  slot.entry = Entry{};
}

void ResponseCache::Erase(std::string_view name) {
  const auto entry_id = by_name_.find(name);
  if (entry_id == by_name_.end()) return;
  ++generation_;
  Slot& slot = slots_[static_cast<size_t>(entry_id->second)];
  by_age_.splice(by_age_.begin(), by_age_, slot.age);
  Clear(slot);
}

void ResponseCache::Touch(int32_t id) { by_age_.splice(by_age_.end(), by_age_, slots_[static_cast<size_t>(id)].age); }

}  // namespace spark_estimator
