// TensorFlow's ops for collectives in graphs, and their kernels.
//
// A node's attributes describe all that it does, so that a graph means the same in every process that loads it. Its
// kernel hands the work to a function of the caller's (se_tensorflow_work), in a thread that may wait.
#ifndef SPARK_ESTIMATOR_TENSORFLOW_NODES_H_
#define SPARK_ESTIMATOR_TENSORFLOW_NODES_H_

#include <string>

#include "base/status.h"
#include "spark_estimator/engine.h"

namespace spark_estimator {

// Registers the ops and their CPU kernels with the TensorFlow whose libtensorflow_framework.so is at `path`. A second
// call replaces `work` only: TensorFlow's registry is the process's, and cannot remove an op.
Status RegisterTensorflowNodes(const std::string& path, se_tensorflow_work work);

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TENSORFLOW_NODES_H_
