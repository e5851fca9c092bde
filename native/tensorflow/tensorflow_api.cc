#include "tensorflow/tensorflow_api.h"

#include <utility>

namespace spark_estimator {
namespace {

Status ResolveAll(TensorflowApi* api) {
  Status status;
  const auto find = [&](const char* symbol, auto** function) {
    if (status.ok()) status = api->library.Resolve(symbol, function);
  };
  find("TF_NewStatus", &api->NewStatus);
  find("TF_DeleteStatus", &api->DeleteStatus);
  find("TF_SetStatus", &api->SetStatus);
  find("TF_GetCode", &api->GetCode);
  find("TF_Message", &api->Message);
  find("TF_NewOpDefinitionBuilder", &api->NewOpDefinitionBuilder);
  find("TF_OpDefinitionBuilderAddAttr", &api->OpDefinitionBuilderAddAttr);
  find("TF_OpDefinitionBuilderAddInput", &api->OpDefinitionBuilderAddInput);
  find("TF_OpDefinitionBuilderAddOutput", &api->OpDefinitionBuilderAddOutput);
  find("TF_OpDefinitionBuilderSetIsStateful", &api->OpDefinitionBuilderSetIsStateful);
  find("TF_OpDefinitionBuilderSetShapeInferenceFunction", &api->OpDefinitionBuilderSetShapeInferenceFunction);
  find("TF_RegisterOpDefinition", &api->RegisterOpDefinition);
  find("TF_ShapeInferenceContextSetUnknownShape", &api->ShapeInferenceContextSetUnknownShape);
  find("TF_NewShapeHandle", &api->NewShapeHandle);
  find("TF_DeleteShapeHandle", &api->DeleteShapeHandle);
  find("TF_ShapeInferenceContextGetInput", &api->ShapeInferenceContextGetInput);
  find("TF_ShapeInferenceContextSetOutput", &api->ShapeInferenceContextSetOutput);
  find("TF_ShapeInferenceContextScalar", &api->ShapeInferenceContextScalar);
  find("TF_NewAsyncKernelBuilder", &api->NewAsyncKernelBuilder);
  find("TF_RegisterKernelBuilder", &api->RegisterKernelBuilder);
  find("TF_OpKernelConstruction_GetName", &api->OpKernelConstruction_GetName);
  find("TF_OpKernelConstruction_GetAttrSize", &api->OpKernelConstruction_GetAttrSize);
  find("TF_OpKernelConstruction_GetAttrString", &api->OpKernelConstruction_GetAttrString);
  find("TF_OpKernelConstruction_GetAttrInt32", &api->OpKernelConstruction_GetAttrInt32);
  find("TF_OpKernelConstruction_GetAttrBool", &api->OpKernelConstruction_GetAttrBool);
  find("TF_OpKernelConstruction_GetAttrTensor", &api->OpKernelConstruction_GetAttrTensor);
  find("TF_OpKernelConstruction_Failure", &api->OpKernelConstruction_Failure);
  find("TF_NumInputs", &api->NumInputs);
  find("TF_NumOutputs", &api->NumOutputs);
  find("TF_GetInput", &api->GetInput);
  find("TF_ExpectedOutputDataType", &api->ExpectedOutputDataType);
  find("TF_ForwardInputOrAllocateOutput", &api->ForwardInputOrAllocateOutput);
  find("TF_AllocateOutput", &api->AllocateOutput);
  find("TF_OpKernelContext_Failure", &api->OpKernelContext_Failure);
  find("TF_DataTypeSize", &api->DataTypeSize);
  find("TF_TensorType", &api->TensorType);
  find("TF_NumDims", &api->NumDims);
  find("TF_Dim", &api->Dim);
  find("TF_TensorByteSize", &api->TensorByteSize);
  find("TF_TensorData", &api->TensorData);
  find("TF_DeleteTensor", &api->DeleteTensor);
  return status;
}

}  // namespace

Status TensorflowApi::Open(const std::string& path, TensorflowApi* api) {
  TensorflowApi opened;
  SE_RETURN_IF_ERROR(SharedObject::Open(path, &opened.library));
  SE_RETURN_IF_ERROR(ResolveAll(&opened));
  *api = std::move(opened);
  return Status::Ok();
}

}  // namespace spark_estimator
