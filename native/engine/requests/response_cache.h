// Remembers what the ranks have agreed on, so that a request seen before is named by a small number.
//
// All ranks insert the same requests in the same order and touch the same ids in the same order, so they hold the same
// ids without talking; the signature is each rank's own (an allgather's first dimension may differ). A name has one
// entry. Requests without a name have one for each agreement of their kind: the values that were equal on all ranks,
// and each rank's rows. Capacity bounds it: what was used longest ago gives its id away.
#ifndef SPARK_ESTIMATOR_ENGINE_RESPONSE_CACHE_H_
#define SPARK_ESTIMATOR_ENGINE_RESPONSE_CACHE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/wire/message.h"

namespace spark_estimator {

class ResponseCache {
 public:
  struct Entry {
    int32_t id = -1;
    std::shared_ptr<const Signature> signature;
    std::vector<int64_t> rows;  // as in Response
  };

  explicit ResponseCache(size_t capacity);

  // The entry of this very signature, null when there is none. Of several agreements that an unnamed request may match
  // (an allgather of other ranks' other rows) the last: ranks that choose different ones negotiate again.
  const Entry* Find(const Signature& signature) const;
  // Null for an id that is not in use.
  const Entry* At(int32_t id) const;
  // Replaces the entry of that name or agreement, under the same id, or takes a free or the oldest id. In the order of
  // responses.
  void Insert(std::shared_ptr<const Signature> signature, std::vector<int64_t> rows);
  // Forgets a name on which the ranks no longer agree.
  void Erase(std::string_view name);
  // Used just now. In the order of execution.
  void Touch(int32_t id);

  size_t capacity() const { return slots_.size(); }
  // Changes whenever an id may have got another meaning; code that keeps an id checks this first.
  uint64_t generation() const { return generation_; }

 private:
  struct Slot {
    Entry entry;
    std::list<int32_t>::iterator age;
    std::string agreement;  // of an unnamed request: the same on all ranks
    std::string own_key;    // ... and how this rank finds it
  };
  using Index = std::unordered_map<std::string_view, int32_t>;

  void Clear(Slot& slot);

  std::vector<Slot> slots_;
  std::list<int32_t> by_age_;  // ids, oldest first; unused ones before all others
  Index by_name_;              // the keys are in the entries' signatures
  Index by_agreement_;         // the keys are in the slots
  Index by_own_;               // the same
  uint64_t generation_ = 1;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_RESPONSE_CACHE_H_
