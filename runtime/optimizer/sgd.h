// Stochastic gradient descent with momentum. Knows one tensor at a time.
#pragma once

#include <vector>

#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// b ← momentum · b + g; u = lr · b: the sum form, as in PyTorch (Sutskever et al., ICML 2013, with
/// the learning rate outside the buffer). Defaults: momentum 0.9, decay 0.
class Sgd : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, const StageLayout& layout);
  void ComputeUpdate(int tensor, const float* gradient, const float* weights, float learning_rate,
                     int64_t update_number, float* displacement) override;

 private:
  float momentum_;
  std::vector<float> buffer_;  ///< in the stage's layout
};

}  // namespace pipelag
