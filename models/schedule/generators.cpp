#include "models/schedule/generators.h"

#include <fmt/format.h>

#include <vector>

#include "models/names.h"
#include "models/schedule/pipelines.h"

// The table of schedules: name, X of its GenerateX and FactsOfX, the options it honours, one line
// for `list`. It is used twice, so that a new schedule is one line here.
// clang-format off
#define PIPELAG_SCHEDULES(ENTRY)                                                                  \
  ENTRY("gpipe", Gpipe, kSizes, "all forwards, then all backwards, flush")                        \
  ENTRY("1f1b", 1F1B, kWarmUp, "one forward, one backward, flush")                                \
  ENTRY("eager-1f1b", Eager1F1B, kWarmUp, "1f1b with twice the warm-up, hides latency")           \
  ENTRY("interleaved-1f1b", Interleaved1F1B, kInterleaved, "1f1b over chunks of a rank")          \
  ENTRY("looped-bfs", LoopedBfs, kChunks, "gpipe over chunks of a rank")                          \
  ENTRY("zb-h1", ZbH1, kSizes, "1f1b, backwards split, a third of its bubble")                    \
  ENTRY("zb-h2", ZbH2, kSizes, "zb-h1 with twice the activations, no bubble")                     \
  ENTRY("zb-v", ZbV, kSizes, "two chunks in a V, backwards split")                                \
  ENTRY("zb-auto", ZbAuto, kAutomatic, "backwards split, greedy for given times, memory")         \
  ENTRY("dualpipe", DualPipe, kSizes, "both directions at once, two copies")                      \
  ENTRY("dualpipe-v", DualPipeV, kSizes, "dualpipe folded into a V, one copy")                    \
  ENTRY("pipedream", PipeDream, kPipeDream, "no flush, weights stashed, delay falls")             \
  ENTRY("paci", Paci, kEndless, "no flush, no stash: reads the newest weights")                   \
  ENTRY("2bw", 2BW, k2BW, "no flush, two weight versions, delay 1")
// clang-format on

namespace pipelag {

#define DECLARE_GENERATOR(name, X, uses, summary) \
  Schedule Generate##X(const GeneratorOptions&);  \
  std::vector<Fact> FactsOf##X(const GeneratorOptions&);
PIPELAG_SCHEDULES(DECLARE_GENERATOR)
#undef DECLARE_GENERATOR

namespace {

#define GENERATOR_ROW(name, X, uses, summary) \
  {name, summary, Generate##X, FactsOf##X, Generator::uses},
constexpr Generator kGenerators[] = {PIPELAG_SCHEDULES(GENERATOR_ROW)};
#undef GENERATOR_ROW

/// Keeps micro-batch numbers within 32 bits and a slip of the pen from filling the memory.
constexpr int64_t kMostForwards = int64_t{1} << 28;

void CheckOptions(const Generator& generator, const GeneratorOptions& options) {
  const auto positive = [](const char* flag, int value) {
    if (value < 1) throw Error(fmt::format("{} must be at least 1, not {}", flag, value));
  };
  positive("--ranks", options.ranks);
  positive("--microbatches", options.microbatches);
  if (options.chunks != 0) positive("--chunks", options.chunks);
  if (options.group != GeneratorOptions::kFlexibleGroup && options.group != 0) {
    positive("--group", options.group);
  }
  if (options.warmup_slope * static_cast<int64_t>(options.ranks) > kMostForwards) {
    throw Error(fmt::format("--warmup-slope {} is too steep for --ranks {}", options.warmup_slope,
                            options.ranks));
  }
  CheckWarmUp(options);
  static constexpr int64_t kMostStages = 65535;
  if (int64_t{options.ranks} * std::max(1, options.chunks) > kMostStages) {
    throw Error(
        fmt::format("--ranks {} with {} stages each is more than the {} that a schedule can "
                    "hold",
                    options.ranks, std::max(1, options.chunks), kMostStages));
  }
  const int64_t chunks = std::max(1, options.chunks);
  if (options.ranks * chunks * options.microbatches > kMostForwards) {
    throw Error(
        fmt::format("--ranks {} times --microbatches {} is more than the {} forwards of a "
                    "step that a schedule can hold",
                    options.ranks, options.microbatches, kMostForwards));
  }
  const auto refuse = [&](bool given, unsigned use, const char* flag) {
    if (given && (generator.uses & use) == 0) {
      throw Error(fmt::format("{} takes no {}", generator.name, flag));
    }
  };
  // One stage per rank is what a schedule without chunks has.
  refuse(options.chunks > 1, Generator::kChunks, "--chunks");
  refuse(options.warmup_slope > 1, Generator::kWarmUp, "--warmup-slope");
  refuse(!options.warmup.empty(), Generator::kWarmUp, "--warmup");
  refuse(options.group != 0, Generator::kGroup, "--group");
  refuse(!options.body.empty(), Generator::kBody, "--body");
  refuse(options.vertical_sync, Generator::kVerticalSync, "vertical sync");
  refuse(options.late_update.has_value(), Generator::kLateUpdate, "late update");
  refuse(options.memory_limit != 0, Generator::kCosts, "memory limit");
}

}  // namespace

std::span<const Generator> Generators() { return kGenerators; }

Schedule Generate(std::string_view name, const GeneratorOptions& options) {
  std::vector<std::string_view> names;
  for (const Generator& generator : kGenerators) {
    if (generator.name == name) {
      CheckOptions(generator, options);
      return generator.generate(options);
    }
    names.push_back(generator.name);
  }
  throw Error(
      fmt::format("'{}' is not a known schedule; the nearest is '{}'", name, Nearest(name, names)));
}

}  // namespace pipelag
