#include "runtime/correction/dc_asgd.h"

#include <cmath>
#include <utility>

#include "models/error.h"

namespace pipelag {
DcAsgd::DcAsgd(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner_one,
               StageDelay stage_delay, bool adaptive)
    : Correction(std::move(inner_one), stage_delay),
      strength_(DcAsgdSettings(options, adaptive).strength),
      corrected_(static_cast<size_t>(largest_tensor())) {
  if (adaptive && delay().updates > 0 && strength_ != 0) {
    squares_.resize(static_cast<size_t>(layout().size()), 0.0f);
  }
}

std::vector<StatePart> DcAsgd::State() {
  std::vector<StatePart> parts = Correction::State();
  AddParts("correction_avg_sq", squares_, parts);
  return parts;
}

int64_t DcAsgd::StateFloats(int index) const {
  return Correction::StateFloats(index) + (squares_.empty() ? 0 : tensor(index).elements());
}

void DcAsgd::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  if (strength_ == 0 || delay().At(update.number) == 0) {
    inner().ComputeUpdate(update, displacement);
    return;
  }
  CHECK(update.taken_at != nullptr);
  const StageTensor& place = tensor(update.tensor);
  constexpr float kKept = DcAsgdSettings::kKept;
  float* squares = squares_.empty() ? nullptr : squares_.data() + place.offset;
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float g = update.gradient[i];
    float strength = strength_;
    if (squares != nullptr) {
      squares[i] = kKept * squares[i] + (1 - kKept) * (g * g);
      strength /= std::sqrt(squares[i] + DcAsgdSettings::kEpsilon);
    }
    corrected_[static_cast<size_t>(i)] =
        g + strength * (g * g) * (update.weights[i] - update.taken_at[i]);
  }
  TensorUpdate with = update;
  with.gradient = corrected_.data();
  inner().ComputeUpdate(with, displacement);
}

}  // namespace pipelag
