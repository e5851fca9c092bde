// What ranks tell one another about collectives: requests, responses, and their form on the wire.
#ifndef SPARK_ESTIMATOR_ENGINE_MESSAGE_H_
#define SPARK_ESTIMATOR_ENGINE_MESSAGE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spark_estimator {

// Everything about a request that the ranks must agree on; no addresses.
struct Signature {
  std::string name;
  int32_t op = 0;
  int32_t dtype = 0;
  int32_t reduce_op = 0;
  int32_t root_rank = 0;
  int32_t process_set = 0;
  int32_t num_buffers = 0;
  std::vector<int64_t> dims;  // a buffer's shape; for several buffers, their counts
  double prescale = 1.0;
  double postscale = 1.0;

  int64_t Elements() const;  // product of dims; for several buffers their sum; 0 for a barrier
};

// The coordinator's word on one or more names: run them now, as one operation, or fail them.
struct Response {
  int64_t sequence = 0;            // 1, 2, ...; the order of execution on all ranks
  std::vector<std::string> names;  // several: allreduces to be fused
  std::string error;               // not empty: fail the names with it (status SE_MISMATCH)
  std::vector<int64_t> rows;       // allgather: [size] first dimensions
};

// A rank's first frame to each peer.
struct Hello {
  int32_t abi_version = 0;
  int32_t rank = 0;
  int32_t size = 0;
  bool sees_all_segments = false;
  int64_t fusion_threshold_bytes = 0;
};

// A rank's last frame to each peer, when it leaves in good order.
struct Goodbye {
  int64_t executed_sequence = 0;  // how many responses it has carried out
  int32_t first_leaver = -1;      // who left first: itself, or the rank because of which it leaves
};

// `lost_rank` broke the job, by the sender's account.
struct Abort {
  int32_t lost_rank = -1;
  std::string reason;
};

std::string Encode(const std::vector<Signature>& requests);
std::string Encode(const std::vector<Response>& responses);
std::string Encode(const Hello& hello);
std::string Encode(const Abort& abort);
std::string Encode(const Goodbye& goodbye);

// False for bytes that are no such message.
bool Decode(std::string_view bytes, std::vector<Signature>* requests);
bool Decode(std::string_view bytes, std::vector<Response>* responses);
bool Decode(std::string_view bytes, Hello* hello);
bool Decode(std::string_view bytes, Abort* abort);
bool Decode(std::string_view bytes, Goodbye* goodbye);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_MESSAGE_H_
