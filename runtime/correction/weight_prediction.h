// Weight prediction: forwards and backwards compute with the weights as they are expected to be
// when their gradient arrives.
#pragma once

#include <vector>

#include "runtime/correction/correction.h"

namespace pipelag {

/// h: of the options, else the stage's delay; 0 at delay 0. Throws Error if it is no horizon.
float PredictionHorizon(const CorrectionOptions& options, const StageDelay& delay);

/// y ← y − u (with decay), the master weights; readers get y + h (y − y_before), the last update
/// continued h updates further: SpecTrain (Chen et al., arXiv 1809.02839) with any optimizer's own
/// displacement as its velocity, as in XPipe (Guan et al., arXiv 1911.04610) for Adam. Default h:
/// the stage's delay. The first version is read as it is. Costs the master copy; a run ends with
/// it.
class WeightPrediction : public Correction {
 public:
  WeightPrediction(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner,
                   StageDelay delay);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  void Apply(const TensorUpdate& update, const float* displacement, float* target) override;
  const float* FinalWeights(const float* newest) const override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  float horizon_;
  std::vector<float> master_;  ///< in the stage's layout; empty if nothing is predicted
};

}  // namespace pipelag
