// GPipe (Huang et al., 2019): all forwards, then all backwards, then the update.
#include "models/schedule/pipelines.h"

namespace pipelag {

Schedule GenerateGpipe(const GeneratorOptions& options) {
  Schedule schedule = LinearPipeline("gpipe", options);
  for (int s = 0; s < options.ranks; ++s) {
    auto& body = schedule.body[static_cast<size_t>(s)];
    for (int i = 0; i < options.microbatches; ++i) {
      body.push_back(MakeAction(ActionKind::kForward, s, i));
    }
    // Ascending, so that gradients are summed in the order of 1F1B.
    for (int i = 0; i < options.microbatches; ++i) {
      body.push_back(MakeAction(ActionKind::kBackward, s, i));
    }
  }
  AppendUpdates(schedule);
  return schedule;
}

std::vector<Fact> FactsOfGpipe(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int m = options.microbatches;
  std::vector<Fact> facts = {
      {Quantity::kIdleOfMakespan, "(p − 1) / (m + p − 1)", {{p - 1, m + p - 1}}},
      {Quantity::kInFlight, "m", {m}}};
  AddFlushFacts(facts);
  return facts;
}

}  // namespace pipelag
