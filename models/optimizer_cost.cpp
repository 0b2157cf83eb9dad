#include "models/optimizer_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "models/error.h"
#include "models/names.h"

namespace pipelag {
namespace {

/// Of an elementwise pass, per element; weights and gradient are read and the new weights written
/// by `moved` already.
UpdateCost PerElement(const ParameterShape& shape, int64_t state, double flops, int64_t moved) {
  const int64_t n = shape.elements();
  return {state * n, flops * static_cast<double>(n), moved * n, 0};
}

void AddProducts(double flops, UpdateCost& cost) {
  cost.flops += flops;
  cost.matrix_flops += flops;
}

// State is read and written, gradient and weights read, new weights written: 2 · state + 3, and the
// displacement in between written and read.
constexpr int64_t Moved(int64_t state) { return 2 * state + 5; }

UpdateCost SgdCost(const ParameterShape& shape, int) { return PerElement(shape, 1, 5, Moved(1)); }
UpdateCost LionCost(const ParameterShape& shape, int) { return PerElement(shape, 1, 8, Moved(1)); }
UpdateCost AdamWCost(const ParameterShape& shape, int) {
  return PerElement(shape, 2, 14, Moved(2));
}
UpdateCost NAdamCost(const ParameterShape& shape, int) {
  return PerElement(shape, 2, 16, Moved(2));
}
UpdateCost AdanCost(const ParameterShape& shape, int) { return PerElement(shape, 4, 23, Moved(4)); }

UpdateCost MarsCost(const ParameterShape& shape, int basis_updates) {
  UpdateCost cost = AdamWCost(shape, basis_updates);
  if (shape.kind != ParameterKind::kVector) cost += PerElement(shape, 1, 6, 6);
  return cost;
}

UpdateCost MuonCost(const ParameterShape& shape, int basis_updates) {
  if (shape.kind != ParameterKind::kMatrix) return AdamWCost(shape, basis_updates);
  UpdateCost cost = PerElement(shape, 1, 10, Moved(1) + 6);
  // Five Newton-Schulz steps: X Xᵀ, its square, and their polynomial times X, on the shorter side.
  const auto shorter = static_cast<double>(std::min(shape.rows, shape.cols));
  const auto longer = static_cast<double>(std::max(shape.rows, shape.cols));
  AddProducts(5 * (4 * shorter * shorter * longer + 2 * shorter * shorter * shorter), cost);
  return cost;
}

UpdateCost NorMuonCost(const ParameterShape& shape, int basis_updates) {
  UpdateCost cost = MuonCost(shape, basis_updates);
  if (shape.kind != ParameterKind::kMatrix) return cost;
  cost += PerElement(shape, 0, 4, 5);
  cost.state_floats += shape.rows;
  return cost;
}

/// Adam in rotating bases of both sides, of those up to 10000.
UpdateCost RotatedCost(const ParameterShape& shape, int basis_updates) {
  constexpr int64_t kLargestSide = 10000;
  UpdateCost cost = PerElement(shape, 2, 16, Moved(2) + 6);
  const auto n = static_cast<double>(shape.elements());
  for (const int64_t side : {shape.rows, shape.cols}) {
    if (side > kLargestSide) continue;
    const auto s = static_cast<double>(side);
    cost.state_floats += 2 * side * side;
    AddProducts(2 * n * s, cost);      // its mean of g gᵀ
    AddProducts(3 * 2 * n * s, cost);  // gradient and momentum into the basis, the step back
    // A power iteration and the orthonormal factor of its QR by reflections.
    AddProducts((2 + 8.0 / 3) * s * s * s / basis_updates, cost);
  }
  return cost;
}

UpdateCost SoapCost(const ParameterShape& shape, int basis_updates) {
  return shape.kind == ParameterKind::kVector ? AdamWCost(shape, basis_updates)
                                              : RotatedCost(shape, basis_updates);
}

UpdateCost NoCost(const ParameterShape&, int) { return {}; }

UpdateCost ErrorFeedbackCost(const ParameterShape& shape, int) {
  return PerElement(shape, 1, 3, 4);
}

UpdateCost WeightPredictionCost(const ParameterShape& shape, int) {
  return PerElement(shape, 1, 3, 2);
}

UpdateCost DcAsgdCost(const ParameterShape& shape, int) { return PerElement(shape, 0, 5, 5); }

UpdateCost DcAsgdAdaptiveCost(const ParameterShape& shape, int) {
  return PerElement(shape, 1, 12, 7);
}

UpdateCost BasisRotationCost(const ParameterShape& shape, int basis_updates) {
  if (shape.kind != ParameterKind::kMatrix) return {};
  const UpdateCost rotated = RotatedCost(shape, basis_updates);
  const UpdateCost adamw = AdamWCost(shape, basis_updates);
  return {rotated.state_floats - adamw.state_floats, rotated.flops - adamw.flops,
          rotated.floats_moved - adamw.floats_moved, rotated.matrix_flops};
}

struct Entry {
  std::string_view name;
  UpdateCost (*cost)(const ParameterShape&, int basis_updates);
};

// clang-format off
constexpr Entry kOptimizers[] = {
    {"adamw", AdamWCost},
    {"nadam", NAdamCost},
    {"adan", AdanCost},
    {"lion", LionCost},
    {"mars", MarsCost},
    {"soap", SoapCost},
    {"muon", MuonCost},
    {"normuon", NorMuonCost},
    {"sgd", SgdCost},
    {"sgd-ema", SgdCost},
};

constexpr Entry kCorrections[] = {
    {"none", NoCost},
    {"error-feedback", ErrorFeedbackCost},
    {"weight-prediction", WeightPredictionCost},
    {"dc-asgd", DcAsgdCost},
    {"dc-asgd-adaptive", DcAsgdAdaptiveCost},
    {"pipemare", NoCost},
    {"rate-damping", NoCost},
    {"basis-rotation", BasisRotationCost},
};
// clang-format on

template <size_t size>
const Entry& Find(const Entry (&entries)[size], std::string_view name, const char* what) {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  throw Error(
      fmt::format("there is no {} \"{}\"; did you mean \"{}\"?", what, name, Nearest(name, names)));
}

}  // namespace

UpdateCost& UpdateCost::operator+=(const UpdateCost& other) {
  state_floats += other.state_floats;
  flops += other.flops;
  floats_moved += other.floats_moved;
  matrix_flops += other.matrix_flops;
  return *this;
}

UpdateCost OptimizerCost(std::string_view optimizer, const ParameterShape& shape,
                         int basis_updates) {
  CHECK(basis_updates >= 1);
  return Find(kOptimizers, optimizer, "optimizer").cost(shape, basis_updates);
}

UpdateCost CorrectionCost(std::string_view correction, const ParameterShape& shape, int delay,
                          int basis_updates) {
  CHECK(basis_updates >= 1);
  const Entry& entry = Find(kCorrections, correction, "correction");
  return delay > 0 || entry.name == "basis-rotation" ? entry.cost(shape, basis_updates)
                                                     : UpdateCost{};
}

}  // namespace pipelag
