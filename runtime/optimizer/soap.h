// SOAP: Adam in the eigenbasis of Shampoo's preconditioner. Knows one tensor at a time.
#pragma once

#include "runtime/optimizer/rotated_adam.h"

namespace pipelag {

/// RotatedAdam on every tensor but vectors, which are Adam's (Vyas et al., arXiv 2409.11321,
/// algorithm 3). Decay stands where it stands for all optimizers here, at the idle first update
/// too. Defaults: β 0.95 and 0.95, ε 1e-8, decay 0.1, bases refreshed every 10 updates.
class Soap : public RotatedAdam {
 public:
  Soap(const OptimizerOptions& options, const StageLayout& layout);
};

}  // namespace pipelag
