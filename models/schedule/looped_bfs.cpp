// Looped breadth-first (Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2023; PyTorch's
// ScheduleLoopedBFS): chunk after chunk all forwards, then the chunks in reverse all backwards.
#include "models/schedule/pipelines.h"

namespace pipelag {

Schedule GenerateLoopedBfs(const GeneratorOptions& options) {
  const int chunks = options.chunks > 0 ? options.chunks : 2;
  Schedule schedule = LoopedPipeline("looped-bfs", chunks, options);
  for (int rank = 0; rank < options.ranks; ++rank) {
    auto& body = schedule.body[static_cast<size_t>(rank)];
    for (int c = 0; c < chunks; ++c) {
      for (int i = 0; i < options.microbatches; ++i) {
        body.push_back(MakeAction(ActionKind::kForward, c * options.ranks + rank, i));
      }
    }
    // Ascending, unlike PyTorch, so that gradients are summed in the order of 1F1B; the time is the
    // same.
    for (int c = chunks - 1; c >= 0; --c) {
      for (int i = 0; i < options.microbatches; ++i) {
        body.push_back(MakeAction(ActionKind::kBackward, c * options.ranks + rank, i));
      }
    }
  }
  AppendUpdates(schedule);
  return schedule;
}

std::vector<Fact> FactsOfLoopedBfs(const GeneratorOptions& options) {
  const int64_t p = options.ranks;
  const int64_t m = options.microbatches;
  const int64_t v = options.chunks > 0 ? options.chunks : 2;
  std::vector<Fact> facts;
  // With fewer micro-batches a rank waits for its own first one to come round.
  if (m >= p) {
    facts.push_back(
        {Quantity::kIdleOfMakespan, "(p − 1) / (v·m + p − 1)", {{p - 1, v * m + p - 1}}});
  }
  facts.push_back({Quantity::kInFlight, "v·m", {v * m}});
  AddFlushFacts(facts);
  return facts;
}

}  // namespace pipelag
