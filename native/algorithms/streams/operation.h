// A collective over streams that its caller moves on between other work, so that the network is not idle meanwhile.
#ifndef SPARK_ESTIMATOR_ALGORITHMS_STREAMS_OPERATION_H_
#define SPARK_ESTIMATOR_ALGORITHMS_STREAMS_OPERATION_H_

#include "base/status.h"

namespace spark_estimator {

// Streams have no boundaries between operations: of several on the same streams, each is advanced once all before it
// have finished. Its buffers belong to it from its creation until Complete() has returned.
class StreamOperation {
 public:
  StreamOperation() = default;
  StreamOperation(const StreamOperation&) = delete;
  StreamOperation& operator=(const StreamOperation&) = delete;
  virtual ~StreamOperation() = default;

  // Sends and receives what is possible without waiting. May be called when the operation is complete.
  Status Advance() {
    bool progress = true;
    while (progress) {
      progress = false;
      SE_RETURN_IF_ERROR(Step(&progress));
    }
    return Status::Ok();
  }
  // Returns when it is complete.
  Status Complete() {
    while (true) {
      bool progress = false;
      SE_RETURN_IF_ERROR(Step(&progress));
      if (done()) return Status::Ok();
      if (!progress) SE_RETURN_IF_ERROR(Await());
    }
  }
  virtual bool done() const = 0;
  // One attempt on each stream that can carry something. *progress becomes true if something was carried or computed,
  // and keeps its value otherwise.
  virtual Status Step(bool* progress) = 0;
  // Waits until a step can probably make progress; called when one has made none.
  virtual Status Await() = 0;
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_ALGORITHMS_STREAMS_OPERATION_H_
