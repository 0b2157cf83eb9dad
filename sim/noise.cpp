// Speed factors, jitter and stalls of single actions.
#include "sim/noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "models/random.h"
#include "traces/trace.h"

namespace pipelag {

void CheckNoise(const NoiseOptions& noise, int ranks) {
  const size_t factors = noise.rank_factors.size();
  if (factors > 1 && factors != static_cast<size_t>(ranks)) {
    throw Error(fmt::format("--rank-factors has {} entries: give one for each of the {} ranks",
                            factors, ranks));
  }
  for (const double factor : noise.rank_factors) {
    if (!(factor > 0) || factor > 1e6) {
      throw Error(fmt::format("--rank-factors must be positive numbers, not {}", factor));
    }
  }
  if (!(noise.sigma >= 0) || noise.sigma > 5) {
    throw Error(fmt::format("--noise must lie between 0 and 5, not {}", noise.sigma));
  }
  if (!(noise.stall_probability >= 0) || noise.stall_probability > 1) {
    throw Error(fmt::format("the probability of --stalls must lie between 0 and 1, not {}",
                            noise.stall_probability));
  }
  if (noise.stall.count() < 0) throw Error("the duration of --stalls must not be negative");
}

ActionTimes WithRankFactors(const Program& program, ActionTimes times, const NoiseOptions& noise,
                            int first_rank) {
  if (noise.rank_factors.empty()) return times;
  std::vector<double> factors;
  for (int rank = 0; rank < program.schedule().ranks; ++rank) {
    const bool alike = noise.rank_factors.size() == 1;
    factors.push_back(noise.rank_factors[alike ? 0 : static_cast<size_t>(first_rank + rank)]);
  }
  times.Scale(factors, program);
  return times;
}

NoisyTimes::NoisyTimes(const Program& program, const ActionTimes& times, const NoiseOptions& noise,
                       int first_rank)
    : schedule_(program.schedule()),
      times_(WithRankFactors(program, times, noise, first_rank)),
      noise_(noise),
      first_rank_(first_rank),
      quiet_(!noise.varies()) {
  if (!quiet_) CheckSum(program);
}

/// As ActionTimes does for what is not noisy: no run is longer than all its actions one after the
/// other. They are added up one by one only where a bound is too large.
void NoisyTimes::CheckSum(const Program& program) const {
  constexpr double kMost = 4.6e18;  // half of what there is: messages take time as well
  constexpr double kFarthest = 9;   // no draw of StandardNormal is farther from 0
  const double factor = std::exp(noise_.sigma * kFarthest);
  double step = 0;
  double actions = 0;
  for (const auto& body : schedule_.body) {
    for (const Action& action : body) {
      if (OnComputeLane(action.kind)) step += static_cast<double>(times_.Of(action));
      ++actions;
    }
  }
  const double stalls =
      noise_.stall_probability > 0 ? static_cast<double>(noise_.stall.count()) * actions : 0;
  if ((step * factor + stalls) * static_cast<double>(program.steps()) < kMost) return;
  double sum = 0;
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
      if (!OnComputeLane(walk.action().kind)) continue;
      sum += static_cast<double>(Of(walk.action()));
      if (!(sum < kMost)) {
        throw Error("the noise makes the run take longer than 292 years: the times are too large");
      }
    }
  }
}

int64_t NoisyTimes::OfOverlap(const RunAction& forward, const RunAction& backward) const {
  const int64_t time = times_.OfOverlap(forward, backward);
  if (quiet_) return time;
  const auto apart =
      static_cast<double>(times_.Of(forward)) + static_cast<double>(times_.Of(backward));
  if (apart == 0) return time;
  const double noisy = static_cast<double>(Of(forward)) + static_cast<double>(Of(backward));
  return Multiplied(time, noisy / apart);
}

int64_t NoisyTimes::Noisy(const RunAction& action, int64_t time) const {
  time = Multiplied(time, Factor(action));
  return Stalls(action) ? time + noise_.stall.count() : time;
}

double NoisyTimes::Factor(const RunAction& action) const {
  return noise_.sigma > 0 ? Exponential(noise_.sigma * StandardNormal(Bits(action, 0))) : 1;
}

bool NoisyTimes::Stalls(const RunAction& action) const {
  return noise_.stall_probability > 0 && UniformOpen(Bits(action, 1)) < noise_.stall_probability;
}

int NoisyTimes::RankOf(const RunAction& action) const {
  return first_rank_ + schedule_.placement[static_cast<size_t>(action.stage)];
}

uint64_t NoisyTimes::Bits(const RunAction& action, uint64_t draw) const {
  const auto rank = static_cast<uint64_t>(RankOf(action));
  const auto kind = static_cast<uint64_t>(action.kind);
  return RandomBits(noise_.seed, rank << 16 | kind << 8 | draw,
                    static_cast<uint64_t>(schedule_.SliceOf(action.stage)),
                    static_cast<uint64_t>(action.microbatch));
}

}  // namespace pipelag
