#include "models/cost/fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/error.h"

namespace pipelag {
namespace {

/// Of one run, and of each factor around its start: standard deviations of logarithms.
constexpr double kOfRun = 0.02;
struct Factor {
  double Efficiency::*value;
  double deviation;
};
constexpr std::array<Factor, 3> kFactors = {{{&Efficiency::compute_factor, 0.3},
                                             {&Efficiency::communication_factor, 0.1},
                                             {&Efficiency::launch, 0.2}}};
constexpr size_t kCount = kFactors.size();
using Vector = std::array<double, kCount>;

Efficiency Moved(const Efficiency& start, const Vector& logs) {
  Efficiency moved = start;
  for (size_t f = 0; f < kCount; ++f) moved.*kFactors[f].value *= std::exp(logs[f]);
  for (const EfficiencyTerm& term : EfficiencyTerms()) {
    moved.*term.value = std::clamp(moved.*term.value, term.least, term.most);
  }
  return moved;
}

/// Solves a·x = b by elimination; a is positive definite.
Vector Solved(std::array<Vector, kCount> a, Vector b) {
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t row = i + 1; row < kCount; ++row) {
      const double times = a[row][i] / a[i][i];
      for (size_t col = i; col < kCount; ++col) a[row][col] -= times * a[i][col];
      b[row] -= times * b[i];
    }
  }
  Vector x{};
  for (size_t i = kCount; i-- > 0;) {
    double rest = b[i];
    for (size_t col = i + 1; col < kCount; ++col) rest -= a[i][col] * x[col];
    x[i] = rest / a[i][i];
  }
  return x;
}

std::vector<double> Checked(std::vector<double> errors) {
  for (const double error : errors) {
    if (!std::isfinite(error)) throw Error("a run to calibrate on has no time to compare");
  }
  return errors;
}

}  // namespace

Efficiency FitEfficiency(const Efficiency& start, const LogErrors& errors) {
  constexpr int kRounds = 8;
  constexpr double kStep = 0.02;     // of a logarithm, for slopes: times are rounded to nanoseconds
  constexpr double kMostMove = 0.5;  // of a logarithm in one round
  Vector logs{};
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> here = Checked(errors(Moved(start, logs)));
    std::array<std::vector<double>, kCount> slopes;
    for (size_t f = 0; f < kCount; ++f) {
      Vector beside = logs;
      beside[f] += kStep;
      slopes[f] = Checked(errors(Moved(start, beside)));
      for (size_t i = 0; i < here.size(); ++i) slopes[f][i] = (slopes[f][i] - here[i]) / kStep;
    }
    std::array<Vector, kCount> curvature{};
    Vector downhill{};
    for (size_t f = 0; f < kCount; ++f) {
      const double weight = 1 / (kFactors[f].deviation * kFactors[f].deviation);
      curvature[f][f] += weight;
      downhill[f] -= weight * logs[f];
      for (size_t i = 0; i < here.size(); ++i) {
        downhill[f] -= slopes[f][i] * here[i] / (kOfRun * kOfRun);
        for (size_t g = 0; g < kCount; ++g) {
          curvature[f][g] += slopes[f][i] * slopes[g][i] / (kOfRun * kOfRun);
        }
      }
    }
    const Vector move = Solved(curvature, downhill);
    for (size_t f = 0; f < kCount; ++f) logs[f] += std::clamp(move[f], -kMostMove, kMostMove);
  }
  return Moved(start, logs);
}

}  // namespace pipelag
