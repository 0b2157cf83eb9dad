#include "models/schedule/generators.h"

#include <fmt/format.h>

#include <vector>

#include "models/names.h"

namespace pipelag {
namespace {

constexpr Generator kGenerators[] = {
    {"gpipe", "all forwards, then all backwards, flush", GenerateGpipe},
    {"1f1b", "one forward, one backward, flush (PipeDream-Flush, DAPPLE)", Generate1F1B},
    {"pipedream", "asynchronous 1F1B, weights stashed per batch, delay falls along the stages",
     GeneratePipeDream},
    {"2bw", "asynchronous 1F1B, two weight versions, delay 1 on every stage (PipeDream-2BW)",
     Generate2BW},
};

/// Keeps micro-batch numbers within 32 bits and a slip of the pen from filling the memory.
constexpr int64_t kMostForwards = int64_t{1} << 28;

void CheckOptions(const GeneratorOptions& options) {
  const auto positive = [](const char* flag, int value) {
    if (value < 1) throw Error(fmt::format("{} must be at least 1, not {}", flag, value));
  };
  positive("--ranks", options.ranks);
  positive("--microbatches", options.microbatches);
  positive("--warmup-slope", options.warmup_slope);
  if (options.ranks > 65535) {
    throw Error(
        fmt::format("--ranks {} is more than the 65535 that a schedule can hold", options.ranks));
  }
  const int64_t microbatches = options.microbatches;
  if (options.ranks * microbatches > kMostForwards) {
    throw Error(
        fmt::format("--ranks {} times --microbatches {} is more than the {} forwards of a "
                    "step that a schedule can hold",
                    options.ranks, microbatches, kMostForwards));
  }
  if (options.warmup_slope * static_cast<int64_t>(options.ranks) > kMostForwards) {
    throw Error(fmt::format("--warmup-slope {} is too steep for --ranks {}", options.warmup_slope,
                            options.ranks));
  }
}

}  // namespace

std::span<const Generator> Generators() { return kGenerators; }

Schedule Generate(std::string_view name, const GeneratorOptions& options) {
  std::vector<std::string_view> names;
  for (const Generator& generator : kGenerators) {
    if (generator.name == name) {
      CheckOptions(options);
      return generator.generate(options);
    }
    names.push_back(generator.name);
  }
  throw Error(
      fmt::format("'{}' is not a known schedule; the nearest is '{}'", name, Nearest(name, names)));
}

}  // namespace pipelag
