// The functions of NCCL, found while the program runs: no NCCL header.
#ifndef SPARK_ESTIMATOR_GPU_NCCL_API_H_
#define SPARK_ESTIMATOR_GPU_NCCL_API_H_

#include <array>
#include <cstddef>
#include <string>

#include "base/shared_object.h"
#include "base/status.h"
#include "gpu/cuda_api.h"

namespace spark_estimator {

using NcclComm = struct NcclCommObject*;

// Passed by value, as ncclUniqueId is.
struct NcclUniqueId {
  std::array<char, 128> bytes{};
};

// The first fields of ncclConfig_t, as they were in 2.14. NCCL reads `size` bytes, and takes its defaults for what
// `version` had not got yet: so newer ones understand it.
struct NcclConfig {
  static constexpr unsigned int kMagic = 0xcafebeef;
  static constexpr unsigned int kVersion = 21400;

  size_t size = sizeof(NcclConfig);
  unsigned int magic = kMagic;
  unsigned int version = kVersion;
  int blocking = 1;
};
static_assert(sizeof(NcclConfig) == 24);

// Values of ncclResult_t, ncclDataType_t, ncclRedOp_t and ncclScalarResidence_t (nccl.h of 2.32; part of its ABI).
enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7
};
enum NcclType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclInt64 = 4,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9
};
// Operators that a communicator has made are further values of it.
enum NcclReduceOp : int {
  kNcclSum = 0,
  kNcclProduct = 1,
  kNcclMax = 2,
  kNcclMin = 3
};
inline constexpr int kNcclScalarHostImmediate = 1;

// Filled by Open as a whole or not at all. Each function is NCCL's of the same name after "nccl" and returns an
// ncclResult_t; types and operators are plain ints, as wide as C's enums are.
struct NcclApi {
  static constexpr int kMinimumVersion = 21400;  // the first whose communicators can be waited for with a deadline

  int (*GetVersion)(int* version) = nullptr;
  int (*GetUniqueId)(NcclUniqueId* id) = nullptr;
  int (*CommInitRankConfig)(NcclComm* comm, int size, NcclUniqueId id, int rank, NcclConfig* config) = nullptr;
  int (*CommFinalize)(NcclComm comm) = nullptr;
  int (*CommDestroy)(NcclComm comm) = nullptr;
  int (*CommAbort)(NcclComm comm) = nullptr;
  int (*CommGetAsyncError)(NcclComm comm, int* result) = nullptr;
  const char* (*GetErrorString)(int result) = nullptr;
  const char* (*GetLastError)(NcclComm comm) = nullptr;
  int (*AllReduce)(const void* input, void* output, size_t count, int type, int op, NcclComm comm,
                   CudaStream stream) = nullptr;
  int (*Reduce)(const void* input, void* output, size_t count, int type, int op, int root, NcclComm comm,
                CudaStream stream) = nullptr;
  int (*Broadcast)(const void* input, void* output, size_t count, int type, int root, NcclComm comm,
                   CudaStream stream) = nullptr;
  int (*AllGather)(const void* input, void* output, size_t count_each, int type, NcclComm comm,
                   CudaStream stream) = nullptr;
  int (*ReduceScatter)(const void* input, void* output, size_t count_each, int type, int op, NcclComm comm,
                       CudaStream stream) = nullptr;
  int (*Send)(const void* input, size_t count, int type, int peer, NcclComm comm, CudaStream stream) = nullptr;
  int (*Recv)(void* output, size_t count, int type, int peer, NcclComm comm, CudaStream stream) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;
  int (*RedOpCreatePreMulSum)(int* op, void* scalar, int type, int residence, NcclComm comm) = nullptr;
  int (*RedOpDestroy)(int op, NcclComm comm) = nullptr;

  SharedObject library;
  int version = 0;  // 22703 is 2.27.3

  // `path` is that of a libnccl.so.2; empty: the one that the process has loaded or the linker finds. The error names
  // the missing package, or the version that was found and the one that is needed.
  static Status Open(const std::string& path, NcclApi* api);

  // NCCL's text for `result`, and for the last error of `comm` (null: of any).
  std::string Explain(int result, NcclComm comm) const;
};

// "2.27.3" for 22703; before 2.9 the code was shorter: "2.8.4" for 2804.
std::string NcclVersionName(int version);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_GPU_NCCL_API_H_
