// Figures to look at: what tracing costs at most. A rank that walks its lane over a device whose
// actions take no time spends all of its processor time on what is no computation: slots, versions,
// events, reports of losses and, as the last of it, the trace, which is always on. Held against the
// mean action of a real run, by processor time, which other work on the machine hardly changes.
// usage: tracing_bench [STEPS]
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "models/schedule/generators.h"
#include "models/schedule/slots.h"
#include "runtime/cpu/threads.h"
#include "runtime/data/grammar.h"
#include "runtime/executor.h"
#include "runtime/past_event.h"

namespace pipelag {
namespace {

double CpuMicroseconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

/// Of one rank alone, which has no messages.
class Nothing : public Compute, public Transport {
 public:
  explicit Nothing(const RunControl& control) : control_(control) {}
  std::byte* MessageBuffer(int, int) override { return nullptr; }
  std::span<float> GradientBuffer(int, int) override { return {}; }
  std::span<float> SharedGradient(int, int) override { return {}; }
  EventPtr Start(const ComputeTask&, std::span<const EventPtr>) override { return Past(); }
  EventPtr Post(const Transfer&, std::span<const EventPtr>) override { return Past(); }
  EventPtr PostGradientSum(int, const std::vector<GradientPart>&,
                           std::span<const EventPtr>) override {
    return Past();
  }
  EventPtr PostAllReduce(int, std::span<double>, std::span<const EventPtr>) override {
    return Past();
  }

 private:
  EventPtr Past() const {
    const Nanoseconds start = control_.Now();
    return std::make_shared<PastEvent>(Interval{start, control_.Now()});
  }

  const RunControl& control_;
};

constexpr int kMicrobatches = 8;
constexpr int kActions = 2 * kMicrobatches + 1;  // of a step

/// Processor time an action without anything to compute.
double OfWalking(int64_t steps) {
  const Program program(Generate("1f1b", {.ranks = 1, .microbatches = kMicrobatches}), steps);
  RunControl control(std::chrono::hours(1));
  const std::vector<RankPlan> plans = {PlanRank(program, 0, NeverDelayingSlots(program))};
  std::vector<double> losses(static_cast<size_t>(program.total_microbatches()));
  std::vector<WorkerResult> results;
  Nothing nothing(control);
  const double before = CpuMicroseconds();
  RunOnThreads(program, plans, {}, {{&nothing, &nothing}}, control, losses, results);
  return (CpuMicroseconds() - before) / static_cast<double>(steps * kActions);
}

/// With a network of `layers` layers of `hidden` channels.
double OfTraining(int layers, int hidden, int sequence, int64_t steps) {
  const Program program(Generate("1f1b", {.ranks = 1, .microbatches = kMicrobatches}), steps);
  TrainingOptions options;
  options.shape = {.layers = layers, .hidden = hidden, .heads = 4, .sequence = sequence};
  options.split = SplitLayers(layers, 1);
  options.microbatch_size = 1;
  options.validation_microbatches = 1;
  const Corpus corpus = GrammarCorpus(1, sequence);
  const double before = CpuMicroseconds();
  TrainOnThreads(program, options, corpus);
  return (CpuMicroseconds() - before) / static_cast<double>(steps * kActions);
}

void Show(int64_t steps) {
  const double walking = OfWalking(2000 * steps);
  fmt::print("an action that computes nothing: {:.2f} us of processor time\n\n", walking);
  fmt::print("{:>8} {:>9} {:>9} {:>12} {:>10}\n", "layers", "channels", "sequence", "an action",
             "at most");
  for (const auto& [layers, hidden, sequence] :
       {std::array{4, 256, 128}, {4, 128, 64}, {2, 32, 32}}) {
    const double training = OfTraining(layers, hidden, sequence, steps);
    fmt::print("{:>8} {:>9} {:>9} {:>9.0f} us {:>8.3f} %\n", layers, hidden, sequence, training,
               100 * walking / training);
  }
}

}  // namespace
}  // namespace pipelag

int main(int argc, char** argv) {
  pipelag::Show(argc > 1 ? std::max(1, std::atoi(argv[1])) : 10);
  return 0;
}
