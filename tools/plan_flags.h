// The flags of `pipelag plan`: which network on which machine, and which layouts are looked at.
// Must not know how they are searched.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/plan_space.h"
#include "tools/arguments.h"
#include "tools/model_flags.h"
#include "tools/result_rows.h"
#include "tools/subcommand.h"

namespace pipelag {

/// What does not vary: --model, --machine, --nodes, --batch, …
std::vector<Flag> PlanFixedFlags();
/// What does, a list each: --tensor, --ranks, …
std::vector<Flag> PlanSpaceFlags();

/// What a plan is about.
struct PlanTask {
  ModelledRun run;
  PlanSpace space;
  Bytes memory = 0;  ///< of a device, that layouts must keep to
  /// Flags that do not vary, as they were given, and their texts.
  std::vector<std::pair<std::string, std::string>> fixed;

  int64_t tokens_per_step() const { return space.batch * space.fixed.sharding.tokens; }
};

/// Throws Error naming the flag.
PlanTask PlanTaskOf(const Arguments& arguments);

/// The names and values of what varies, as flags of `pipelag simulate`.
std::vector<std::pair<std::string, std::string>> VaryingOf(const Candidate& candidate);
/// "tensor=8 ranks=16 …".
std::string CandidateText(const Candidate& candidate);
/// The command that simulates just this.
std::string SimulateCommandOf(const PlanTask& task, const Candidate& candidate);

/// A layout by some of its values, "tensor=8,ranks=16"; pipeline is another name for ranks.
using LayoutPattern = std::vector<std::pair<std::string, std::string>>;
/// By --rank-of; its values join those that are looked at. Throws Error naming the flag.
LayoutPattern PatternOf(const Arguments& arguments, PlanSpace& space);
/// With one rank of any schedule, and with no copies of any ZeRO stage: one stands for all.
bool Matches(const Candidate& candidate, const LayoutPattern& pattern);

}  // namespace pipelag
