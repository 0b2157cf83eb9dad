// Speed of the core in one process: generate, lower, simulate. "Cold" rows run once, first, on
// memory that nobody has touched yet. Measured on one core of 2.3 GHz, quiet machine, five runs:
// p = 64, m = 512 cold 2.6 to 2.7 ms (one reading 4.2), warm 2.4 to 2.7 ms (one 3.2): 6.3 times the
// least that any in-order relaxation must do, 0.35 of a plain heap of events; p = 1024, m = 4096
// 0.56 s, 85 MB. Of SimGrid on the same schedule: see tests/sim/simgrid.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <ctime>

#include "models/schedule/generators.h"
#include "sim/simulator.h"
#include "tests/bench/baselines.h"

namespace pipelag {
namespace {

Costs UniformCosts(int stages) {
  Costs costs;
  const auto n = static_cast<size_t>(stages);
  costs.forward.assign(n, Nanoseconds{1'000'000});
  costs.backward.assign(n, Nanoseconds{2'000'000});
  costs.update.assign(n, Nanoseconds{0});
  costs.p2p_latency = Nanoseconds{8'000};
  return costs;
}

GeneratorOptions SizesOf(const benchmark::State& state) {
  return {.ranks = static_cast<int>(state.range(0)),
          .microbatches = static_cast<int>(state.range(1))};
}

void CountActions(benchmark::State& state) {
  state.counters["actions"] = static_cast<double>(2 * state.range(0) * state.range(1));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_MB"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

/// The exact step time, but not the name of what limits it.
constexpr SimulationOptions kNoCriticalCycle{.most_actions_for_critical_cycle = 0};

/// Everything for the figures of a run: the exact step time of its steady state is one of them.
void Whole(benchmark::State& state) {
  for (auto _ : state) {
    const Program program(Generate("1f1b", SizesOf(state)), 1);
    const ActionTimes times(program, UniformCosts(program.schedule().stages));
    benchmark::DoNotOptimize(Simulate(program, times, kNoCriticalCycle).metrics.makespan);
  }
  CountActions(state);
}

/// Everything against the least that any simulator must do and against a plain heap of events, in
/// one run, by the processor's time.
void Ratios(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const int microbatches = static_cast<int>(state.range(1));
  Baseline1F1B baseline(ranks, microbatches, 1'000'000, 2'000'000, 8'000);
  std::clock_t whole = 0;
  std::clock_t in_order = 0;
  std::clock_t by_events = 0;
  const auto timed = [](std::clock_t& sum, const auto& what) {
    const std::clock_t start = std::clock();
    const int64_t makespan = what();
    sum += std::clock() - start;
    return makespan;
  };
  for (auto _ : state) {
    const int64_t makespan = timed(whole, [&] {
      const Program program(Generate("1f1b", SizesOf(state)), 1);
      const ActionTimes times(program, UniformCosts(program.schedule().stages));
      return Simulate(program, times, kNoCriticalCycle).metrics.makespan.count();
    });
    CHECK(makespan == timed(in_order, [&] { return baseline.InOrder(); }));
    CHECK(makespan == timed(by_events, [&] { return baseline.ByEvents(); }));
  }
  state.counters["of_in_order"] = static_cast<double>(whole) / static_cast<double>(in_order);
  state.counters["of_heap"] = static_cast<double>(whole) / static_cast<double>(by_events);
}

void GenerateOnly(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Generate("1f1b", SizesOf(state)).body.data());
}

void LowerOnly(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    Schedule schedule = Generate("1f1b", SizesOf(state));
    state.ResumeTiming();
    benchmark::DoNotOptimize(Program(std::move(schedule), 1).window());
  }
}

void SimulateOnly(benchmark::State& state) {
  const Program program(Generate("1f1b", SizesOf(state)), 1);
  const ActionTimes times(program, UniformCosts(program.schedule().stages));
  for (auto _ : state) {
    benchmark::DoNotOptimize(Simulate(program, times, kNoCriticalCycle).metrics.makespan);
  }
}

void StepTimeOnly(benchmark::State& state) {
  const Program program(Generate("1f1b", SizesOf(state)), 1);
  const ActionTimes times(program, UniformCosts(program.schedule().stages));
  for (auto _ : state) benchmark::DoNotOptimize(ExactStepTime(program, times).numerator);
}

void SteadyStateOnly(benchmark::State& state) {
  const Program program(Generate(state.range(2) == 0 ? "1f1b" : "2bw", SizesOf(state)), 1);
  const ActionTimes times(program, UniformCosts(program.schedule().stages));
  for (auto _ : state) {
    benchmark::DoNotOptimize(ExactSteadyState(program, times).step_time.numerator);
  }
}

BENCHMARK(Whole)->Name("Cold")->Args({64, 512})->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(Whole)->Name("Warm")->Args({64, 512})->Unit(benchmark::kMillisecond);
BENCHMARK(Ratios)->Args({64, 512})->Unit(benchmark::kMillisecond);
BENCHMARK(GenerateOnly)->Args({64, 512})->Unit(benchmark::kMillisecond);
BENCHMARK(LowerOnly)->Args({64, 512})->Unit(benchmark::kMillisecond);
BENCHMARK(SimulateOnly)->Args({64, 512})->Unit(benchmark::kMillisecond);
BENCHMARK(StepTimeOnly)->Args({64, 512})->Unit(benchmark::kMillisecond);
BENCHMARK(SteadyStateOnly)->Args({64, 512, 0})->Args({64, 512, 1})->Unit(benchmark::kMillisecond);
BENCHMARK(Whole)
    ->Name("Growth")
    ->Args({64, 512})
    ->Args({256, 1024})
    ->Args({512, 2048})
    ->Args({1024, 4096})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pipelag

BENCHMARK_MAIN();
