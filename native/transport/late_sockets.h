// The data connections of a group that are made on first use: which are wanted, and those that have been made.
//
// The driving thread asks for a connection and continues to wait; another thread of the process, which this class knows
// nothing about, makes it and delivers it, or the reason why it cannot be made. For each pair of ranks the lower one
// asks. The higher one needs the connection for the same operation, and waits until it is delivered.
#ifndef SPARK_ESTIMATOR_TRANSPORT_LATE_SOCKETS_H_
#define SPARK_ESTIMATOR_TRANSPORT_LATE_SOCKETS_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/striped_socket.h"

namespace spark_estimator {

class LateSockets {
 public:
  struct Arrival {
    int peer = 0;
    StripedSocket socket;  // without `refusal`
    std::string refusal;   // why there will be none
  };

  Status Open();

  // --- the driving thread

  void Ask(int peer);
  // Readable while TakeArrival() has something.
  int arrival_fd() const { return arrived_.get(); }
  std::optional<Arrival> TakeArrival();
  // In a forked child: closes the descriptors and changes nothing else.
  void AbandonAfterFork();

  // --- any thread

  // Waits for the next peer that a connection is wanted with. SE_IN_PROGRESS if there is none in time, SE_SHUT_DOWN
  // after Close().
  Status AwaitAsked(Seconds timeout, int* peer);
  void Deliver(Arrival arrival);
  // Ends the waits: no connection will be wanted any more, and those that are delivered are closed.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<int> asked_;
  std::deque<Arrival> arrivals_;
  bool closed_ = false;
  UniqueFd arrived_;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TRANSPORT_LATE_SOCKETS_H_
