#include "runtime/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "models/file.h"
#include "runtime/checkpoint/facts.h"
#include "runtime/serial.h"
#include "runtime/sha256.h"
#include "traces/study_files.h"

namespace pipelag {
namespace {

constexpr const char* kNone = "none";
constexpr const char* kBasisRotation = "basis-rotation";

/// The decimal number that a float was read from.
double Shown(float value) { return std::stod(fmt::format("{}", value)); }

nlohmann::ordered_json DataIdentity(const Corpus& corpus) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<std::byte> block;
  Sha256Sum digest;
  int64_t bytes = 0;
  for (const TokenSequence* part : {&corpus.train, &corpus.validation}) {
    for (const TokenPiece& piece : part->pieces()) {
      const int64_t size = piece.count * piece.width;
      for (int64_t at = 0; at < size; at += kBlock) {
        block.resize(static_cast<size_t>(std::min(kBlock, size - at)));
        piece.read(piece.offset + at, block);
        digest.Add(block.data(), block.size());
      }
      bytes += size;
    }
  }
  return {{"bytes", bytes}, {"sha256", digest.Finish()}};
}

/// The study's options for one profile: as many sequences a step, whatever its micro-batches.
TrainingOptions OptionsFor(const Study& study, const DelayProfile& profile) {
  TrainingOptions options = study.common;
  options.traced_steps = 1;  // nobody looks at it
  const auto stages = static_cast<int>(profile.plan.stages.size());
  if (options.split.size() != profile.plan.stages.size()) {
    options.split = SplitLayers(options.shape.layers, stages);
  }
  const int microbatches = profile.plan.microbatches;
  const int64_t sequences = int64_t{options.microbatch_size} * study.microbatches;
  const int64_t validation = options.microbatch_size * options.validation_microbatches;
  const int64_t size = sequences / microbatches;
  if (sequences % microbatches != 0 || validation % size != 0) {
    throw Error(
        fmt::format("delay profile '{}': its {} micro-batches do not divide the {} "
                    "sequences of a step, or theirs do not divide the {} of validation",
                    profile.name, microbatches, sequences, validation));
  }
  options.microbatch_size = static_cast<int>(size);
  options.validation_microbatches = validation / size;
  return options;
}

std::string ParametersOf(const StudyRun& run, const nlohmann::ordered_json& data) {
  const TrainingOptions& options = run.options;
  const SerialPlan& plan = run.profile->plan;
  nlohmann::ordered_json json = {{"optimizer", run.mode.optimizer},
                                 {"profile", run.mode.profile},
                                 {"correction", run.mode.correction},
                                 {"learning_rate", run.learning_rate},
                                 {"seed", run.seed},
                                 {"steps", plan.steps},
                                 {"tokens_per_step", TokensPerStep(options, plan.microbatches)},
                                 {"microbatches", plan.microbatches},
                                 {"warmup_steps", options.learning_rate.warmup_updates},
                                 {"synchronous_steps", plan.synchronous_steps}};
  json["network"] = NetworkFacts(options.shape);
  json["data"] = data;
  json["validation_sequences"] = options.validation_microbatches * options.microbatch_size;
  if (options.split.size() > 1) {
    for (const LayerRange& range : options.split) json["split"].push_back(range.last - range.first);
  }
  if (options.clip_norm) json["clip_norm"] = *options.clip_norm;
  if (options.precision == ProductPrecision::kBf16) json["precision"] = "bf16";
  const auto add = [&](const char* key, std::optional<float> value) {
    if (value) json[key] = Shown(*value);
  };
  add("momentum", options.optimizer.momentum);
  add("weight_decay", options.optimizer.weight_decay);
  add("muon_aux_learning_rate", options.optimizer.muon_aux_learning_rate);
  if (run.mode.correction != kNone) add("correction_strength", options.correction.strength);
  return json.dump();
}

std::string FileNameOf(const StudyRun& run) {
  std::string profile = run.mode.profile;
  std::replace(profile.begin(), profile.end(), ':', '-');
  return fmt::format("{}_{}_{}_{}_{}_{}.json", run.mode.optimizer, profile, run.mode.correction,
                     run.learning_rate, run.seed, Sha256(run.parameters).substr(0, 12));
}

LossCurve Train(const StudyRun& run, const Corpus& corpus) {
  const TrainingResult result = TrainSerially(run.profile->plan, run.options, corpus);
  LossCurve curve{run.mode,           run.learning_rate,
                  run.seed,           TokensPerStep(run.options, run.profile->plan.microbatches),
                  result.step_losses, result.diverged.has_value(),
                  std::nullopt};
  if (!curve.diverged) curve.validation_loss = result.validation_loss;
  return curve;
}

}  // namespace

