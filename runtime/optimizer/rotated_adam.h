// Adam in a rotating eigenbasis: what SOAP and basis rotation have in common. Knows one tensor at a
// time.
#pragma once

#include <optional>
#include <vector>

#include "runtime/optimizer/eigenbasis.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {

struct RotatedAdamOptions {
  float beta1 = 0.95f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;
  int basis_updates = 10;                         ///< updates between two refreshes, ≥ 1
  bool (*rotated)(const StageTensor&) = nullptr;  ///< the others are Adam's in their own basis
};

/// m ← β1 m + (1 − β1) g; per rotated tensor g' = QLᵀ g QR, m' = QLᵀ m QR, v ← β2 v + (1 − β2) g'²;
/// u = lr · √(1 − β2^n) / (1 − β1^n) · QL [m' / (√v + ε)] QRᵀ; then L, R (means with β2) take g,
/// and every `basis_updates` updates the bases are refreshed. m is kept as it is and rotated when
/// used, which is what re-projecting it at every change of basis comes to. The first update only
/// starts the bases, as the eigenvectors of its g gᵀ and gᵀ g, and displaces nothing, since on its
/// own eigenvectors a gradient is diagonal and the rest of g' rounding; n counts from the second.
class RotatedAdam : public Optimizer {
 public:
  RotatedAdam(const RotatedAdamOptions& options, const StageLayout& layout);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  RotatedAdamOptions options_;
  std::vector<float> first_;  ///< in the stage's layout
  std::vector<float> second_;
  std::vector<std::optional<MatrixBasis>> bases_;  ///< one per tensor
  std::vector<float> rotated_gradient_;            ///< of one tensor
  std::vector<float> rotated_first_;
  BasisScratch scratch_;
};

}  // namespace pipelag
