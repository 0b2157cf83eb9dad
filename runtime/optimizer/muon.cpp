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

void TransposeInto(int64_t rows, int64_t cols, const float* from, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to[j * rows + i] = from[i * cols + j];
  }
}

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
  const int64_t longer = std::max(rows, cols);
  const int64_t elements = rows * cols;
  float* x = workspace;
  float* next = x + elements;
  float* square = next + elements;
  float* polynomial = square + shorter * shorter;

  const bool transposed = rows > cols;
  if (transposed) {
    TransposeInto(rows, cols, matrix, x);
  } else {
    std::copy(matrix, matrix + elements, x);
  }
  const float inverse =
      static_cast<float>(1 / (std::sqrt(SquaredNorm(elements, x)) + kNormEpsilon));
  for (int64_t i = 0; i < elements; ++i) x[i] *= inverse;

  for (int step = 0; step < kSteps; ++step) {
    Multiply<float>(Transpose::kNo, Transpose::kYes, shorter, shorter, longer, 1, x, longer, x,
                    longer, 0, square, shorter);
    std::copy(square, square + shorter * shorter, polynomial);
    Multiply<float>(Transpose::kNo, Transpose::kNo, shorter, shorter, shorter, kC, square, shorter,
                    square, shorter, kB, polynomial, shorter);
    std::copy(x, x + elements, next);
    Multiply<float>(Transpose::kNo, Transpose::kNo, shorter, longer, shorter, 1, polynomial,
                    shorter, x, longer, kA, next, longer);
    std::swap(x, next);
  }
  if (transposed) {
    TransposeInto(shorter, longer, x, matrix);
  } else {
    std::copy(x, x + elements, matrix);
  }
}

}  // namespace pipelag
