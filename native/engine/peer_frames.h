// Reads the peers' control frames and hands each to the class that it is for; sends heartbeats, and notices who has
// left or is lost.
//
//   kRound                                          FrameRounds
//   kEnterFullNegotiation, kWakePeer                RoundDriver
//   kRequests, kResponses, kRoundStalled, kAnswer   NegotiationDriver
//   kHeartbeat, kGoodbye                            Membership
//   kAbort                                          the job ends, with the sender's reason
//   kNotice, kAsk                                   this process's stderr, and its QuestionQueue
//
// A frame that cannot be read, or that its rank cannot send, makes that rank lost. All errors end the job.
//
// It has no state. Threads: used by the driving thread, which is the engine's at its end.
#ifndef SPARK_ESTIMATOR_ENGINE_PEER_FRAMES_H_
#define SPARK_ESTIMATOR_ENGINE_PEER_FRAMES_H_

#include "base/status.h"
#include "engine/group.h"
#include "engine/negotiation/negotiation_driver.h"
#include "engine/operation_runner.h"
#include "engine/requests/question_queue.h"
#include "engine/requests/request_table.h"
#include "engine/rounds/frame_rounds.h"
#include "engine/rounds/round_driver.h"

namespace spark_estimator {

class PeerFrames {
 public:
  // What it uses; all outlive it.
  struct Parts {
    Group* group = nullptr;
    RoundDriver* rounds = nullptr;
    FrameRounds* frame_rounds = nullptr;  // null where no frames carry the rounds
    NegotiationDriver* negotiation = nullptr;
    const OperationRunner* runner = nullptr;
    const RequestTable* requests = nullptr;
    QuestionQueue* questions = nullptr;
    Counters* counters = nullptr;
  };

  explicit PeerFrames(Parts parts)
      : parts_(parts), membership_(parts.group->membership()), links_(parts.group->links()) {}

  // Handles frames that faster peers have sent after their hello, which no socket reports again.
  Status TakeEarly();
  // Handles the frames that arrive within this time; returns as soon as some are there.
  Status Read(int timeout_milliseconds);
  // Sends what is queued as far as the sockets take it.
  void Flush();
  Status TickHeartbeat();
  // An error when a peer has left that does not take part in the next operation.
  Status CheckDepartures() const;
  // For a moment reads frames for a better explanation of a broken data connection than "connection reset".
  Status Explain(Status status);
  // While the GPU of a rank that leaves finishes its work: whether all peers that it needs are connected.
  Status WatchPeers();

 private:
  Status ReadPeer(int rank);
  Status HandleInbox(int rank);
  Status HandleFrame(int rank, const Frame& frame);
  bool Take(int rank, const Frame& frame, Status* outcome);
  void LinkEnded(int rank);

  const Parts parts_;
  Membership& membership_;
  PeerLinks& links_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ENGINE_PEER_FRAMES_H_
