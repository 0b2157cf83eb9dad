// Orders without end: what ranks would do if micro-batches never stopped coming. Cut to one step
// they are a schedule with a flush, with updates in between one without.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/schedule/pipelines.h"

namespace pipelag {

/// The bodies of `pipeline` hold `period` micro-batches of the order, numbered relative to the
/// period; U and AR are not in it.
struct EndlessOrder {
  Schedule pipeline;
  int period = 1;
};

EndlessOrder Endless1F1B(const GeneratorOptions& options, int default_slope);
EndlessOrder EndlessInterleaved(const GeneratorOptions& options);
EndlessOrder EndlessZbH1(const GeneratorOptions& options);
EndlessOrder EndlessZbH2(const GeneratorOptions& options);
EndlessOrder EndlessZbV(const GeneratorOptions& options);

/// The order that `options.body` names. Throws Error for a name that has none.
EndlessOrder EndlessBody(const GeneratorOptions& options);

/// What is known of these orders without a flush: idle time and activations.
std::vector<Fact> FactsOfEndless1F1B(const GeneratorOptions& options);
std::vector<Fact> FactsOfEndlessInterleaved(const GeneratorOptions& options);
std::vector<Fact> FactsOfEndlessZbH1(const GeneratorOptions& options);
std::vector<Fact> FactsOfEndlessZbH2(const GeneratorOptions& options);
/// Of the order that `options.body` names.
std::vector<Fact> FactsOfEndlessBody(const GeneratorOptions& options);

/// All that is known of 1F1B with a flush.
std::vector<Fact> FactsOfFlushing1F1B(const GeneratorOptions& options, int default_slope);

/// Micro-batches by which each stage's weight gradients are behind its forwards, of orders with one
/// stage per rank.
struct OwnDelay {
  std::string formula;           ///< of stage s
  std::string formula_of_first;  ///< of stage 0
  std::vector<int64_t> ahead;
  bool stashed_until_update = false;  ///< no W, which reads no weights, stands before the update
};
std::optional<OwnDelay> OwnDelayOf(const GeneratorOptions& options);

/// One step with a flush: of the order all that belongs to micro-batches [0, m), then the updates.
Schedule CutToOneStep(std::string_view name, EndlessOrder order);

/// An update every m micro-batches, a multiple of the period, and no flush. Of a batch t of a
/// stage, AR(t) stands behind the batch's last gradient on its rank; U(t) there too (early), or
/// directly before the stage's first F of batch t + 2 (late).
Schedule UpdateForever(std::string_view name, WeightPolicy policy, const EndlessOrder& order,
                       bool late);

}  // namespace pipelag
