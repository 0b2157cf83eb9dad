#include "runtime/correction/weight_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/error.h"

namespace pipelag {

float PredictionHorizon(const CorrectionOptions& options, const StageDelay& delay) {
  if (delay.updates == 0) return 0;
  const float horizon = options.horizon.value_or(static_cast<float>(delay.updates));
  if (!(horizon >= 0)) {
    throw Error(fmt::format("weights cannot be predicted {} updates ahead", horizon));
  }
  return horizon;
}

WeightPrediction::WeightPrediction(const CorrectionOptions& options,
                                   std::unique_ptr<Optimizer> inner_one, StageDelay stage_delay)
    : Correction(std::move(inner_one), stage_delay),
      horizon_(PredictionHorizon(options, stage_delay)) {
  if (horizon_ > 0) master_.resize(static_cast<size_t>(layout().size()), 0.0f);
}

std::vector<StatePart> WeightPrediction::State() {
  std::vector<StatePart> parts = Correction::State();
  AddParts("correction_master", master_, parts);
  return parts;
}

int64_t WeightPrediction::StateFloats(int index) const {
  return Correction::StateFloats(index) + (master_.empty() ? 0 : tensor(index).elements());
}

const float* WeightPrediction::FinalWeights(const float* newest) const {
  return master_.empty() ? newest : master_.data();
}

void WeightPrediction::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  TensorUpdate from_master = update;
  if (!master_.empty()) {
    const StageTensor& place = tensor(update.tensor);
    float* master = master_.data() + place.offset;
    if (update.number == 1) std::copy_n(update.weights, place.elements(), master);
    from_master.weights = master;
  }
  inner().ComputeUpdate(from_master, displacement);
}

void WeightPrediction::Apply(const TensorUpdate& update, const float* displacement, float* target) {
  if (master_.empty()) {
    Correction::Apply(update, displacement, target);
    return;
  }
  const StageTensor& place = tensor(update.tensor);
  const float horizon = delay().At(update.number) > 0 ? horizon_ : 0.0f;
  const float kept = 1.0f - update.learning_rate * WeightDecay(place);
  float* master = master_.data() + place.offset;
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float before = master[i];
    const float after = before * kept - displacement[i];
    master[i] = after;
    target[i] = after + horizon * (after - before);
  }
}

}  // namespace pipelag
