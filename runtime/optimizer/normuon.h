// NorMuon: Muon whose rows are brought to one size. Knows one tensor at a time.
#pragma once

#include <vector>

#include "runtime/optimizer/muon.h"

namespace pipelag {

/// Muon with o reshaped before it is scaled (Li et al., arXiv 2510.05491): per row v ← β2 v + (1 −
/// β2) · mean(o²); row of o' = row of o / (√v + 1e-10); o ← o' · ‖o‖_F / (‖o'‖_F + 1e-10). There is
/// no bias correction, which the norm would undo. Everything else, options included, is Muon's;
/// beta2 is this one's where AdamW does not work. Default: β2 0.95.
class NorMuon : public Muon {
 public:
  NorMuon(const OptimizerOptions& options, const StageLayout& layout);
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  void Shape(int tensor, float* direction) override;

  float beta2_;
  std::vector<std::vector<float>> squares_;  ///< one per tensor, by row
};

}  // namespace pipelag
