#include "runtime/optimizer/norm.h"

#include <cmath>

#include "models/error.h"

namespace pipelag {

double SquaredNorm(int64_t elements, const float* values) {
  // Independent partial sums, or each addition would wait for the one before it.
  constexpr int64_t kSums = 16;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= elements; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) {
      const double value = values[i + j];
      sums[j] += value * value;
    }
  }
  for (; i < elements; ++i) {
    const double value = values[i];
    sums[i % kSums] += value * value;
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

std::vector<double> SquaredNorms(const StageLayout& layout, const float* gradients) {
  std::vector<double> norms;
  norms.reserve(layout.tensors().size());
  for (const StageTensor& tensor : layout.tensors()) {
    if (tensor.copy) continue;
    norms.push_back(SquaredNorm(tensor.elements(), gradients + tensor.offset));
  }
  return norms;
}

double GlobalNorm(std::span<const double> squared_norms) {
  double total = 0;
  for (const double squared : squared_norms) total += squared;
  return std::sqrt(total);
}

float ClipFactor(std::span<const double> squared_norms, double max_norm) {
  CHECK(max_norm > 0);
  const double norm = GlobalNorm(squared_norms);
  return norm > max_norm ? static_cast<float>(max_norm / norm) : 1.0f;
}

void ScaleGradients(const StageLayout& layout, float factor, float* gradients) {
  for (int64_t i = 0; i < layout.size(); ++i) gradients[i] *= factor;
}

}  // namespace pipelag
