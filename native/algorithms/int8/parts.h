// What an allreduce in int8 works on: tensors, or ranges of them, as one vector that is cut into pieces for the wire.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_INT8_PARTS_H_
#define SPARK_ESTIMATOR_ALGORITHMS_INT8_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/kernels/kernels.h"

namespace spark_estimator {

struct Int8Part {
  const float* input;
  float* output;   // may be input
  float* residue;  // rounding errors of earlier allreduces; null: errors are lost
  size_t count;
  bool exact;  // is sent as float32

  // Elements [start, start + length).
  Int8Part Range(size_t start, size_t length) const;
};

// The parts in pieces: runs of whole blocks that are sent together, in the order of the parts. All ranks cut alike.
class Int8Pieces {
 public:
  // For `ranks` owners; a piece has at most some 32 KiB.
  Int8Pieces(std::span<const Int8Part> parts, int ranks);

  size_t count() const { return pieces_.size(); }
  size_t largest_bytes() const { return largest_bytes_; }
  size_t bytes(size_t piece) const { return pieces_[piece].bytes; }
  // Of the pieces [first, last).
  size_t bytes(size_t first, size_t last) const;
  // The first piece of a rank's share, which ends where the next rank's begins.
  size_t share_begin(int rank) const;

  // input * prescale + residue to the wire's form, and what that leaves out to the residue. With `to_output`, what the
  // wire's form will be decoded to is put into the output as well.
  void Encode(size_t piece, float prescale, uint8_t* wire, bool to_output) const;
  // output = (output + wire) * factor with `add`, else wire * factor.
  void Decode(size_t piece, const uint8_t* wire, float factor, bool add) const;
  // The owner's part: own input * prescale + residue + the sources', in their order, to the wire's form, to the residue
  // and, times the factor, to the output. `sum` has room for a block.
  void Reduce(size_t piece, float prescale, std::span<const uint8_t* const> sources, float factor, uint8_t* wire) const;

 private:
  struct Run {
    size_t part;
    size_t start;
    size_t count;
  };
  struct Piece {
    size_t first_run = 0;
    size_t runs = 0;
    size_t bytes = 0;
  };

  void ReduceRun(const Int8Part& run, float prescale, std::span<const uint8_t* const> sources, size_t offset,
                 float factor, uint8_t* wire) const;
  // Calls visit(part, offset in the piece's wire form) for each run of a piece.
  template <typename Visit>
  void ForEachRun(size_t piece, Visit visit) const;

  std::span<const Int8Part> parts_;
  const size_t ranks_;
  std::vector<Run> runs_;
  std::vector<Piece> pieces_;
  size_t largest_bytes_ = 0;
};

// As a factor of float32, rounded as the kernels round it.
inline float FactorOf(Finish finish) { return static_cast<float>(finish.factor / static_cast<double>(finish.divisor)); }

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_INT8_PARTS_H_
