// What a run trains on: the halves of the backend of each of its ranks, and what is left of them in
// the end. Knows neither the kinds of backends there are nor where ranks run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/breaking.h"
#include "runtime/compute.h"
#include "runtime/network/layout.h"
#include "runtime/rank_plan.h"
#include "runtime/run_control.h"
#include "runtime/transport.h"

namespace pipelag {

/// A Compute that trains the stages of a rank, counted by their place in its plan.
class TrainingCompute : public Compute {
 public:
  virtual size_t message_bytes() const = 0;  ///< of a boundary tensor
  virtual const StageLayout& layout(size_t index) const = 0;
  /// What the run ends with, once its worker has ended: in the memory of the host, in the layout,
  /// for as long as the object lives.
  virtual const float* FinalWeights(size_t index, int newest_buffer) = 0;
  /// The first tensor of which some version is not finite; else empty.
  virtual std::string NotFinite(size_t index) = 0;
  /// What the rank saw break first; none: nothing, or the backend does not look.
  virtual std::optional<Breaking> FirstBreaking() const { return std::nullopt; }
};

/// Told of every update of the last stage; may be called from any thread that computes.
using OnUpdate =
    std::function<void(int64_t step, float learning_rate, std::optional<double> gradient_norm)>;

/// Of the ranks of one process in one run. Outlives what it makes.
class Backends {
 public:
  virtual ~Backends() = default;
  virtual std::unique_ptr<TrainingCompute> MakeCompute(const RankPlan& plan,
                                                       OnUpdate on_update) = 0;
  /// Null: the one that the kind of run brings.
  virtual std::unique_ptr<Transport> MakeTransport(int rank) = 0;
};

}  // namespace pipelag
