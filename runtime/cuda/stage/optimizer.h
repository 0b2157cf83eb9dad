// The optimizer of one stage on a device, with its correction: the counterpart of what
// MakeCorrected makes. Knows neither the network nor where weights are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/cuda/kernels/buffers.h"
#include "runtime/cuda/products.h"
#include "runtime/cuda/stage/correction.h"
#include "runtime/cuda/stage/places.h"
#include "runtime/cuda/stage/rules.h"

namespace pipelag::cuda {

/// One version of a stage's weights, to be written.
struct WeightsOut {
  float* masters = nullptr;
  Bfloat16* copies = nullptr;  ///< null: none are kept
};

/// What DeviceStage says of updates, norms and state holds here.
class DeviceOptimizer {
 public:
  /// `layout` and `products` are borrowed. `bf16`: Newton-Schulz steps are of bf16. Throws Error as
  /// MakeCorrected, and for what is not there on a device.
  DeviceOptimizer(const StageLayout& layout, const OptimizerOptions& options,
                  const CorrectionOptions& correction, StageDelay delay, bool bf16,
                  Products& products);

  size_t state_bytes() const { return state_.size(); }
  size_t scratch_bytes() const { return scratch_.size(); }
  void Begin(Stream stream, std::byte* state, std::byte* scratch);

  void SquaredNorms(Stream stream, const float* gradients, double* norms) const;
  void Update(Stream stream, float* gradients, const float* source, const WeightsOut& target,
              float rate, int64_t number, const float* taken_at, const float* factor);

  void LoadState(Stream stream, Optimizer& host);
  void StoreState(Stream stream, Optimizer& host);

 private:
  struct Group {
    Group(const StageLayout& layout, const std::vector<bool>& chosen,
          const CorrectionOptions& options, StageDelay delay)
        : tensors(MakeGroup(layout, chosen)), correction(options, delay) {}

    UpdateGroup tensors;
    DeviceCorrection correction;
    std::unique_ptr<UpdateRule> rule;
    float weight_decay = 0;
    float rate_factor = 1;
    size_t chunks = 0;  ///< places in state, as what follows
    size_t tables = 0;
    std::vector<size_t> arrays;  ///< the rule's, then the correction's if it has one
  };

  void AddGroup(const std::vector<bool>& chosen, const OptimizerOptions& options,
                const CorrectionOptions& correction, StageDelay delay, bool bf16,
                Products& products);
  /// Calls body(part, its memory on the device, or null, and the host's number, or null).
  void ForParts(Optimizer& host,
                const std::function<void(const StatePart&, float*, double*)>& body);
  float* Array(const Group& group, size_t which) const {
    return reinterpret_cast<float*>(state_at_ + group.arrays[which]);
  }

  const StageLayout& layout_;
  std::vector<std::unique_ptr<Group>> groups_;
  NormPlan norm_;
  size_t pieces_ = 0;  ///< of the norm's plan, in state
  size_t first_pieces_ = 0;
  BytePlaces state_;
  BytePlaces scratch_;  ///< of a rule, or of norms
  std::byte* state_at_ = nullptr;
  std::byte* scratch_at_ = nullptr;
};

}  // namespace pipelag::cuda
