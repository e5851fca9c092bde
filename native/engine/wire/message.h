// The messages of ranks about collectives: requests, responses, rounds, and their form on the wire.
#ifndef SPARK_ESTIMATOR_ENGINE_MESSAGE_H_
#define SPARK_ESTIMATOR_ENGINE_MESSAGE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spark_estimator {

// One tensor of a request, as far as the ranks must agree on it.
struct Part {
  int32_t dtype = 0;
  std::vector<int64_t> dims;
  bool int8 = false;  // allreduce of float32: may be sent as int8 between hosts

  int64_t Elements() const;  // product of dims; 1 for none
  int64_t Bytes() const;
  bool operator==(const Part&) const = default;
};

// Everything about a request that the ranks must agree on; no addresses.
struct Signature {
  std::string name;         // of an unnamed request: its kind
  int64_t number = kNamed;  // of an unnamed request: its number in its kind, once it is sent to others
  int32_t op = 0;
  int32_t reduce_op = 0;
  int32_t root_rank = 0;
  int32_t place = 0;  // se_place: the kind of memory of its tensors
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<Part> parts;
  std::vector<int64_t> splits;  // alltoall: [size], this rank's own

  static constexpr int64_t kNamed = -1;

  bool unnamed() const { return number != kNamed; }
  int64_t Bytes() const;  // of all parts
  bool operator==(const Signature&) const = default;
};

// A request's name in messages to all ranks: its name, or its kind and its number.
std::string FullName(const std::string& name, int64_t number);
inline std::string FullName(const Signature& signature) { return FullName(signature.name, signature.number); }

// The requests of a rank that wait for others, from the moment when it cannot continue by rounds.
struct Requests {
  uint32_t epoch = 0;     // counted up by each return to rounds; requests of an older one are repeated by their rank
  uint32_t position = 0;  // at which its rank left the rounds
  std::vector<Signature> signatures;
};

// The coordinator's decision, obeyed by all ranks in the order in which it was sent.
struct Response {
  enum class Kind : uint8_t {
    kRun = 0,     // run the named requests now, as one operation
    kFail = 1,    // fail them with `text` (status SE_MISMATCH)
    kJoined = 2,  // everybody has joined; `last_joined` was the last
    kResume = 3,  // nothing waits any more: continue by rounds, at `position` of the next epoch
  };
  Kind kind = Kind::kRun;
  std::vector<std::string> names;      // in full; several: allreduces to be fused
  int64_t number = Signature::kNamed;  // kFail: that of an unnamed request
  std::string text;                    // kFail: why
  std::vector<int64_t> rows;  // allgather: [parts][size] first dimensions; alltoall: [size][size] splits, by sender
  std::vector<Signature> signatures;  // of `names`, when some rank has joined and must take part without a request
  int32_t last_joined = -1;
  uint32_t position = 0;

  std::string KindOfUnnamed() const;  // kFail: of whose name the number is the end
};

// A rank's first frame to each peer.
struct Hello {
  int32_t abi_version = 0;
  int32_t rank = 0;
  int32_t size = 0;
  std::vector<int64_t> visible_ranks;  // whose segments it has mapped, itself included; empty without one
  std::vector<int64_t> settings;       // those in which rank 0's value holds for all
  std::string name;                    // host and process, by its own account; empty: what the others know it by
};

// A rank's last frame to each peer, when it leaves in good order.
struct Goodbye {
  int64_t executed = 0;       // how many operations it has carried out
  int32_t first_leaver = -1;  // the rank that left first: itself, or the one because of which it leaves
};

// `lost_rank` broke the job, by the sender's account.
struct Abort {
  int32_t lost_rank = -1;
  std::string reason;
};

// Which round: the epoch counts returns from full negotiation, the position counts rounds in it.
struct RoundId {
  uint32_t epoch = 0;
  uint32_t position = 0;
};

// A question to a rank's process, or its answer.
struct QuestionMessage {
  int64_t number = 0;
  std::string text;
};

std::string Encode(const Requests& requests);
std::string Encode(const std::vector<Response>& responses);
std::string Encode(const Hello& hello);
std::string Encode(const Abort& abort);
std::string Encode(const Goodbye& goodbye);
std::string Encode(const RoundId& round);
std::string Encode(const QuestionMessage& question);

// False for bytes that are not this message.
bool Decode(std::string_view bytes, Requests* requests);
bool Decode(std::string_view bytes, std::vector<Response>* responses);
bool Decode(std::string_view bytes, Hello* hello);
bool Decode(std::string_view bytes, Abort* abort);
bool Decode(std::string_view bytes, Goodbye* goodbye);
bool Decode(std::string_view bytes, RoundId* round);
bool Decode(std::string_view bytes, QuestionMessage* question);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_MESSAGE_H_
