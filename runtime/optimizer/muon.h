// Muon: momentum whose matrices are made nearly orthogonal before they are applied. Knows one
// tensor at a time, and matrix products.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// What a Muon computes with: of the options, else its defaults.
struct MuonSettings {
  explicit MuonSettings(const OptimizerOptions& options)
      : momentum(options.momentum.value_or(0.95f)),
        nesterov(options.nesterov.value_or(true)),
        scale(options.muon_scale.value_or(MuonScale::kMoonshot)),
        aux_factor(options.muon_aux_learning_rate
                       ? *options.muon_aux_learning_rate / options.learning_rate
                       : 1.0f),
        weight_decay(options.weight_decay.value_or(0.1f)) {}

  /// What an orthogonal matrix of that size is multiplied with.
  float Scale(int rows, int cols, float learning_rate) const {
    const double factor = scale == MuonScale::kMoonshot
                              ? 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)))
                              : std::sqrt(std::max(1.0, static_cast<double>(rows) / cols));
    return static_cast<float>(static_cast<double>(learning_rate) * factor);
  }

  float momentum;
  bool nesterov;
  MuonScale scale;
  float aux_factor;  ///< of the learning rate, for what AdamW does
  float weight_decay;
};

/// The polynomial of a Newton-Schulz step, how many there are, and what is added to a norm.
struct NewtonSchulzStep {
  static constexpr int kSteps = 5;
  static constexpr float kA = 3.4445f;
  static constexpr float kB = -4.7750f;
  static constexpr float kC = 2.0315f;
  static constexpr double kNormEpsilon = 1e-7;
};

/// Embeddings, head and vectors.
inline bool LeftToAdamW(const StageTensor& place) { return place.role != TensorRole::kMatrix; }

/// For matrices inside blocks (K. Jordan et al., "Muon", 2024): b ← μ b + g; o = NewtonSchulz(g + μ
/// b), Nesterov's form, or of b without it; u = lr · scale · o. The scale is by default 0.2 ·
/// √max(rows, cols) (Liu et al., "Moonlight", arXiv 2502.16982), under which AdamW's learning rate
/// and decay fit, or Jordan's √max(1, rows / cols). b as a mean, μ b + (1 − μ) g, would be
/// proportional, hence the same. Embeddings, head and vectors are AdamW's, with the same learning
/// rate and decay unless they have their own rate. c_attn is one (3C, C) matrix. Defaults: μ 0.95,
/// Nesterov, decay 0.1, AdamW's own for its β and ε.
class Muon : public Optimizer {
 public:
  Muon(const OptimizerOptions& options, const StageLayout& layout);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  float Rate(const StageTensor& place, float learning_rate, int64_t number) const override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  /// What a variant does to a matrix between orthogonalising and scaling.
  virtual void Shape(int tensor, float* direction);

  MuonSettings settings_;
  AdamW others_;
  std::vector<std::vector<float>> buffers_;  ///< one per tensor; empty where AdamW does the work
  std::vector<float> workspace_;
};

/// Floats of workspace that Orthogonalise needs for a (rows, cols) matrix.
int64_t OrthogonaliseWorkspace(int64_t rows, int64_t cols);

/// In place: brings the singular values of a (rows, cols) matrix near 1 (about 0.5 to 1.5; those
/// far below the norm need not get there) by five Newton-Schulz steps. With X = matrix /
/// (‖matrix‖_F + 1e-7): A = X Xᵀ; X ← 3.4445 X + (−4.7750 A + 2.0315 A²) X. Where rows > cols, A =
/// Xᵀ X stands on the right instead: the same as transposing before and after, with products of the
/// shorter side.
void Orthogonalise(int64_t rows, int64_t cols, float* matrix, float* workspace);

}  // namespace pipelag
