#include "sim/unequal.h"

#include <fmt/format.h>

#include <cmath>

#include "models/error.h"
#include "models/random.h"

namespace pipelag {

std::vector<double> MicrobatchFactors(int microbatches, double sigma, uint64_t seed) {
  constexpr double kMost = 3;
  if (!(sigma >= 0) || sigma > kMost) {
    throw Error(
        fmt::format("the spread of micro-batches must lie between 0 and {}, not {}", kMost, sigma));
  }
  std::vector<double> factors;
  double sum = 0;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    const uint64_t bits = RandomBits(seed, static_cast<uint64_t>(microbatch));
    factors.push_back(Exponential(sigma * StandardNormal(bits)));
    sum += factors.back();
  }
  for (double& factor : factors) factor *= microbatches / sum;
  return factors;
}

void MakeUnequal(const Program& program, const std::vector<double>& factors, ActionTimes& times) {
  const Schedule& schedule = program.schedule();
  CHECK(factors.size() == static_cast<size_t>(schedule.microbatches));
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward,
                                ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
    std::vector<std::vector<Nanoseconds>> of_kind;
    for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
      const auto even = static_cast<double>(times.Of(kind, placed));
      std::vector<Nanoseconds>& row = of_kind.emplace_back();
      for (const double factor : factors) {
        row.emplace_back(static_cast<int64_t>(std::floor(even * factor + 0.5)));
      }
    }
    times.Replace(kind, of_kind, program);
  }
}

}  // namespace pipelag
