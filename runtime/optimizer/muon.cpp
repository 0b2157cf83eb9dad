#include "runtime/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"

namespace pipelag {
namespace {

constexpr int kSteps = 5;
constexpr float kA = 3.4445f;
constexpr float kB = -4.7750f;
constexpr float kC = 2.0315f;
constexpr double kNormEpsilon = 1e-7;

}  // namespace

Muon::Muon(const OptimizerOptions& options, const StageLayout& layout)
    : Optimizer(layout, options.weight_decay.value_or(0.1f)),
      momentum_(options.momentum.value_or(0.95f)),
      others_(AdamW::WithoutMatrices(options, layout)),
      buffers_(layout.tensors().size()) {
  int64_t most = 0;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const StageTensor& tensor = layout.tensors()[i];
    if (tensor.role != TensorRole::kMatrix) continue;
    buffers_[i].resize(static_cast<size_t>(tensor.elements()), 0.0f);
    most = std::max(most, OrthogonaliseWorkspace(tensor.rows, tensor.cols));
  }
  workspace_.resize(static_cast<size_t>(most));
}

void Muon::ComputeUpdate(int tensor, const float* gradient, const float* weights,
                         float learning_rate, int64_t update_number, float* displacement) {
  const StageTensor& place = layout().tensors()[static_cast<size_t>(tensor)];
  if (place.role != TensorRole::kMatrix) {
    others_->ComputeUpdate(tensor, gradient, weights, learning_rate, update_number, displacement);
    return;
  }
  float* buffer = buffers_[static_cast<size_t>(tensor)].data();
  for (int64_t i = 0; i < place.elements(); ++i) {
    buffer[i] = momentum_ * buffer[i] + gradient[i];
    displacement[i] = gradient[i] + momentum_ * buffer[i];
  }
  Orthogonalise(place.rows, place.cols, displacement, workspace_.data());
  const double longer = std::max(place.rows, place.cols);
  const float scale =
      static_cast<float>(static_cast<double>(learning_rate) * 0.2 * std::sqrt(longer));
  for (int64_t i = 0; i < place.elements(); ++i) displacement[i] *= scale;
}

int64_t OrthogonaliseWorkspace(int64_t rows, int64_t cols) {
  const int64_t shorter = std::min(rows, cols);
  return 2 * rows * cols + 2 * shorter * shorter;
}

void Orthogonalise(int64_t rows, int64_t cols, float* matrix, float* workspace) {
  const int64_t shorter = std::min(rows, cols);
  const int64_t elements = rows * cols;
  float* x = workspace;
  float* next = x + elements;
  float* square = next + elements;
  float* polynomial = square + shorter * shorter;

  const double norm = std::sqrt(SquaredNorm(elements, matrix));
  const float inverse = static_cast<float>(1 / (norm + kNormEpsilon));
  for (int64_t i = 0; i < elements; ++i) x[i] = matrix[i] * inverse;

  const bool wide = rows <= cols;
  const Transpose left = wide ? Transpose::kNo : Transpose::kYes;
  const Transpose right = wide ? Transpose::kYes : Transpose::kNo;
  for (int step = 0; step < kSteps; ++step) {
    Multiply<float>(left, right, shorter, shorter, std::max(rows, cols), 1, x, cols, x, cols, 0,
                    square, shorter);
    std::copy(square, square + shorter * shorter, polynomial);
    Multiply<float>(Transpose::kNo, Transpose::kNo, shorter, shorter, shorter, kC, square, shorter,
                    square, shorter, kB, polynomial, shorter);
    std::copy(x, x + elements, next);
    if (wide) {
      Multiply<float>(Transpose::kNo, Transpose::kNo, rows, cols, rows, 1, polynomial, rows, x,
                      cols, kA, next, cols);
    } else {
      Multiply<float>(Transpose::kNo, Transpose::kNo, rows, cols, cols, 1, x, cols, polynomial,
                      cols, kA, next, cols);
    }
    std::swap(x, next);
  }
  std::copy(x, x + elements, matrix);
}

}  // namespace pipelag
