// What the kernels of device_code.h are given; for the compiler of the host and for NVRTC, which has no headers of its
// own to include.
#ifndef SPARK_ESTIMATOR_GPU_DEVICE_ARGUMENTS_H_
#define SPARK_ESTIMATOR_GPU_DEVICE_ARGUMENTS_H_

namespace spark_estimator {
namespace device {

// Of 64 bits on both sides.
typedef unsigned long long Word;

constexpr int kMostSources = 64;
// Tensors, or parts of them, that one launch can serve: blocks of different y work on different ones. All arguments of
// a kernel together must fit in 4 KiB.
constexpr int kMostPieces = 64;
constexpr int kThreadsInBlock = 256;
// What a thread reads and writes at a time, where everything is aligned to it.
constexpr int kPacketBytes = 16;

struct ReducePiece {
  Word offset;   // in bytes, the same in all sources
  void* output;  // one of the sources' places exactly, or overlaps none
  Word count;    // elements
};

// output[i] = finish(sources[0][i] op sources[1][i] op ...), and before that each source's element is scaled by
// prescale, as the host's kernels do (base/kernels.h).
struct ReduceArguments {
  const void* sources[kMostSources];
  ReducePiece pieces[kMostPieces];
  const Word* broken;  // other than 0 there: nothing is to be written any more
  double prescale;     // 1: none
  double postscale;
  long long divisor;
  int num_sources;
  int unused;
};

struct CopyPiece {
  const void* from;  // null: zeros
  void* to;
  Word bytes;
};

struct CopyArguments {
  CopyPiece pieces[kMostPieces];
  const Word* broken;
};

// Raises each counter to the value; one that is higher stays.
struct TellArguments {
  Word* counters[kMostSources];
  Word value;
  const Word* broken;
  int num_counters;
  int unused;
};

static_assert(sizeof(ReduceArguments) <= 4096, "a kernel's arguments");
static_assert(sizeof(CopyArguments) <= 4096, "a kernel's arguments");
static_assert(sizeof(TellArguments) <= 4096, "a kernel's arguments");

}  // namespace device
}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_DEVICE_ARGUMENTS_H_
