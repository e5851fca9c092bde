// Rounds of ranks that reach each other by control frames only: ceil(log2 n) messages a rank and position.
//
// Dissemination (Hensgen, Finkel, Manber 1988): in step k a rank sends the one 2^k further on all that it knows.
// Intersection does not mind hearing a thing twice, so it works for any number of ranks; the data of small tensors
// is sent along as a list by rank, as in the allgather of Bruck et al. (1997), so that every rank can reduce in rank
// order. Pure: frames are sent by a function and received by Take, so that a simulator can replace the network.
#ifndef SPARK_ESTIMATOR_ENGINE_FRAME_ROUNDS_H_
#define SPARK_ESTIMATOR_ENGINE_FRAME_ROUNDS_H_

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/rounds/rounds.h"

namespace spark_estimator {

class FrameRounds : public Rounds {
 public:
  using Send = std::function<void(int rank, std::string_view payload)>;
  // Takes in what arrives, through Take, for a moment or until `deadline`.
  using AwaitFrames = std::function<Status(Time deadline)>;

  FrameRounds(int rank, int size, size_t cache_capacity, Send send, AwaitFrames await_frames);

  // False for bytes that are no proposal of these rounds.
  bool Take(int from, std::string_view payload);
  bool done() const { return done_; }

  size_t data_limit() const override { return kDataBytesOfAll / static_cast<size_t>(size_); }
  void Enter(RoundId round) override;
  void Post(RoundId round, const Proposal& proposal, size_t data_bytes, const WriteData& write_data,
            int64_t arena_offset) override;
  Status Await(Time deadline, bool* done) override;
  const Outcome& outcome() const override { return outcome_; }
  const uint8_t* data_of(int rank) const override;
  size_t data_bytes_of(int rank) const override;
  bool InArenas(size_t, std::vector<uint8_t*>*) const override { return false; }

 private:
  struct Heard {  // what some ranks propose, joined
    RoundId round;
    uint8_t step = 0;
    bool leaves_rounds = false;
    bool carries_data = false;
    int32_t single = -1;
    IdSet ids;
    Lines lines;
    std::vector<std::string> data;  // of the sender, of the rank before it, ...
  };
  // The vectors of all ranks together may have this number of bytes; beyond, a separate allreduce is faster.
  static constexpr size_t kDataBytesOfAll = 64 << 10;

  std::string Encode(uint8_t step) const;
  bool Decode(std::string_view payload, Heard* heard) const;
  void Join(Heard heard);
  const std::string& DataOf(int rank) const;
  void SendStep(uint8_t step);
  void CheckForLeavers();
  void Advance();
  void Conclude();
  int steps() const;

  const int rank_;
  const int size_;
  const size_t cache_capacity_;
  const Send send_;
  const AwaitFrames await_frames_;
  RoundId round_;
  bool posted_ = false;
  bool done_ = true;
  uint8_t step_ = 0;  // the next to be received
  Heard joined_;
  std::map<std::pair<uint64_t, uint8_t>, Heard> early_;  // by round and step
  Outcome outcome_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_FRAME_ROUNDS_H_
