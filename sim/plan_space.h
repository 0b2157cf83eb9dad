// All ways to lay a training run over a number of GPUs that are worth a look: every combination of
// the sizes given that divides what it must. Knows no times and no bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/cost/estimate.h"

namespace pipelag {

struct PlanSpace {
  int gpus = 1;       ///< all of them are used
  int64_t batch = 1;  ///< sequences per step
  int layers = 1;     ///< blocks of the network: a stage has one at least
  RunLayout fixed;    ///< whatever does not vary; experts cut in 0 parts are cut as `tensor` says
  std::vector<int> tensor{1};
  std::vector<int> context{1};
  std::vector<int> expert{1};
  std::vector<int> pipeline;  ///< empty: every divisor of what is left
  int most_pipeline = 64;     ///< of those
  std::vector<int> chunks{1};
  std::vector<int> microbatch{1};  ///< sequences
  std::vector<Recompute> recompute{Recompute::kNone};
  std::vector<int> shard_states{1};
  std::vector<std::string> schedules;
  bool sequence_parallel = true;  ///< wherever `tensor` is more than 1
};

struct Candidate {
  RunLayout layout;  ///< `chunks` as asked for; what the schedule makes of it is in the Program
  std::string schedule;
  bool operator==(const Candidate& other) const;
};

/// In a fixed order, no two alike. With one pipeline rank all schedules are one, and without
/// copies all of `shard_states`: the first stands for all. Several chunks only where the schedule
/// takes them, and no single ones where it has several of its own accord. Empty if nothing divides.
std::vector<Candidate> EnumerateCandidates(const PlanSpace& space);

/// Why there is none, where there is none: the sentence names the numbers that do not divide.
std::string WhyNothingDivides(const PlanSpace& space);

}  // namespace pipelag
