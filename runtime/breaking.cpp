#include "runtime/breaking.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/training.h"

namespace pipelag {
namespace {

enum Phase : int64_t { kForwards, kBackwards, kNorms };

/// By the exponent alone and without leaving early: a few values per cycle.
bool AllFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7F80'0000;
  uint32_t broken = 0;
  for (const float value : values) {
    const uint32_t exponent = std::bit_cast<uint32_t>(value) & kExponent;
    broken |= static_cast<uint32_t>(exponent == kExponent);
  }
  return broken == 0;
}

}  // namespace

std::optional<Breaking> Earliest(const std::vector<std::optional<Breaking>>& seen) {
  std::optional<Breaking> earliest;
  for (const std::optional<Breaking>& one : seen) {
    if (one && (!earliest || *one < *earliest)) earliest = one;
  }
  return earliest;
}

void BreakWatch::See(const Action& action, const StageLayout& layout) {
  if (broken_ || (std::isfinite(action.loss) && AllFinite(action.output))) return;
  broken_ = true;
  if (!AllFinite(action.input)) return;
  const bool forward = IsForward(action.kind);
  const std::string tensor = FirstNotFinite(layout, action.weights);
  const std::string what =
      !tensor.empty() ? tensor
                      : fmt::format("the {} of {}{}{}",
                                    !forward                ? "gradient out"
                                    : action.output.empty() ? "loss"
                                                            : "output",
                                    action.slice, KindName(action.kind), action.microbatch);
  first_ = {.step = action.step,
            .phase = forward ? kForwards : kBackwards,
            .order = action.microbatch,
            .where = fmt::format("stage {}: {} is not finite", action.slice, what)};
}

/// What breaks in a stage's backward breaks the gradients of all before it too: the last counts.
void BreakWatch::SeeNorms(int slice, int64_t step, const StageLayout& layout,
                          std::span<const double> norms) {
  const bool same_norms = first_ && first_->step == step && first_->phase == kNorms;
  if (broken_ && !same_norms) return;
  const std::vector<StageTensor>& tensors = layout.tensors();
  const auto tensor = std::find_if(tensors.begin(), tensors.end(), [&](const StageTensor& t) {
    return !std::isfinite(norms[static_cast<size_t>(t.global_index)]);
  });
  if (tensor == tensors.end()) return;
  broken_ = true;
  first_ =
      Earliest({first_, Breaking{.step = step,
                                 .phase = kNorms,
                                 .order = -slice,
                                 .where = fmt::format("stage {}: the gradient of {} is not finite",
                                                      slice, tensor->name)}});
}

}  // namespace pipelag
