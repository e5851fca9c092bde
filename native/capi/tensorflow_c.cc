// Registering nodes with TensorFlow, for the C ABI.
#include "capi/guarded.h"
#include "spark_estimator/engine.h"
#include "tensorflow/nodes.h"

int32_t se_tensorflow_register(const char* path, se_tensorflow_work work) {
  return spark_estimator::Guarded([&] { return spark_estimator::RegisterTensorflowNodes(path, work); });
}
