#include "runtime/checkpoint/tensor_names.h"

namespace pipelag {

std::string HuggingFaceName(const StageTensor& tensor) {
  if (tensor.role == TensorRole::kHead) return tensor.name;
  return (tensor.style == NameStyle::kLlama ? "model." : "transformer.") + tensor.name;
}

bool IsTransposed(const StageTensor& tensor) {
  return tensor.role == TensorRole::kMatrix && tensor.style == NameStyle::kGpt2;
}

std::vector<int64_t> OwnShape(const StageTensor& tensor) {
  if (tensor.role == TensorRole::kVector) return {tensor.rows};
  return {tensor.rows, tensor.cols};
}

std::vector<int64_t> FileShape(const StageTensor& tensor) {
  if (IsTransposed(tensor)) return {tensor.cols, tensor.rows};
  return OwnShape(tensor);
}

}  // namespace pipelag
