// Figures to look at: how much of a core stages take that only take their time, and how late a run
// of them is. 16 ranks with stages of 10 ms and 16 micro-batches, the schedules in turn; medians.
// usage: emulated_bench [ROUNDS]
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "models/schedule/generators.h"
#include "runtime/emulated/emulate.h"
#include "sim/simulator.h"

namespace pipelag {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr int kRanks = 16;
constexpr int kMicrobatches = 16;
constexpr Nanoseconds kForward = std::chrono::milliseconds(10);

double ProcessorSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Case {
  Program program;
  Costs costs;
  Nanoseconds simulated{0};
  std::vector<double> late;  // of the simulated makespan
  std::vector<double> core;
};

Case CaseOf(const char* schedule, int steps) {
  Case result{Program(Generate(schedule, {.ranks = kRanks, .microbatches = kMicrobatches}), steps),
              {},
              {},
              {},
              {}};
  const auto stages = static_cast<size_t>(result.program.schedule().stages);
  Costs& costs = result.costs;
  costs.forward.assign(stages, kForward);
  costs.backward.assign(stages, 2 * kForward);
  costs.backward_input.assign(stages, kForward);
  costs.backward_weight.assign(stages, kForward);
  costs.update.assign(stages, Nanoseconds{0});
  result.simulated = Simulate(result.program, ActionTimes(result.program, costs)).metrics.makespan;
  return result;
}

void Run(Case& one) {
  const double before = ProcessorSeconds();
  const auto began = std::chrono::steady_clock::now();
  const Trace trace = Emulate(one.program, one.costs, Nanoseconds{0}, std::chrono::minutes(1));
  const double used = ProcessorSeconds() - before;
  one.core.push_back(used / Seconds(std::chrono::steady_clock::now() - began).count());
  one.late.push_back(Seconds(ComputeMetrics(trace).makespan) / Seconds(one.simulated) - 1);
}

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  std::vector<Case> cases;
  for (const auto& [schedule, steps] : {std::pair("1f1b", 1), std::pair("2bw", 4),
                                        std::pair("zb-h1", 1), std::pair("interleaved-1f1b", 1)}) {
    cases.push_back(CaseOf(schedule, steps));
  }
  for (int round = 0; round < rounds; ++round) {
    for (Case& one : cases) Run(one);
  }
  for (const Case& one : cases) {
    fmt::print("{:<17} {:5.2f} % late  {:5.2f} % of a core\n", one.program.schedule().name,
               100 * Median(one.late), 100 * Median(one.core));
  }
  return 0;
}

}  // namespace
}  // namespace pipelag

int main(int argc, char** argv) { return pipelag::Main(argc, argv); }
