#include "runtime/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"

namespace pipelag {
Muon::Muon(const OptimizerOptions& options, const StageLayout& layout)
    : Optimizer(layout, MuonSettings(options).weight_decay),
      settings_(options),
      others_(options, layout, &LeftToAdamW),
      buffers_(layout.tensors().size()) {
  int64_t most = 0;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const StageTensor& place = layout.tensors()[i];
    if (LeftToAdamW(place)) continue;
    buffers_[i].resize(static_cast<size_t>(place.elements()), 0.0f);
    most = std::max(most, OrthogonaliseWorkspace(place.rows, place.cols));
  }
  workspace_.resize(static_cast<size_t>(most));
}

float Muon::Rate(const StageTensor& place, float learning_rate, int64_t /*number*/) const {
  return LeftToAdamW(place) ? learning_rate * settings_.aux_factor : learning_rate;
}

std::vector<StatePart> Muon::State() {
  std::vector<StatePart> parts = others_.State();
  for (int i = 0; i < tensor_count(); ++i) {
    std::vector<float>& buffer = buffers_[static_cast<size_t>(i)];
    if (buffer.empty()) continue;
    parts.push_back({.tensor = i, .name = "momentum_buffer", .floats = buffer});
  }
  return parts;
}

int64_t Muon::StateFloats(int index) const {
  return others_.StateFloats(index) +
         static_cast<int64_t>(buffers_[static_cast<size_t>(index)].size());
}

void Muon::Shape(int /*tensor*/, float* /*direction*/) {}

void Muon::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  const StageTensor& place = tensor(update.tensor);
  if (LeftToAdamW(place)) {
    others_.ComputeUpdate(update, displacement);
    return;
  }
  float* buffer = buffers_[static_cast<size_t>(update.tensor)].data();
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float g = update.gradient[i];
    buffer[i] = settings_.momentum * buffer[i] + g;
    displacement[i] = settings_.nesterov ? g + settings_.momentum * buffer[i] : buffer[i];
  }
  Orthogonalise(place.rows, place.cols, displacement, workspace_.data());
  Shape(update.tensor, displacement);
  const float scale = settings_.Scale(place.rows, place.cols, update.learning_rate);
  for (int64_t i = 0; i < place.elements(); ++i) displacement[i] *= scale;
}

int64_t OrthogonaliseWorkspace(int64_t rows, int64_t cols) {
  const int64_t shorter = std::min(rows, cols);
  return 2 * rows * cols + 2 * shorter * shorter;
}

void Orthogonalise(int64_t rows, int64_t cols, float* matrix, float* workspace) {
  using Step = NewtonSchulzStep;
  const int64_t shorter = std::min(rows, cols);
  const int64_t elements = rows * cols;
  float* x = workspace;
  float* next = x + elements;
  float* square = next + elements;
  float* polynomial = square + shorter * shorter;

  const double norm = std::sqrt(SquaredNorm(elements, matrix));
  const float inverse = static_cast<float>(1 / (norm + Step::kNormEpsilon));
  for (int64_t i = 0; i < elements; ++i) x[i] = matrix[i] * inverse;

  const bool wide = rows <= cols;
  const Transpose left = wide ? Transpose::kNo : Transpose::kYes;
  const Transpose right = wide ? Transpose::kYes : Transpose::kNo;
  for (int step = 0; step < Step::kSteps; ++step) {
    Multiply<float>(left, right, shorter, shorter, std::max(rows, cols), 1, x, cols, x, cols, 0,
                    square, shorter);
    std::copy(square, square + shorter * shorter, polynomial);
    Multiply<float>(Transpose::kNo, Transpose::kNo, shorter, shorter, shorter, Step::kC, square,
                    shorter, square, shorter, Step::kB, polynomial, shorter);
    std::copy(x, x + elements, next);
    if (wide) {
      Multiply<float>(Transpose::kNo, Transpose::kNo, rows, cols, rows, 1, polynomial, rows, x,
                      cols, Step::kA, next, cols);
    } else {
      Multiply<float>(Transpose::kNo, Transpose::kNo, rows, cols, cols, 1, x, cols, polynomial,
                      cols, Step::kA, next, cols);
    }
    std::swap(x, next);
  }
  std::copy(x, x + elements, matrix);
}

}  // namespace pipelag
