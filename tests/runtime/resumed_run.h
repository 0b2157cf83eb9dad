// Ways of running a small network up to a step and on from there, for tests of checkpoints. Knows
// threads and the serial reference alike.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/schedule/generators.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/facts.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/cpu/threads.h"
#include "runtime/serial.h"
#include "tests/runtime/small_run.h"

namespace pipelag {

/// A way of running: ranks over threads, or the serial reference.
struct Way {
  std::optional<Program> program;  ///< with any number of steps; none: by hand
  SerialPlan plan;
  bool serial = false;
  /// How the program is run; empty: on threads.
  std::function<TrainingResult(const Program&, const TrainingOptions&)> run = {};
};

inline Way Threads(const std::string& schedule, const GeneratorOptions& options) {
  Program program(Generate(schedule, options), kSteps);
  SerialPlan plan = PlanOf(program);
  return {std::move(program), std::move(plan), false};
}

inline Way Threads(const std::string& schedule, int ranks, int m = kMicrobatches) {
  return Threads(schedule, {.ranks = ranks, .microbatches = m});
}

inline Way Serially(Way way) {
  way.serial = true;
  return way;
}

inline Way ByHand(const std::vector<int>& delays, int stages, int m = kMicrobatches) {
  return {std::nullopt, PlanOfDelays(delays, stages, m, kSteps), true};
}

inline TrainingResult Train(const Way& way, const TrainingOptions& options, int64_t steps) {
  if (way.serial) {
    SerialPlan plan = way.plan;
    plan.steps = steps;
    return TrainSerially(plan, options, TestCorpus());
  }
  const Program program = way.program->WithSteps(steps);
  return way.run ? way.run(program, options) : TrainOnThreads(program, options, TestCorpus());
}

inline std::vector<int> DelaysOf(const SerialPlan& plan) {
  std::vector<int> delays;
  for (const SerialStage& stage : plan.stages) {
    delays.push_back(*std::max_element(stage.forward_delay.begin(), stage.forward_delay.end()));
  }
  return delays;
}

/// From `start` (a folder, or none) to step `last`, with checkpoints in `folder`.
inline TrainingResult TrainFrom(const Way& way, TrainingOptions options,
                                const std::filesystem::path& start,
                                const CheckpointSettings& settings, int64_t last) {
  const std::string facts = RunFacts(options, way.plan, TestCorpus()).dump();
  const std::string summation = SummationOf(options, way.plan).dump();
  if (!start.empty()) {
    const auto checkpoint = std::make_shared<const Checkpoint>(start);
    checkpoint->CheckFacts(facts, way.plan.replicas);
    options.start = checkpoint;
  }
  std::optional<CheckpointWriter> writer;
  if (!settings.folder.empty()) {
    writer.emplace(settings, CheckpointFacts{facts, summation, 12, way.plan.name, 1, 1},
                   DelaysOf(way.plan), options.first_step(), last);
    options.checkpoints = &*writer;
  }
  return Train(way, options, last - options.first_step());
}

inline TrainingOptions For(const Way& way, const std::string& optimizer,
                           const std::string& correction) {
  return Options(optimizer, correction, static_cast<int>(way.plan.stages.size()));
}

}  // namespace pipelag
