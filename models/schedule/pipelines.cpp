#include "models/schedule/pipelines.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace pipelag {
namespace {

Schedule EmptyPipeline(std::string_view name, int stages, const GeneratorOptions& options) {
  if (stages > std::numeric_limits<uint16_t>::max()) {
    throw Error(fmt::format("{} stages are more than the 65535 that a schedule can hold", stages));
  }
  Schedule schedule;
  schedule.name = name;
  schedule.ranks = options.ranks;
  schedule.stages = stages;
  schedule.microbatches = options.microbatches;
  schedule.body.resize(static_cast<size_t>(options.ranks));
  return schedule;
}

}  // namespace

Schedule LinearPipeline(std::string_view name, const GeneratorOptions& options) {
  return LoopedPipeline(name, 1, options);
}

Schedule LoopedPipeline(std::string_view name, int chunks, const GeneratorOptions& options) {
  Schedule schedule = EmptyPipeline(name, options.ranks * chunks, options);
  for (int s = 0; s < schedule.stages; ++s) schedule.placement.push_back(s % options.ranks);
  AddGroups(schedule, options);
  return schedule;
}

Schedule VPipeline(std::string_view name, const GeneratorOptions& options) {
  Schedule schedule = EmptyPipeline(name, 2 * options.ranks, options);
  for (int s = 0; s < schedule.stages; ++s) {
    schedule.placement.push_back(std::min(s, schedule.stages - 1 - s));
  }
  AddGroups(schedule, options);
  return schedule;
}

void AddGroups(Schedule& schedule, const GeneratorOptions& options) {
  using Purpose = CollectiveGroup::Purpose;
  std::vector<int> all(schedule.placement.size());
  std::iota(all.begin(), all.end(), 0);
  if (options.reduction) {
    for (const int s : all) schedule.groups.push_back({Purpose::kReplicas, {s}});
  }
  // Every first stage with the last stage of the stream from the other end, which may stand on its
  // own rank. A single stage holds the tensor once.
  for (int stream = 0; options.tied && schedule.stages > 1 && stream < schedule.streams; ++stream) {
    const int first = schedule.PlacedStage(stream, 0);
    const int last = schedule.PlacedStage(schedule.streams - 1 - stream, schedule.stages - 1);
    schedule.groups.push_back({Purpose::kShared, {std::min(first, last), std::max(first, last)}});
  }
  if (options.norm) schedule.groups.push_back({Purpose::kNorm, all});
  if (options.barrier) schedule.groups.push_back({Purpose::kBarrier, all});
}

void RefuseGlobalWaits(std::string_view name, const GeneratorOptions& options) {
  const char* refused = options.norm      ? "a global gradient norm (--clip-norm)"
                        : options.barrier ? "a global barrier (--flush-barrier)"
                        : options.tied    ? "a tied embedding (--tied), whose first and last stage "
                                            "exchange gradients before every update"
                                          : nullptr;
  if (refused == nullptr) return;
  throw Error(fmt::format("{} cannot wait for {}: it would undo the schedule", name, refused));
}

void AppendUpdates(Schedule& schedule) {
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    std::vector<int> ranks;
    for (const int stage : schedule.groups[g].stages) {
      ranks.push_back(schedule.placement[static_cast<size_t>(stage)]);
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    for (const int rank : ranks) {
      schedule.body[static_cast<size_t>(rank)].push_back(
          MakeAction(ActionKind::kAllReduce, static_cast<int>(g), 0));
    }
  }
  for (int s = 0; s < schedule.placed_stages(); ++s) {
    schedule.body[static_cast<size_t>(schedule.placement[static_cast<size_t>(s)])].push_back(
        MakeAction(ActionKind::kUpdate, s, 0));
  }
}

std::vector<int64_t> WarmUps(const GeneratorOptions& options, int default_slope) {
  if (!options.warmup.empty()) return {options.warmup.begin(), options.warmup.end()};
  const int64_t slope = options.warmup_slope > 0 ? options.warmup_slope : default_slope;
  std::vector<int64_t> warm_ups;
  for (int s = 0; s < options.ranks; ++s) warm_ups.push_back(slope * (options.ranks - 1 - s));
  return warm_ups;
}

void CheckWarmUp(const GeneratorOptions& options) {
  if (!options.warmup.empty() && options.warmup_slope > 0) {
    throw Error("--warmup and --warmup-slope both set the warm-up: give one of them");
  }
  if (options.warmup_slope < 0) {
    throw Error(fmt::format("--warmup-slope must be at least 1, not {}", options.warmup_slope));
  }
  if (!options.warmup.empty() && static_cast<int>(options.warmup.size()) != options.ranks) {
    throw Error(fmt::format("--warmup has {} entries, but there are {} ranks",
                            options.warmup.size(), options.ranks));
  }
  // Numbers of micro-batches in a body are 32 bits wide, and a body reaches ahead by its warm-up.
  static constexpr int64_t kMost = 1 << 28;
  const auto check = [](int64_t warm_up) {
    if (warm_up < 0 || warm_up > kMost) {
      throw Error(fmt::format("a warm-up of {} forwards is not between 0 and {} (--warmup)",
                              warm_up, kMost));
    }
  };
  for (const int warm_up : options.warmup) check(warm_up);
  check(int64_t{options.warmup_slope} * (options.ranks - 1));
}

}  // namespace pipelag
