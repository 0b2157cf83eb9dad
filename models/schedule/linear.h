// What the one-chunk schedules share: stage s on rank s, and the groups their updates wait for.
#pragma once

#include "models/schedule/generators.h"

namespace pipelag {

/// Sizes, placement and groups of a schedule with one stage per rank; the bodies are empty. Throws
/// Error for a late update that the policy does not allow.
Schedule LinearPipeline(std::string_view name, WeightPolicy policy,
                        const GeneratorOptions& options);

/// Appends the ARs of `stage` that stand behind its batch's last gradient, for relative step `step`.
void AppendReductions(Schedule& schedule, int stage, int step);

/// Warm-up forwards of stage s: slope · (p − 1 − s).
int64_t WarmUp(const GeneratorOptions& options, int stage);

inline Action MakeAction(ActionKind kind, int stage, int64_t microbatch) {
  return {static_cast<int32_t>(microbatch), static_cast<uint16_t>(stage), kind, false};
}

}  // namespace pipelag
