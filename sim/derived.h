// The facts of a schedule, derived from its order and a simulated run, beside their closed forms.
#pragma once

#include <vector>

#include "models/schedule/facts.h"
#include "models/schedule/program.h"

namespace pipelag {

struct DerivedFact {
  Fact fact;
  std::vector<Ratio> derived;  ///< as many as there are ranks or stages, or one for the whole
  bool agrees = false;
};

/// Each fact as the program has it: by its own steps for what is in flight, by the endless order
/// for versions and delays; idle times at the times of facts.h, of one step or in steady state.
std::vector<DerivedFact> DeriveFacts(const std::vector<Fact>& facts, const Program& program);

}  // namespace pipelag
