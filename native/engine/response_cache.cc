#include "engine/response_cache.h"

#include <utility>

namespace spark_estimator {

ResponseCache::ResponseCache(size_t capacity) : slots_(capacity) {
  for (size_t id = 0; id < capacity; ++id) slots_[id].age = by_age_.insert(by_age_.end(), static_cast<int32_t>(id));
}

const ResponseCache::Entry* ResponseCache::Find(const Signature& signature) const {
  const auto found = by_name_.find(signature.name);
  if (found == by_name_.end()) return nullptr;
  const Entry& entry = slots_[static_cast<size_t>(found->second)].entry;
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
  const auto found = by_name_.find(signature->name);
  const int32_t id = found != by_name_.end() ? found->second : by_age_.front();
  Slot& slot = slots_[static_cast<size_t>(id)];
  if (slot.entry.id >= 0) by_name_.erase(slot.entry.signature->name);
  slot.entry = Entry{id, std::move(signature), std::move(rows)};
  by_name_.emplace(slot.entry.signature->name, id);
  Touch(id);
}

void ResponseCache::Erase(std::string_view name) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  ++generation_;
  Slot& slot = slots_[static_cast<size_t>(found->second)];
  by_age_.splice(by_age_.begin(), by_age_, slot.age);
  by_name_.erase(found);
  slot.entry = Entry{};
}

void ResponseCache::Touch(int32_t id) { by_age_.splice(by_age_.end(), by_age_, slots_[static_cast<size_t>(id)].age); }

}  // namespace spark_estimator
