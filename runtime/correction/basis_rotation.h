// Basis rotation: AdamW in a basis aligned with the curvature, in which delay hurts less.
#pragma once

#include "runtime/optimizer/rotated_adam.h"

namespace pipelag {

/// RotatedAdam on the matrices inside blocks, bilateral, with the second-moment source (arXiv
/// 2602.03515), and Adam on the rest. Unlike SOAP it has AdamW's defaults (β 0.9 and 0.95, ε 1e-8,
/// decay 0.1) and leaves embeddings and head in their own bases. Replaces AdamW at any delay, 0
/// included, which is how it is compared. Bases are refreshed every 10 updates.
class BasisRotation : public RotatedAdam {
 public:
  BasisRotation(const OptimizerOptions& options, const StageLayout& layout);
};

}  // namespace pipelag