std::vector<StudyRun> RunsOf(const Study& study, const Corpus& corpus) {
  const nlohmann::ordered_json data = DataIdentity(corpus);
  std::vector<StudyRun> runs;
  std::set<std::string> known;
  const auto add = [&](StudyRun run) {
    run.options.seed = run.seed;
    run.options.optimizer.name = run.mode.optimizer;
    run.options.optimizer.learning_rate = static_cast<float>(run.learning_rate);
    run.options.learning_rate.peak = run.options.optimizer.learning_rate;
    run.options.correction.name = run.mode.correction;
    try {
      CheckPlan(run.profile->plan, run.options);
    } catch (const Error& error) {
      throw Error(fmt::format("delay profile '{}': {}", run.mode.profile, error.what()));
    }
    run.parameters = ParametersOf(run, data);
    run.file_name = FileNameOf(run);
    if (!known.insert(run.parameters).second) {
      throw Error(fmt::format(
          "the grid names one run twice: {} with delay {}, {}, learning rate "
          "{}, seed {}",
          run.mode.optimizer, run.mode.profile, run.mode.correction, run.learning_rate, run.seed));
    }
    runs.push_back(std::move(run));
  };
  for (const std::string& optimizer : study.optimizers) {
    for (const DelayProfile& profile : study.profiles) {
      const TrainingOptions options = OptionsFor(study, profile);
      for (const std::string& correction : study.corrections) {
        if (correction == kBasisRotation && optimizer != "adamw") {
          throw Error(
              fmt::format("{} (--correction) stands in place of adamw and does not go with {}",
                          correction, optimizer));
        }
        OptimizerOptions named = options.optimizer;
        named.name = optimizer;
        MakeCorrected(named, {.name = correction},
                      StageLayout(options.shape, options.split.front()), StageDelay{});
        if (profile.synchronous() && correction != kNone && correction != kBasisRotation) continue;
        for (const double rate : study.learning_rates) {
          for (const uint64_t seed : study.seeds) {
            add({{optimizer, profile.name, correction}, rate, seed, &profile, options, {}, {}});
          }
        }
      }
    }
  }
  return runs;
}

std::vector<LossCurve> RunStudy(const std::vector<StudyRun>& runs, const Corpus& corpus,
                                const std::filesystem::path& folder, int jobs,
                                const std::function<void(size_t, size_t)>& on_progress) {
  std::vector<LossCurve> curves(runs.size());
  std::vector<size_t> open;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::filesystem::path file = folder / runs[i].file_name;
    if (std::filesystem::exists(file)) {
      curves[i] = ReadRunFile(file, runs[i].parameters);
    } else {
      open.push_back(i);
    }
  }
  const size_t found = runs.size() - open.size();
  on_progress(found, found);
  std::atomic<size_t> next = 0;
  std::mutex mutex;  // of done, failure and whatever on_progress does
  size_t done = found;
  std::exception_ptr failure;
  const auto work = [&] {
    for (;;) {
      const size_t k = next++;
      if (k >= open.size()) return;
      const size_t i = open[k];
      try {
        curves[i] = Train(runs[i], corpus);
        WriteFile(folder / runs[i].file_name, RunFileText(runs[i].parameters, curves[i]));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = open.size();
        return;
      }
      const std::lock_guard lock(mutex);
      on_progress(++done, found);
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t count = std::min(open.size(), static_cast<size_t>(jobs));
    for (size_t i = 0; i < count; ++i) threads.emplace_back(work);
  }
  if (failure) std::rethrow_exception(failure);
  return curves;
}

}  // namespace pipelag
