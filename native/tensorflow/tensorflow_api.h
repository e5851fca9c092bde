// The functions of TensorFlow's C API that define ops and kernels, found while the program runs.
//
// The declarations repeat those of tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h: TensorFlow is not there when the
// engine is built. Its C API is stable across releases, unlike its C++ classes.
#ifndef SPARK_ESTIMATOR_TENSORFLOW_TENSORFLOW_API_H_
#define SPARK_ESTIMATOR_TENSORFLOW_TENSORFLOW_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/shared_object.h"
#include "base/status.h"

namespace spark_estimator {

struct TfStatus;
struct TfOpDefinitionBuilder;
struct TfShapeInferenceContext;
struct TfShapeHandle;
struct TfKernelBuilder;
struct TfOpKernelConstruction;
struct TfOpKernelContext;
struct TfAsyncOpKernelDoneCallback;
struct TfTensor;

// Not terminated by a NUL.
struct TfStringView {
  const char* data;
  size_t bytes;
};

inline constexpr int kTfOk = 0;
inline constexpr int kTfUnknown = 2;
inline constexpr int kTfInvalidArgument = 3;
inline constexpr int kTfResourceExhausted = 8;
inline constexpr int kTfFailedPrecondition = 9;

// Filled by Open as a whole or not at all. Each function is TensorFlow's of the same name after "TF_".
struct TensorflowApi {
  TfStatus* (*NewStatus)() = nullptr;
  void (*DeleteStatus)(TfStatus* status) = nullptr;
  void (*SetStatus)(TfStatus* status, int code, const char* message) = nullptr;
  int (*GetCode)(const TfStatus* status) = nullptr;
  const char* (*Message)(const TfStatus* status) = nullptr;

  TfOpDefinitionBuilder* (*NewOpDefinitionBuilder)(const char* name) = nullptr;
  void (*OpDefinitionBuilderAddAttr)(TfOpDefinitionBuilder* builder, const char* specification) = nullptr;
  void (*OpDefinitionBuilderAddInput)(TfOpDefinitionBuilder* builder, const char* specification) = nullptr;
  void (*OpDefinitionBuilderAddOutput)(TfOpDefinitionBuilder* builder, const char* specification) = nullptr;
  void (*OpDefinitionBuilderSetIsStateful)(TfOpDefinitionBuilder* builder, bool stateful) = nullptr;
  void (*OpDefinitionBuilderSetShapeInferenceFunction)(TfOpDefinitionBuilder* builder,
                                                       void (*infer)(TfShapeInferenceContext* context,
                                                                     TfStatus* status)) = nullptr;
  void (*RegisterOpDefinition)(TfOpDefinitionBuilder* builder, TfStatus* status) = nullptr;

  void (*ShapeInferenceContextSetUnknownShape)(TfShapeInferenceContext* context, TfStatus* status) = nullptr;
  TfShapeHandle* (*NewShapeHandle)() = nullptr;
  void (*DeleteShapeHandle)(TfShapeHandle* handle) = nullptr;
  void (*ShapeInferenceContextGetInput)(TfShapeInferenceContext* context, int input, TfShapeHandle* handle,
                                        TfStatus* status) = nullptr;
  void (*ShapeInferenceContextSetOutput)(TfShapeInferenceContext* context, int output, TfShapeHandle* handle,
                                         TfStatus* status) = nullptr;
  TfShapeHandle* (*ShapeInferenceContextScalar)(TfShapeInferenceContext* context) = nullptr;

  TfKernelBuilder* (*NewAsyncKernelBuilder)(const char* op, const char* device,
                                            void* (*create)(TfOpKernelConstruction* construction),
                                            void (*compute)(void* kernel, TfOpKernelContext* context,
                                                            TfAsyncOpKernelDoneCallback* done),
                                            void (*destroy)(void* kernel)) = nullptr;
  void (*RegisterKernelBuilder)(const char* name, TfKernelBuilder* builder, TfStatus* status) = nullptr;
  TfStringView (*OpKernelConstruction_GetName)(TfOpKernelConstruction* construction) = nullptr;
  void (*OpKernelConstruction_GetAttrSize)(TfOpKernelConstruction* construction, const char* name, int32_t* list_size,
                                           int32_t* total_size, TfStatus* status) = nullptr;
  void (*OpKernelConstruction_GetAttrString)(TfOpKernelConstruction* construction, const char* name, char* value,
                                             size_t capacity, TfStatus* status) = nullptr;
  void (*OpKernelConstruction_GetAttrInt32)(TfOpKernelConstruction* construction, const char* name, int32_t* value,
                                            TfStatus* status) = nullptr;
  void (*OpKernelConstruction_GetAttrBool)(TfOpKernelConstruction* construction, const char* name, unsigned char* value,
                                           TfStatus* status) = nullptr;
  void (*OpKernelConstruction_GetAttrTensor)(TfOpKernelConstruction* construction, const char* name, TfTensor** value,
                                             TfStatus* status) = nullptr;
  void (*OpKernelConstruction_Failure)(TfOpKernelConstruction* construction, TfStatus* status) = nullptr;

  int (*NumInputs)(TfOpKernelContext* context) = nullptr;
  int (*NumOutputs)(TfOpKernelContext* context) = nullptr;
  void (*GetInput)(TfOpKernelContext* context, int input, TfTensor** tensor, TfStatus* status) = nullptr;
  int (*ExpectedOutputDataType)(TfOpKernelContext* context, int output) = nullptr;
  TfTensor* (*ForwardInputOrAllocateOutput)(TfOpKernelContext* context, const int* candidates, int num_candidates,
                                            int output, const int64_t* dims, int num_dims, int* forwarded,
                                            TfStatus* status) = nullptr;
  TfTensor* (*AllocateOutput)(TfOpKernelContext* context, int output, int dtype, const int64_t* dims, int num_dims,
                              size_t bytes, TfStatus* status) = nullptr;
  void (*OpKernelContext_Failure)(TfOpKernelContext* context, TfStatus* status) = nullptr;

  size_t (*DataTypeSize)(int dtype) = nullptr;
  int (*TensorType)(const TfTensor* tensor) = nullptr;
  int (*NumDims)(const TfTensor* tensor) = nullptr;
  int64_t (*Dim)(const TfTensor* tensor, int dim) = nullptr;
  size_t (*TensorByteSize)(const TfTensor* tensor) = nullptr;
  void* (*TensorData)(const TfTensor* tensor) = nullptr;
  void (*DeleteTensor)(TfTensor* tensor) = nullptr;

  SharedObject library;

  // `path` is that of the process's own libtensorflow_framework.so. The error names the missing function.
  static Status Open(const std::string& path, TensorflowApi* api);
};

}  // namespace spark_estimator

#endif  // SPARK_ESTIMATOR_TENSORFLOW_TENSORFLOW_API_H_
