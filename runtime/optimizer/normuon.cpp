#include "runtime/optimizer/normuon.h"

#include <cmath>

#include "runtime/optimizer/norm.h"

namespace pipelag {
namespace {

constexpr double kEpsilon = 1e-10;

}  // namespace

NorMuon::NorMuon(const OptimizerOptions& options, const StageLayout& layout)
    : Muon(options, layout), beta2_(options.beta2.value_or(0.95f)) {
  for (const StageTensor& place : layout.tensors()) {
    squares_.emplace_back(LeftToAdamW(place) ? size_t{0} : static_cast<size_t>(place.rows), 0.0f);
  }
}

std::vector<StatePart> NorMuon::State() {
  std::vector<StatePart> parts = Muon::State();
  for (int i = 0; i < tensor_count(); ++i) {
    std::vector<float>& squares = squares_[static_cast<size_t>(i)];
    if (squares.empty()) continue;
    parts.push_back({.tensor = i, .name = "row_avg_sq", .floats = squares});
  }
  return parts;
}

int64_t NorMuon::StateFloats(int index) const {
  return Muon::StateFloats(index) +
         static_cast<int64_t>(squares_[static_cast<size_t>(index)].size());
}

void NorMuon::Shape(int index, float* direction) {
  const StageTensor& place = tensor(index);
  std::vector<float>& squares = squares_[static_cast<size_t>(index)];
  double before = 0;
  double after = 0;
  for (int64_t row = 0; row < place.rows; ++row) {
    float* values = direction + row * place.cols;
    const double sum = SquaredNorm(place.cols, values);
    float& square = squares[static_cast<size_t>(row)];
    square = beta2_ * square + (1 - beta2_) * static_cast<float>(sum / place.cols);
    const double factor = 1 / (std::sqrt(static_cast<double>(square)) + kEpsilon);
    before += sum;
    after += sum * factor * factor;
    for (int64_t i = 0; i < place.cols; ++i) values[i] *= static_cast<float>(factor);
  }
  const auto restored = static_cast<float>(std::sqrt(before) / (std::sqrt(after) + kEpsilon));
  for (int64_t i = 0; i < place.elements(); ++i) direction[i] *= restored;
}

}  // namespace pipelag
