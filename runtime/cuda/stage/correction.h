// Delay corrections on a device: what they make of a rate, and of one update. The counterparts of
// runtime/correction. Knows neither schedules nor where weights are kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/correction/correction.h"
#include "runtime/cuda/kernels/update.h"

namespace pipelag::cuda {

/// Of one group of tensors, which have one rate and one decay.
class DeviceCorrection {
 public:
  /// `options` must be those of a device correction (CheckDeviceOptimizer). Throws Error as the
  /// CPU's.
  DeviceCorrection(const CorrectionOptions& options, StageDelay delay);

  /// The array of state, named as the part of the CPU's; empty: none.
  std::string_view array() const { return array_; }
  /// What the host keeps under a name; null if nothing.
  double* Number(std::string_view name);

  /// What it has seen.
  void Forget() { previous_rate_ = kNoRate; }

  float Rate(float rate, int64_t number) const;

  /// Called once per update. `state`: the array, or null.
  CorrectionStep Begin(float* state, float rate, float weight_decay, int64_t number,
                       bool has_taken_at);

 private:
  enum class Name : uint8_t {
    kNone,
    kErrorFeedback,
    kWeightPrediction,
    kDcAsgd,
    kDcAsgdAdaptive,
    kPipeMare,
    kRateDamping,
  };
  static Name NameOf(std::string_view name);
  static constexpr double kNoRate = -1;
  CorrectionStep FeedBack(float* state, float weight, float rate, float weight_decay);

  CorrectionOptions options_;
  StageDelay delay_;
  Name name_;
  float strength_ = 0;  ///< λ
  float horizon_ = 0;   ///< h
  int64_t anneal_updates_ = 1;
  std::string_view array_;
  double previous_rate_ = kNoRate;  ///< of u_prev; negative before there is one
};

}  // namespace pipelag::cuda
