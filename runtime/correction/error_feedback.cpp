#include "runtime/correction/error_feedback.h"

#include <algorithm>
#include <utility>

namespace pipelag {

ErrorFeedback::ErrorFeedback(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner_one,
                             StageDelay stage_delay)
    : Correction(std::move(inner_one), stage_delay),
      strength_(FeedbackStrength(options)),
      decay_inside_(options.decay_inside),
      rescale_previous_(options.rescale_previous),
      repeat_first_(options.repeat_first),
      rates_(layout().tensors().size(), -1.0f) {
  if (strength_ != 0 && delay().updates > 0) {
    previous_.resize(static_cast<size_t>(layout().size()), 0.0f);
  }
}

std::vector<StatePart> ErrorFeedback::State() {
  std::vector<StatePart> parts = Correction::State();
  if (previous_.empty()) return parts;
  AddParts("correction_previous", previous_, parts);
  for (int i = 0; i < tensor_count(); ++i) {
    parts.push_back(
        {.tensor = i, .name = "correction_rate", .floats = {&rates_[static_cast<size_t>(i)], 1}});
  }
  return parts;
}

int64_t ErrorFeedback::StateFloats(int index) const {
  return Correction::StateFloats(index) + (previous_.empty() ? 0 : tensor(index).elements());
}

void ErrorFeedback::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  inner().ComputeUpdate(update, displacement);
  const float weight = strength_ * static_cast<float>(delay().At(update.number));
  if (weight == 0) return;
  const StageTensor& place = tensor(update.tensor);
  float* previous = previous_.data() + place.offset;
  float& previous_rate = rates_[static_cast<size_t>(update.tensor)];
  const float decayed = decay_inside_ ? update.learning_rate * WeightDecay(place) : 0.0f;
  const bool first = previous_rate < 0;
  if (first && repeat_first_) {
    for (int64_t i = 0; i < place.elements(); ++i) {
      previous[i] = displacement[i] + decayed * update.weights[i];
    }
  } else if (rescale_previous_ && previous_rate > 0) {
    const float factor = update.learning_rate / previous_rate;
    for (int64_t i = 0; i < place.elements(); ++i) previous[i] *= factor;
  }
  previous_rate = update.learning_rate;
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float u = displacement[i];
    const float whole = u + decayed * update.weights[i];
    displacement[i] = u + weight * (whole - previous[i]);
    previous[i] = whole;
  }
}

}  // namespace pipelag
