#include "sim/plan_space.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "models/schedule/generators.h"
#include "sim/estimated_run.h"

namespace pipelag {
namespace {

auto KeyOf(const RunLayout& layout) {
  const Sharding& sharding = layout.sharding;
  return std::tuple(sharding.tensor, sharding.context, sharding.expert, sharding.sequences,
                    sharding.recompute, layout.pipeline, layout.chunks, layout.data,
                    layout.microbatches, layout.shard_states);
}

/// Stages per rank that a schedule may have: whether any number, and its own where it is not told.
struct ChunksTaken {
  bool any = false;
  int own = 1;
};

ChunksTaken ChunksOf(const std::string& schedule) {
  ChunksTaken taken;
  for (const Generator& generator : Generators()) {
    if (generator.name == schedule) taken.any = (generator.uses & Generator::kChunks) != 0;
  }
  if (!taken.any) return taken;
  constexpr int kRanks = 2;
  taken.own = Generate(schedule, {.ranks = kRanks, .microbatches = 2 * kRanks}).stages / kRanks;
  return taken;
}

std::vector<int> PipelinesOf(const PlanSpace& space, int left) {
  std::vector<int> sizes;
  for (const int size : space.pipeline) {
    if (left % size == 0 && size <= space.layers) sizes.push_back(size);
  }
  if (!space.pipeline.empty()) return sizes;
  for (int size = 1; size <= std::min({left, space.layers, space.most_pipeline}); ++size) {
    if (left % size == 0) sizes.push_back(size);
  }
  return sizes;
}

class Enumeration {
 public:
  explicit Enumeration(const PlanSpace& space) : space_(space) {
    for (const std::string& schedule : space.schedules) taken_.push_back(ChunksOf(schedule));
  }

  std::vector<Candidate> All() {
    for (const int tensor : space_.tensor) {
      for (const int context : space_.context) {
        if (space_.gpus % (tensor * context) != 0) continue;
        const int left = space_.gpus / (tensor * context);
        for (const int pipeline : PipelinesOf(space_, left)) {
          RunLayout layout = space_.fixed;
          layout.sharding.tensor = tensor;
          layout.sharding.context = context;
          layout.sharding.sequence_parallel = space_.sequence_parallel && tensor > 1;
          if (space_.fixed.sharding.expert_tensor == 0) layout.sharding.expert_tensor = tensor;
          layout.pipeline = pipeline;
          layout.data = left / pipeline;
          AddShapes(layout);
        }
      }
    }
    return std::move(candidates_);
  }

 private:
  void AddShapes(RunLayout layout) {
    for (const int expert : space_.expert) {
      if (layout.data % expert != 0) continue;
      layout.sharding.expert = expert;
      for (const int microbatch : space_.microbatch) {
        const int64_t per_round = int64_t{1} * layout.data * microbatch;
        if (space_.batch % per_round != 0 || space_.batch / per_round > kMostMicrobatches) continue;
        layout.sharding.sequences = microbatch;
        layout.microbatches = static_cast<int>(space_.batch / per_round);
        AddMemories(layout);
      }
    }
  }

  void AddMemories(RunLayout layout) {
    for (const Recompute recompute : space_.recompute) {
      layout.sharding.recompute = recompute;
      for (const int shards : space_.shard_states) {
        layout.shard_states = shards;
        AddSchedules(layout);
        if (!ReducesGradients(layout)) break;  // no copies to shard anything over
      }
    }
  }

  void AddSchedules(RunLayout layout) {
    if (layout.pipeline == 1) {
      layout.chunks = 1;
      if (!space_.schedules.empty()) candidates_.push_back({layout, space_.schedules.front()});
      return;
    }
    for (size_t i = 0; i < space_.schedules.size(); ++i) {
      for (const int chunks : space_.chunks) {
        const bool taken = taken_[i].any && chunks * layout.pipeline <= space_.layers;
        // One stage each is another schedule, where several are what this one is about.
        if (chunks > 1 ? !taken : taken_[i].any && taken_[i].own > 1) continue;
        layout.chunks = chunks;
        candidates_.push_back({layout, space_.schedules[i]});
      }
    }
  }

  static constexpr int64_t kMostMicrobatches = 1 << 16;

  const PlanSpace& space_;
  std::vector<ChunksTaken> taken_;  ///< by the schedules
  std::vector<Candidate> candidates_;
};

}  // namespace

bool Candidate::operator==(const Candidate& other) const {
  return schedule == other.schedule && KeyOf(layout) == KeyOf(other.layout);
}

std::vector<Candidate> EnumerateCandidates(const PlanSpace& space) {
  return Enumeration(space).All();
}

std::string WhyNothingDivides(const PlanSpace& space) {
  bool any_groups = false;
  for (const int tensor : space.tensor) {
    for (const int context : space.context) {
      if (space.gpus % (tensor * context) != 0) continue;
      any_groups = any_groups || !PipelinesOf(space, space.gpus / (tensor * context)).empty();
    }
  }
  if (!any_groups) {
    return fmt::format(
        "{} GPUs cannot be shared out: no product of tensor {}, context {} and pipeline {} divides "
        "their number, with a block of {} for every rank",
        space.gpus, fmt::join(space.tensor, ","), fmt::join(space.context, ","),
        space.pipeline.empty() ? "sizes" : fmt::format("{}", fmt::join(space.pipeline, ",")),
        space.layers);
  }
  PlanSpace whole = space;
  whole.chunks = {1};
  whole.schedules = {"1f1b"};
  if (!EnumerateCandidates(whole).empty()) {
    return fmt::format(
        "none of the schedules {} takes {} stages on a rank, with {} blocks to share",
        fmt::join(space.schedules, ", "), fmt::join(space.chunks, " or "), space.layers);
  }
  return fmt::format(
      "a batch of {} sequences cannot be shared out over {} GPUs: no number of copies that is "
      "possible times a micro-batch of {} divides it",
      space.batch, space.gpus, fmt::join(space.microbatch, ","));
}

}  // namespace pipelag
