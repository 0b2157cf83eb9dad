// What a delay correction is: an optimizer around another, told how late its stage's gradients
// come. Knows neither schedules nor where weights are kept.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// How late the gradients of one stage are, in updates.
struct StageDelay {
  int updates = 0;                ///< in steady state
  int64_t synchronous_until = 0;  ///< updates up to this number come with delay 0

  int At(int64_t number) const { return number > synchronous_until ? updates : 0; }
};

/// What a job says about its correction. What is left out is the correction's own default, given in
/// its header; what a correction has no use for is ignored.
struct CorrectionOptions {
  std::string name = "none";
  std::optional<float> strength = std::nullopt;  ///< λ of error feedback and DC-ASGD
  std::optional<float> horizon =
      std::nullopt;               ///< of weight prediction, in updates; default the stage's delay
  bool decay_inside = false;      ///< error feedback: weight decay is part of u
  bool rescale_previous = false;  ///< error feedback: u_prev moves with the learning rate
  bool repeat_first = false;      ///< error feedback: the first u_prev is u itself, not 0
  std::optional<int64_t> anneal_updates = std::nullopt;  ///< of PipeMare's rule
  std::optional<float> exponent = std::nullopt;          ///< of learning-rate damping
};

/// Base of corrections: passes on what it does not change.
class Correction : public Optimizer {
 public:
  Correction(std::unique_ptr<Optimizer> inner, StageDelay delay);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  float Rate(const StageTensor& place, float learning_rate, int64_t number) const override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 protected:
  Optimizer& inner() { return *inner_; }
  const StageDelay& delay() const { return delay_; }

 private:
  std::unique_ptr<Optimizer> inner_;
  StageDelay delay_;
};

/// The optimizer of a stage with its correction. With delay 0 every correction but basis rotation
/// is none, to the last bit. Throws Error naming the nearest known name if there is no optimizer or
/// correction of that name, or if the two do not go together.
std::unique_ptr<Optimizer> MakeCorrected(const OptimizerOptions& optimizer,
                                         const CorrectionOptions& correction,
                                         const StageLayout& layout, StageDelay delay);

/// Whether late updates need the weights their gradients were taken at (TensorUpdate::taken_at).
bool ReadsWeightsTakenAt(const CorrectionOptions& correction);

/// Known names, in the order in which they are shown.
std::vector<std::string> CorrectionNames();

}  // namespace pipelag
