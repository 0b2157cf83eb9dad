// Times that vary from action to action as they do on real machines, keyed by the action so that
// two schedules meet the same luck. Knows nothing of what an action waits for.
#pragma once

#include <cstdint>
#include <vector>

#include "models/schedule/program.h"
#include "sim/times.h"

namespace pipelag {

struct NoiseOptions {
  uint64_t seed = 0;
  std::vector<double> rank_factors{};  ///< 1.1: that rank takes 10 % longer; empty: 1 for all
  double sigma = 0;              ///< of the logarithm of an action's factor, whose median is 1
  double stall_probability = 0;  ///< of an action
  Nanoseconds stall{0};          ///< what a stall adds

  /// Whether actions of one kind and stage take now more and now less.
  bool varies() const { return sigma > 0 || stall_probability > 0; }
  bool any() const { return !rank_factors.empty() || varies(); }
};

/// Throws Error naming the flag for what cannot be: negative figures, a probability above 1,
/// factors neither one for all nor one per rank.
void CheckNoise(const NoiseOptions& noise, int ranks);

/// `times` with the factors of the pipeline's ranks. `first_rank` is the number of the pipeline's
/// rank 0 among all replicas' ranks.
ActionTimes WithRankFactors(const Program& program, ActionTimes times, const NoiseOptions& noise,
                            int first_rank = 0);

/// ActionTimes under noise. An action's luck is a pure function of (seed, rank, kind, stage of the
/// network, micro-batch or step): the same in every schedule, run and order. Reductions and
/// messages have none. `first_rank`: as above.
class NoisyTimes {
 public:
  NoisyTimes(const Program& program, const ActionTimes& times, const NoiseOptions& noise,
             int first_rank = 0);

  int64_t Of(const RunAction& action) const {
    return quiet_ ? times_.Of(action) : Noisy(action, times_.Of(action));
  }
  /// Of an OVERLAP: its own time, changed in the proportion in which its halves together change.
  int64_t OfOverlap(const RunAction& forward, const RunAction& backward) const;
  int64_t OfReduction(int group) const { return times_.OfReduction(group); }

  /// By what an action's time, that of its rank, is multiplied; a stall comes on top.
  double Factor(const RunAction& action) const;
  bool Stalls(const RunAction& action) const;

 private:
  void CheckSum(const Program& program) const;
  int64_t Noisy(const RunAction& action, int64_t time) const;
  int RankOf(const RunAction& action) const;
  uint64_t Bits(const RunAction& action, uint64_t draw) const;

  const Schedule& schedule_;
  ActionTimes times_;  // with the ranks' factors
  NoiseOptions noise_;
  int first_rank_;
  bool quiet_;
};

}  // namespace pipelag
