#include "models/schedule/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace pipelag {

Schedule LinearPipeline(std::string_view name, WeightPolicy policy,
                        const GeneratorOptions& options) {
  if (options.late_update.value_or(false) && policy != WeightPolicy::kDoubleBuffered) {
    throw Error(fmt::format("{} updates as soon as a batch's gradients are there: a late "
                            "--update-placement needs double-buffered weights",
                            name));
  }
  Schedule schedule;
  schedule.name = name;
  schedule.ranks = schedule.stages = options.ranks;
  schedule.microbatches = options.microbatches;
  schedule.policy = policy;
  schedule.placement.resize(static_cast<size_t>(options.ranks));
  std::iota(schedule.placement.begin(), schedule.placement.end(), 0);
  schedule.body.resize(static_cast<size_t>(options.ranks));
  using Purpose = CollectiveGroup::Purpose;
  if (options.reduction) {
    for (int s = 0; s < options.ranks; ++s) schedule.groups.push_back({Purpose::kReplicas, {s}});
  }
  if (options.norm) schedule.groups.push_back({Purpose::kNorm, schedule.placement});
  if (options.barrier) schedule.groups.push_back({Purpose::kBarrier, schedule.placement});
  return schedule;
}

void AppendReductions(Schedule& schedule, int stage, int step) {
  auto& body =
      schedule.body[static_cast<size_t>(schedule.placement[static_cast<size_t>(stage)])];
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    const auto& stages = schedule.groups[g].stages;
    const bool member = std::find(stages.begin(), stages.end(), stage) != stages.end();
    if (member) body.push_back(MakeAction(ActionKind::kAllReduce, static_cast<int>(g), step));
  }
}

int64_t WarmUp(const GeneratorOptions& options, int stage) {
  return static_cast<int64_t>(options.warmup_slope) * (options.ranks - 1 - stage);
}

}  // namespace pipelag
