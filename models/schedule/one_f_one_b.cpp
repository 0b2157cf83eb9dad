// 1F1B with a flush (PipeDream-Flush, DAPPLE; Megatron-LM's non-interleaved order): warm-up
// forwards, then forward and backward in turn, then the remaining backwards, then the update.
#include <algorithm>

#include "models/schedule/endless.h"

namespace pipelag {

EndlessOrder Endless1F1B(const GeneratorOptions& options, int default_slope) {
  EndlessOrder order{LinearPipeline("1f1b", options)};
  const std::vector<int64_t> warm_ups = WarmUps(options, default_slope);
  for (int s = 0; s < options.ranks; ++s) {
    const auto i = static_cast<size_t>(s);
    order.pipeline.body[i] = {MakeAction(ActionKind::kForward, s, warm_ups[i]),
                              MakeAction(ActionKind::kBackward, s, 0)};
  }
  return order;
}

Schedule Generate1F1B(const GeneratorOptions& options) {
  return CutToOneStep("1f1b", Endless1F1B(options, 1));
}

std::vector<Fact> FactsOfFlushing1F1B(const GeneratorOptions& options, int default_slope) {
  const int64_t p = options.ranks;
  const int64_t m = options.microbatches;
  const std::vector<int64_t> warm_ups = WarmUps(options, default_slope);
  std::vector<Fact> facts;
  // A list may hold ranks up; a slope never does.
  if (options.warmup.empty()) {
    facts.push_back({Quantity::kIdleOfMakespan, "(p − 1) / (m + p − 1)", {{p - 1, m + p - 1}}});
  }
  facts.push_back({Quantity::kInFlight, "min(m, w_s + 1)", Each(options.ranks, [&](int s) {
                     return std::min(m, warm_ups[static_cast<size_t>(s)] + 1);
                   })});
  AddFlushFacts(facts);
  return facts;
}

std::vector<Fact> FactsOf1F1B(const GeneratorOptions& options) {
  return FactsOfFlushing1F1B(options, 1);
}

std::vector<Fact> FactsOfEndless1F1B(const GeneratorOptions& options) {
  const std::vector<int64_t> warm_ups = WarmUps(options, 1);
  std::vector<Fact> facts;
  if (options.warmup.empty()) facts.push_back({Quantity::kSteadyIdle, "0", {0}});
  facts.push_back({Quantity::kInFlight, "w_s + 1", Each(options.ranks, [&](int s) {
                     return warm_ups[static_cast<size_t>(s)] + 1;
                   })});
  return facts;
}

}  // namespace pipelag
