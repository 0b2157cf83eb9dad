// Tests that go over every registered schedule, and how they name their cases.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "models/schedule/generators.h"

namespace pipelag {

inline std::vector<std::string> EverySchedule() {
  std::vector<std::string> names;
  for (const Generator& generator : Generators()) names.emplace_back(generator.name);
  return names;
}

/// GoogleTest takes no hyphens.
inline std::string CaseName(std::string schedule) {
  std::replace(schedule.begin(), schedule.end(), '-', '_');
  return schedule;
}

}  // namespace pipelag
