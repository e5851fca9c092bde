// Carries out one agreed operation on this rank's memory, with the algorithm that fits the ranks and the bytes.
#ifndef SPARK_ESTIMATOR_ENGINE_EXECUTOR_H_
#define SPARK_ESTIMATOR_ENGINE_EXECUTOR_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/buffer_list.h"
#include "algorithms/choose.h"
#include "algorithms/hosts.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "engine/observe/counters.h"
#include "engine/requests/request.h"
#include "transport/shared_group.h"
#include "transport/stream_group.h"

namespace spark_estimator {

class Executor {
 public:
  // `local`: the ranks of this host that share memory, null when this one is alone there. All outlive the executor.
  Executor(StreamGroup* streams, SharedGroup* local, const Hosts* hosts, const Tuning* tuning, int cores,
           Counters* counters);

  // `requests` are this rank's requests that run as one operation; `rows` as in Response. An error leaves the group
  // unusable.
  Status Run(const std::vector<RequestPtr>& requests, const std::vector<int64_t>& rows);
  // The next Run is an allreduce of one tensor that is at these addresses, by rank, in memory that this process sees.
  void UseArenas(std::vector<uint8_t*> data_of) { in_arenas_ = std::move(data_of); }
  // An allgather whose shares are already available: share_of(rank) is the address.
  template <typename ShareOf>
  Status GatherFrom(Request& request, const std::vector<int64_t>& rows, ShareOf share_of);
  // The algorithm for each size of allreduces, broadcasts and allgathers, one line per change.
  std::string DescribeChoices() const;
  // Sent and received by sockets since the last Run began.
  int64_t bytes_moved() const { return streams_->bytes_moved() - moved_before_; }
  // The name of the algorithm that the last Run used. Static storage.
  const char* algorithm() const { return algorithm_; }

 private:
  Status Allreduce(const std::vector<RequestPtr>& requests);
  Status AllreduceOfDtype(const std::vector<RequestPtr>& requests, int32_t dtype);
  // Whether tensors of float32 are sent as int8; then they have been reduced.
  Status AllreduceAsInt8(const std::vector<RequestPtr>& requests, Finish finish, bool* reduced);
  Status Adasum(const std::vector<RequestPtr>& requests, int32_t dtype);
  Status AllreduceWidened(const std::vector<RequestPtr>& requests, int32_t dtype, Finish finish);
  Situation SituationOf(size_t bytes, int32_t dtype) const;
  Status Reduce(const BufferList& buffers, int32_t dtype, int32_t reduce_op, Finish finish);
  Status Allgather(Request& request, size_t part, const int64_t* rows);
  Status Alltoall(Request& request, const std::vector<int64_t>& rows);
  Status Reducescatter(Request& request, size_t part);
  Status Broadcast(Request& request);
  Status Barrier();
  Status PlaceRows(Request& request, size_t part, const int64_t* rows, std::vector<size_t>* bytes_of);
  // Scratch of at least this number of bytes, kept for the next time.
  Status Scratch(size_t bytes, uint8_t** memory);
  // The memory for a gathered result of this number of bytes.
  Status Place(const TensorMemory& memory, size_t bytes, Gathered* gathered);

  StreamGroup* const streams_;
  SharedGroup* const local_;
  SharedGroup* const shared_;  // local_ if that is all ranks, else null
  const Hosts* const hosts_;
  const Tuning* const tuning_;
  const int cores_;
  Counters* const counters_;
  const char* algorithm_ = "";
  int64_t moved_before_ = 0;  // before the last Run
  std::vector<uint8_t*> in_arenas_;
  Memory scratch_;
  size_t scratch_bytes_ = 0;
};

template <typename ShareOf>
Status Executor::GatherFrom(Request& request, const std::vector<int64_t>& rows, ShareOf share_of) {
  request.gathered.resize(1);
  std::vector<size_t> bytes_of;
  SE_RETURN_IF_ERROR(PlaceRows(request, 0, rows.data(), &bytes_of));
  auto* place = static_cast<uint8_t*>(request.gathered[0].data);
  for (size_t rank = 0; rank < bytes_of.size(); ++rank) {
    if (bytes_of[rank] > 0) std::memcpy(place, share_of(static_cast<int>(rank)), bytes_of[rank]);
    place += bytes_of[rank];
  }
  return Status::Ok();
}

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_EXECUTOR_H_
