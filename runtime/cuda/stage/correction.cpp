#include "runtime/cuda/stage/correction.h"

#include "models/error.h"
#include "runtime/correction/dc_asgd.h"
#include "runtime/correction/error_feedback.h"
#include "runtime/correction/pipemare.h"
#include "runtime/correction/rate_damping.h"
#include "runtime/correction/weight_prediction.h"

namespace pipelag::cuda {

DeviceCorrection::Name DeviceCorrection::NameOf(std::string_view name) {
  if (name == "none") return Name::kNone;
  if (name == "error-feedback") return Name::kErrorFeedback;
  if (name == "weight-prediction") return Name::kWeightPrediction;
  if (name == "dc-asgd") return Name::kDcAsgd;
  if (name == "dc-asgd-adaptive") return Name::kDcAsgdAdaptive;
  if (name == "pipemare") return Name::kPipeMare;
  if (name == "rate-damping") return Name::kRateDamping;
  CHECK(false);
}

DeviceCorrection::DeviceCorrection(const CorrectionOptions& options, StageDelay delay)
    : options_(options), delay_(delay), name_(NameOf(options.name)) {
  const bool late = delay.updates > 0;
  switch (name_) {
    case Name::kNone:
    case Name::kRateDamping:
      break;
    case Name::kErrorFeedback:
      strength_ = FeedbackStrength(options);
      if (late && strength_ != 0) array_ = "correction_previous";
      break;
    case Name::kWeightPrediction:
      horizon_ = PredictionHorizon(options, delay);
      if (horizon_ > 0) array_ = "correction_master";
      break;
    case Name::kDcAsgd:
      strength_ = DcAsgdSettings(options, false).strength;
      break;
    case Name::kDcAsgdAdaptive:
      strength_ = DcAsgdSettings(options, true).strength;
      if (late && strength_ != 0) array_ = "correction_avg_sq";
      break;
    case Name::kPipeMare:
      anneal_updates_ = AnnealedUpdates(options);
      break;
  }
}

double* DeviceCorrection::Number(std::string_view name) {
  const bool kept = name_ == Name::kErrorFeedback && name == "correction_rate";
  return kept ? &previous_rate_ : nullptr;
}

float DeviceCorrection::Rate(float rate, int64_t number) const {
  if (name_ == Name::kPipeMare) return AnnealedRate(rate, delay_, anneal_updates_, number);
  if (name_ == Name::kRateDamping) {
    return DampedRate(rate, delay_, DampingExponent(options_), number);
  }
  return rate;
}

CorrectionStep DeviceCorrection::FeedBack(float* state, float weight, float rate,
                                          float weight_decay) {
  using Previous = CorrectionStep::Previous;
  CorrectionStep step = {.kind = CorrectionStep::Kind::kErrorFeedback,
                         .state = state,
                         .weight = weight,
                         .decayed = options_.decay_inside ? rate * weight_decay : 0.0f};
  const auto previous_rate = static_cast<float>(previous_rate_);
  if (previous_rate < 0 && options_.repeat_first) {
    step.previous = Previous::kRepeat;
  } else if (options_.rescale_previous && previous_rate > 0) {
    step.previous = Previous::kRescale;
    step.rescale = rate / previous_rate;
  }
  previous_rate_ = static_cast<double>(rate);
  return step;
}

CorrectionStep DeviceCorrection::Begin(float* state, float rate, float weight_decay, int64_t number,
                                       bool has_taken_at) {
  using Kind = CorrectionStep::Kind;
  const int late = delay_.At(number);
  switch (name_) {
    case Name::kNone:
    case Name::kPipeMare:
    case Name::kRateDamping:
      break;
    case Name::kErrorFeedback: {
      const float weight = strength_ * static_cast<float>(late);
      if (weight == 0) break;
      return FeedBack(state, weight, rate, weight_decay);
    }
    case Name::kWeightPrediction:
      if (state == nullptr) break;
      return {.kind = Kind::kWeightPrediction,
              .state = state,
              .weight = late > 0 ? horizon_ : 0.0f,
              .begins = number == 1};
    case Name::kDcAsgd:
    case Name::kDcAsgdAdaptive:
      if (strength_ == 0 || late == 0) break;
      CHECK(has_taken_at);
      return {.kind = state != nullptr ? Kind::kDcAsgdAdaptive : Kind::kDcAsgd,
              .state = state,
              .weight = strength_,
              .old = DcAsgdSettings::kKept,
              .epsilon = DcAsgdSettings::kEpsilon};
  }
  return {};
}

}  // namespace pipelag::cuda
