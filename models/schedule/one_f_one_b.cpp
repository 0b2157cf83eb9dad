// 1F1B with a flush (PipeDream-Flush, DAPPLE; Megatron-LM's non-interleaved order): warm-up
// forwards, then forward and backward in turn, then the remaining backwards, then the update.
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

}  // namespace pipelag
