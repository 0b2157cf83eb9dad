#include "tools/measured_case.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/held_memory.h"
#include "sim/simulator.h"
#include "tools/conditions.h"
#include "tools/flags.h"
#include "tools/memory_flags.h"
#include "tools/partition_flags.h"

namespace pipelag {
namespace {

/// What a row's error names.
template <class Work>
auto Naming(const CaseRow& row, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (text.starts_with(row.place + "/")) throw;
    throw Error(fmt::format("{} ({}): {}", row.place, row.name, text));
  }
}

/// Flags of `simulate` that say nothing of a run that was measured once, or how a result is shown.
std::vector<std::string> UselessKeys() {
  std::vector<std::string> keys = {
      "receive-slots", "profile", "layer-times", "device-compute", "device-bandwidth",
      "correction",    "trace",   "tokens",      "critical-path",  "format"};
  for (const Flag& flag : ConditionFlags()) keys.push_back(flag.name);
  return keys;
}

void CheckJob(const Arguments& job) {
  for (const std::string& key : UselessKeys()) {
    if (!job.Has(key)) continue;
    throw Error(fmt::format("{}: 'validate' has no use for it", job.PlaceOf(key)));
  }
  if (job.Has("machine")) {
    for (const char* flag : {"hidden", "heads", "key-value-heads", "ffn", "vocabulary"}) {
      if (!job.Has("model") || !job.Has(flag)) continue;
      throw Error(fmt::format("{}: the job's 'model' says what the network is", job.PlaceOf(flag)));
    }
    return;
  }
  if (job.Has("costs") || job.Has("forward")) return;
  throw Error("the job says neither a 'machine' nor times ('forward' …, 'costs')");
}

Program ProgramOf(const CaseRow& row) {
  return Naming(row, [&] {
    CheckJob(row.job);
    const std::vector<NamedSchedule> schedules = SchedulesOf(row.job);
    if (schedules.size() != 1) {
      throw Error(fmt::format("{}: a row has one schedule", row.job.PlaceOf("schedule")));
    }
    return Lower(schedules[0], row.job);
  });
}

double LongestOf(const std::vector<Nanoseconds>& times) {
  if (times.empty()) return 0;
  return static_cast<double>(std::max_element(times.begin(), times.end())->count()) * 1e-9;
}

}  // namespace

MeasuredCase::MeasuredCase(const CaseRow& row) : row_(row), program_(ProgramOf(row)) {
  Naming(row_, [&] {
    run_ = ModelledRunOf(row.job);
    if (const auto stages = ModelledStagesOf(row.job, program_)) {
      run_->layout.split = stages->counts;
    }
  });
}

PredictedRun MeasuredCase::Predict(const Efficiency& efficiency) const {
  return Naming(row_, [&] { return PredictedBy(efficiency); });
}

MeasuredCase::Memory MeasuredCase::MemoryBy(const Efficiency& efficiency) const {
  return Naming(row_, [&]() -> Memory {
    const Schedule& schedule = program_.schedule();
    MemorySizes modelled;
    if (run_) {
      modelled = EstimateRun(run_->model, run_->machine, Layout(), efficiency).memory;
    }
    const auto sizes = MemorySizesOf(row_.job, schedule.stages, run_ ? &modelled : nullptr);
    if (!sizes) return {};
    const std::vector<Bytes> peaks = HeldMemory(program_).PeaksOf(program_, *sizes);
    return {*std::max_element(peaks.begin(), peaks.end()), sizes->device};
  });
}

RunLayout MeasuredCase::Layout() const {
  const Schedule& schedule = program_.schedule();
  return LaidOver(*run_, schedule.ranks, schedule.stages, schedule.microbatches);
}

PredictedRun MeasuredCase::PredictedBy(const Efficiency& efficiency) const {
  const Schedule& schedule = program_.schedule();
  Estimate estimate;
  RunLayout layout;
  if (run_) {
    layout = Layout();
    estimate = EstimateRun(run_->model, run_->machine, layout, efficiency);
    AddReductionsToUpdates(schedule, estimate);
  }
  const Costs costs = CostsOf(row_.job, schedule.stages, run_ ? &estimate.costs : nullptr);
  std::vector<Nanoseconds> reduction = ReductionOf(row_.job);
  if (reduction.empty()) reduction = ReductionsOf(schedule, estimate);
  ActionTimes times(program_, costs, reduction);
  TimeTied(row_.job, program_, run_ ? &*run_ : nullptr, run_ ? &estimate : nullptr, times);
  const Simulation simulation = Simulate(program_, times, {.most_actions_for_critical_cycle = 0});
  PredictedRun predicted;
  predicted.step_time_s =
      static_cast<double>(simulation.metrics.step_time.RoundedUp().count()) * 1e-9;
  predicted.forward_s = LongestOf(costs.forward);
  predicted.backward_s = LongestOf(costs.backward);
  if (!run_) return predicted;
  const Throughput throughput =
      ThroughputOf(simulation.metrics.step_time, estimate, layout, run_->machine);
  predicted.tokens_per_s_per_gpu = throughput.tokens_per_s_per_gpu;
  predicted.tflops_per_gpu = throughput.tflops_per_gpu;
  return predicted;
}

}  // namespace pipelag
