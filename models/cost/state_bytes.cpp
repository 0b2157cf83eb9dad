#include "models/cost/state_bytes.h"

#include <algorithm>

namespace pipelag {
namespace {

constexpr int kMasterBytes = 4;
constexpr int kStateBytes = 4;

}  // namespace

NumberBytes BytesPerParameter(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
    case Precision::kTf32:
      return {4, 4, 0};
    case Precision::kFp16:
      return {2, 2, kMasterBytes + 4};
    case Precision::kBf16:
    case Precision::kFp8:
      break;
  }
  return {2, 4, kMasterBytes};
}

std::vector<ParameterShape> TensorsOf(const PartWork& work) {
  std::vector<ParameterShape> tensors;
  int64_t rest = work.parameters;
  for (const MatrixProduct& product : work.products) {
    if (!product.weight) continue;
    const auto copies = static_cast<int64_t>(product.count);
    const int64_t held = std::min(rest, copies * product.n * product.k);
    if (held < copies * product.n * product.k) break;
    rest -= held;
    for (int64_t copy = 0; copy < copies; ++copy) {
      tensors.push_back({product.n, product.k, ParameterKind::kMatrix});
    }
  }
  if (rest > 0) tensors.push_back({rest, 1, ParameterKind::kVector});
  return tensors;
}

StateBytes& StateBytes::operator+=(const StateBytes& other) {
  weights += other.weights;
  gradients += other.gradients;
  optimizer += other.optimizer;
  return *this;
}

StateBytes StateBytesOf(const PartWork& work, Precision precision, const std::string& optimizer) {
  const NumberBytes bytes = BytesPerParameter(precision);
  UpdateCost cost;
  for (const ParameterShape& tensor : TensorsOf(work)) cost += OptimizerCost(optimizer, tensor);
  return {work.parameters * bytes.weight, work.parameters * bytes.gradient,
          work.parameters * bytes.own + cost.state_floats * kStateBytes};
}

}  // namespace pipelag
