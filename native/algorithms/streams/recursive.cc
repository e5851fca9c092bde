// Folding, doubling and halving; in every combination the lower ranks' part is the first operand.
#include "algorithms/streams/recursive.h"

#include <array>
#include <bit>
#include <vector>

#include "base/dtype.h"

namespace spark_estimator {
namespace {

// The ranks that take part: a power of two of them, renumbered, without the even ones below 2 * `folded`.
struct Folding {
  explicit Folding(const StreamGroup& group)
      : ranks(static_cast<int>(std::bit_floor(static_cast<unsigned>(group.size())))),
        folded(group.size() - ranks),
        gives(group.rank() < 2 * folded && group.rank() % 2 == 0),
        acts_for_two(group.rank() < 2 * folded && group.rank() % 2 == 1),
        number(group.rank() < 2 * folded ? group.rank() / 2 : group.rank() - folded) {}
  int RankOf(int any_number) const { return any_number < folded ? 2 * any_number + 1 : any_number + folded; }

  const int ranks;
  const int folded;
  const bool gives;
  const bool acts_for_two;
  const int number;
};

class Recursive {
 public:
  Recursive(StreamGroup& group, uint8_t* data, uint8_t* scratch, size_t count, int32_t dtype, int32_t reduce_op,
            Finish finish)
      : group_(group),
        folding_(group),
        data_(data),
        scratch_(scratch),
        count_(count),
        element_(DtypeBytes(dtype)),
        dtype_(dtype),
        reduce_op_(reduce_op),
        finish_(finish) {}

  template <typename Steps>
  Status Run(Steps steps) {
    const int rank = group_.rank();
    if (folding_.gives) {
      SE_RETURN_IF_ERROR(Swap(rank + 1, 0, count_, 0, 0, data_));
      return Swap(rank + 1, 0, 0, 0, count_, data_);
    }
    if (folding_.acts_for_two) {
      SE_RETURN_IF_ERROR(Swap(rank - 1, 0, 0, 0, count_, scratch_));
      Combine(0, count_, true, false);
    }
    SE_RETURN_IF_ERROR((this->*steps)());
    return folding_.acts_for_two ? Swap(rank - 1, 0, count_, 0, 0, scratch_) : Status::Ok();
  }

  Status Doubling() {
    for (int distance = 1; distance < folding_.ranks; distance *= 2) {
      const int partner = folding_.number ^ distance;
      SE_RETURN_IF_ERROR(Swap(folding_.RankOf(partner), 0, count_, 0, count_, scratch_));
      Combine(0, count_, partner < folding_.number, distance * 2 == folding_.ranks);
    }
    return Status::Ok();
  }

  Status Halving() {
    struct Range {
      size_t start;
      size_t count;
    };
    std::vector<Range> kept;
    Range mine{0, count_};
    for (int distance = folding_.ranks / 2; distance > 0; distance /= 2) {
      kept.push_back(mine);
      const Range low{mine.start, mine.count / 2};
      const Range high{mine.start + low.count, mine.count - low.count};
      const bool upper = (folding_.number & distance) != 0;
      mine = upper ? high : low;
      const Range theirs = upper ? low : high;
      SE_RETURN_IF_ERROR(Swap(folding_.RankOf(folding_.number ^ distance), theirs.start, theirs.count, mine.start,
                              mine.count, scratch_));
      Combine(mine.start, mine.count, upper, distance == 1);
    }
    for (int distance = 1; distance < folding_.ranks; distance *= 2) {
      const Range whole = kept.back();
      kept.pop_back();
      const bool upper = (folding_.number & distance) != 0;
      const Range theirs = upper ? Range{whole.start, whole.count - mine.count}
                                 : Range{whole.start + mine.count, whole.count - mine.count};
      SE_RETURN_IF_ERROR(
          Swap(folding_.RankOf(folding_.number ^ distance), mine.start, mine.count, theirs.start, theirs.count, data_));
      mine = whole;
    }
    return Status::Ok();
  }

 private:
  // Sends elements of `data_` and receives elements into their place in `to`.
  Status Swap(int peer, size_t send_start, size_t send_count, size_t receive_start, size_t receive_count, uint8_t* to) {
    const std::array<SendPart, 1> sends = {{{peer, data_ + send_start * element_, send_count * element_}}};
    const std::array<ReceivePart, 1> receives = {{{peer, to + receive_start * element_, receive_count * element_}}};
    return group_.Exchange(sends, receives);
  }

  void Combine(size_t start, size_t count, bool theirs_first, bool last) {
    if (count == 0) return;
    uint8_t* mine = data_ + start * element_;
    uint8_t* theirs = scratch_ + start * element_;
    const void* sources[2] = {theirs_first ? theirs : mine, theirs_first ? mine : theirs};
    GetKernels().combine(dtype_, reduce_op_, mine, sources, 2, count, last ? finish_ : Finish{});
  }

  StreamGroup& group_;
  const Folding folding_;
  uint8_t* data_;
  uint8_t* scratch_;
  const size_t count_;
  const size_t element_;
  const int32_t dtype_;
  const int32_t reduce_op_;
  const Finish finish_;
};

}  // namespace

Status DoublingAllreduce(StreamGroup& group, uint8_t* data, uint8_t* scratch, size_t count, int32_t dtype,
                         int32_t reduce_op, Finish finish) {
  return Recursive(group, data, scratch, count, dtype, reduce_op, finish).Run(&Recursive::Doubling);
}

Status HalvingAllreduce(StreamGroup& group, uint8_t* data, uint8_t* scratch, size_t count, int32_t dtype,
                        int32_t reduce_op, Finish finish) {
  return Recursive(group, data, scratch, count, dtype, reduce_op, finish).Run(&Recursive::Halving);
}

}  // namespace spark_estimator
