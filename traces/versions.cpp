// How weights aged in a run, read off its spans. Knows nothing of the schedule that was meant.
#include "traces/versions.h"

#include <algorithm>
#include <map>
#include <set>

namespace pipelag {
namespace {

/// Compute spans of one placed stage, in the order of its lane.
using StageLane = std::vector<const Span*>;

StageVersions DelaysOf(const StageLane& lane, const Trace& trace) {
  StageVersions result{-1, -1, -1, -1, 0};
  const auto delay = [&](const Span& span) {
    return static_cast<int>(StepOf(span, trace) - span.weight_version);
  };
  for (const Span* span : lane) {
    if (span->weight_version < 0) continue;
    if (IsForward(span->kind)) {
      result.gradient_delay = std::max(result.gradient_delay, delay(*span));
    } else if (YieldsInputGradient(span->kind)) {
      result.backward_delay = std::max(result.backward_delay, delay(*span));
    }
  }
  for (const Span* span : lane) {
    if (span->weight_version < 0 || !IsForward(span->kind)) continue;
    // The first batches cannot be as late as the others: there is no version below 0.
    if (StepOf(*span, trace) < result.gradient_delay) continue;
    int& least = result.gradient_delay_min;
    least = least < 0 ? delay(*span) : std::min(least, delay(*span));
  }
  return result;
}

int MostLive(const StageLane& lane) {
  std::map<int64_t, size_t> last_read;
  int64_t newest = -1;
  for (size_t i = 0; i < lane.size(); ++i) {
    if (lane[i]->weight_version < 0) continue;
    if (lane[i]->kind != ActionKind::kUpdate) last_read[lane[i]->weight_version] = i;
    newest = std::max(newest, lane[i]->weight_version);
  }
  int most = newest < 0 ? -1 : 1;
  for (size_t i = 0; i < lane.size(); ++i) {
    if (lane[i]->kind != ActionKind::kUpdate) continue;
    int live = 1;
    for (const auto& [version, last] : last_read) {
      if (version < lane[i]->weight_version && last > i) ++live;
    }
    most = std::max(most, live);
  }
  return most;
}

int MostSummed(const StageLane& lane, const Trace& trace) {
  std::set<int64_t> summed;
  size_t most = 0;
  for (const Span* span : lane) {
    if (YieldsWeightGradient(span->kind)) summed.insert(StepOf(*span, trace));
    most = std::max(most, summed.size());
    if (span->kind == ActionKind::kUpdate) summed.erase(StepOf(*span, trace));
  }
  return static_cast<int>(most);
}

}  // namespace

std::vector<StageVersions> MeasuredVersions(const Trace& trace) {
  std::vector<StageLane> lanes(static_cast<size_t>(trace.stages));
  for (const Span& span : trace.spans) {
    if (OnComputeLane(span.kind)) lanes.at(static_cast<size_t>(span.stage)).push_back(&span);
  }
  std::vector<StageVersions> result;
  for (const StageLane& lane : lanes) {
    StageVersions& versions = result.emplace_back(DelaysOf(lane, trace));
    versions.weight_versions = MostLive(lane);
    versions.gradient_buffers = MostSummed(lane, trace);
  }
  return result;
}

}  // namespace pipelag
