#include "gpu/nccl_api.h"

#include <utility>

namespace spark_estimator {
namespace {

constexpr const char* kPackages =
    "install the package that belongs to your framework's CUDA (pip install nvidia-nccl-cu13 or nvidia-nccl-cu12), or "
    "give the path of a libnccl.so.2";

Status ResolveAll(NcclApi* api) {
  Status status;
  const auto find = [&](const char* symbol, auto** function) {
    if (status.ok()) status = api->library.Resolve(symbol, function);
  };
  find("ncclGetUniqueId", &api->GetUniqueId);
  find("ncclCommInitRankConfig", &api->CommInitRankConfig);
  find("ncclCommFinalize", &api->CommFinalize);
  find("ncclCommDestroy", &api->CommDestroy);
  find("ncclCommAbort", &api->CommAbort);
  find("ncclCommGetAsyncError", &api->CommGetAsyncError);
  find("ncclGetErrorString", &api->GetErrorString);
  find("ncclGetLastError", &api->GetLastError);
  find("ncclAllReduce", &api->AllReduce);
  find("ncclReduce", &api->Reduce);
  find("ncclBroadcast", &api->Broadcast);
  find("ncclAllGather", &api->AllGather);
  find("ncclReduceScatter", &api->ReduceScatter);
  find("ncclSend", &api->Send);
  find("ncclRecv", &api->Recv);
  find("ncclGroupStart", &api->GroupStart);
  find("ncclGroupEnd", &api->GroupEnd);
  find("ncclRedOpCreatePreMulSum", &api->RedOpCreatePreMulSum);
  find("ncclRedOpDestroy", &api->RedOpDestroy);
  return status;
}

}  // namespace

std::string NcclVersionName(int version) {
  const int major_unit = version >= 10000 ? 10000 : 1000;
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / 100) + "." +
         std::to_string(version % 100);
}

Status NcclApi::Open(const std::string& path, NcclApi* api) {
  NcclApi opened;
  Status status = SharedObject::Open(path, &opened.library);
  if (status.ok()) status = opened.library.Resolve("ncclGetVersion", &opened.GetVersion);
  if (!status.ok()) return Status(status.code(), "no NCCL: " + status.message() + "; " + kPackages);
  if (const int result = opened.GetVersion(&opened.version); result != kNcclSuccess) {
    return Status(SE_SYSTEM_ERROR,
                  "ncclGetVersion of " + opened.library.path() + " fails with result " + std::to_string(result));
  }
  // Before any other check: an old version lacks functions, and their names would not explain the failure.
  if (opened.version < kMinimumVersion) {
    return Status(SE_SYSTEM_ERROR, "the NCCL in " + opened.library.path() + " is " + NcclVersionName(opened.version) +
                                       ", needed is " + NcclVersionName(kMinimumVersion) + " or newer; " + kPackages);
  }
  SE_RETURN_IF_ERROR(ResolveAll(&opened));
  *api = std::move(opened);
  return Status::Ok();
}

std::string NcclApi::Explain(int result, NcclComm comm) const {
  std::string text =
      std::string("NCCL reports: ") + GetErrorString(result) + " (result " + std::to_string(result) + ")";
  const char* last = GetLastError(comm);
  if (last != nullptr && *last != '\0') text += std::string(", and of its last error: ") + last;
  return text;
}

}  // namespace spark_estimator
