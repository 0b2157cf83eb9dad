// What generators share: how stages are placed on ranks, which groups their updates wait for, and
// where the updates of a flush stand.
#pragma once

#include "models/schedule/generators.h"

namespace pipelag {

/// Sizes, placement and groups of a schedule with one stage per rank; the bodies are empty.
Schedule LinearPipeline(std::string_view name, const GeneratorOptions& options);

/// `chunks` stages per rank, chunk c of rank r is stage c·p + r.
Schedule LoopedPipeline(std::string_view name, int chunks, const GeneratorOptions& options);

/// Two stages per rank, down and up again: rank r holds stages r and 2p − 1 − r.
Schedule VPipeline(std::string_view name, const GeneratorOptions& options);

/// Fills `groups`: one per placed stage for its replicas, one per stream between a first and a last
/// stage that share a tensor, one over all for a norm, one for a barrier, as the options ask.
/// Placement must stand.
void AddGroups(Schedule& schedule, const GeneratorOptions& options);

/// Throws Error if the options ask for what would have stages wait for each other before every
/// update, which would undo a schedule of stashed or of newest weights.
void RefuseGlobalWaits(std::string_view name, const GeneratorOptions& options);

/// Ends the bodies of a flush schedule: on each rank the ARs of its stages, then their U,
/// ascending.
void AppendUpdates(Schedule& schedule);

/// Warm-up forwards per stage of a 1F1B: the list given, or slope · (p − 1 − s), where
/// `default_slope` stands in for a slope not given.
std::vector<int64_t> WarmUps(const GeneratorOptions& options, int default_slope);

/// Throws Error if the list is not one number ≥ 0 per rank, or a number is too large to be counted.
void CheckWarmUp(const GeneratorOptions& options);

inline Action MakeAction(ActionKind kind, int stage, int64_t microbatch) {
  return {static_cast<int32_t>(microbatch), static_cast<uint16_t>(stage), kind, false};
}

}  // namespace pipelag
