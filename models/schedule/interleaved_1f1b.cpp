// Interleaved 1F1B (Narayanan et al., SC 2021; Megatron-LM's order). Micro-batches pass in groups
// of N; of a group all N go through chunk 0, then all through chunk 1, and so on, backwards with
// the chunks reversed. A rank runs 2(p − 1 − r) + (v − 1)N forwards ahead, then forward and
// backward in turn. PyTorch's ScheduleInterleaved1F1B has the same order with N = m / max(1, m div
// p).
#include <fmt/format.h>

#include <algorithm>

#include "models/schedule/endless.h"

namespace pipelag {
namespace {

int GroupSize(const GeneratorOptions& options) {
  const int m = options.microbatches;
  const int p = options.ranks;
  if (options.group == GeneratorOptions::kFlexibleGroup) {
    const int rounds = std::max(1, m / p);
    if (m % rounds != 0) {
      throw Error(
          fmt::format("--group flexible makes {} rounds of {} micro-batches on {} ranks, "
                      "but they do not share evenly",
                      rounds, m, p));
    }
    return m / rounds;
  }
  return options.group > 0 ? options.group : p;
}

}  // namespace

EndlessOrder EndlessInterleaved(const GeneratorOptions& options) {
  const int v = options.chunks > 0 ? options.chunks : 2;
  const int p = options.ranks;
  const int n = GroupSize(options);
  if (n < p) {
    throw Error(
        fmt::format("interleaved-1f1b needs groups of at least {} micro-batches, one for "
                    "each rank, not {} (--group): a rank would wait for a chunk that has not begun",
                    p, n));
  }
  if (options.microbatches % n != 0) {
    throw Error(
        fmt::format("interleaved-1f1b needs whole groups: {} micro-batches are no multiple "
                    "of {} (--group)",
                    options.microbatches, n));
  }
  EndlessOrder order{LoopedPipeline("interleaved-1f1b", v, options), n};
  const int64_t turn = int64_t{n} * v;  // forwards of a rank per group
  for (int rank = 0; rank < p; ++rank) {
    auto& body = order.pipeline.body[static_cast<size_t>(rank)];
    int64_t ahead = 2 * int64_t{std::max(1, options.warmup_slope)} * (p - 1 - rank) + (v - 1) * n;
    if (!options.warmup.empty()) ahead = options.warmup[static_cast<size_t>(rank)];
    // The k-th forward (backward) of the endless sequence is of this chunk and micro-batch.
    const auto add = [&](ActionKind kind, int64_t k) {
      const int64_t place = k % turn;
      const auto nth = static_cast<int>(place / n);
      const int chunk = IsForward(kind) ? nth : v - 1 - nth;
      body.push_back(MakeAction(kind, chunk * p + rank, k / turn * n + place % n));
    };
    for (int64_t k = 0; k < turn; ++k) {
      add(ActionKind::kForward, ahead + k);
      add(ActionKind::kBackward, k);
    }
  }
  return order;
}

Schedule GenerateInterleaved1F1B(const GeneratorOptions& options) {
  return CutToOneStep("interleaved-1f1b", EndlessInterleaved(options));
}

namespace {

/// Chunks that a rank holds where nothing caps them; Megatron's own warm-up where slope is 1.
int64_t ChunksAhead(const GeneratorOptions& options, int rank) {
  if (!options.warmup.empty()) return options.warmup[static_cast<size_t>(rank)] + 1;
  const int64_t v = options.chunks > 0 ? options.chunks : 2;
  const int64_t slope = std::max(1, options.warmup_slope);
  return 2 * slope * (options.ranks - 1 - rank) + (v - 1) * GroupSize(options) + 1;
}

bool HasOwnWarmUp(const GeneratorOptions& options) {
  return options.warmup.empty() && options.warmup_slope <= 1;
}

constexpr char kAhead[] = "w_r + 1";
constexpr char kOwnAhead[] = "2(p − 1 − r) + (v − 1)N + 1";

}  // namespace

std::vector<Fact> FactsOfInterleaved1F1B(const GeneratorOptions& options) {
  const int64_t p = options.ranks;
  const int64_t v = options.chunks > 0 ? options.chunks : 2;
  const int64_t forwards = options.microbatches * v;
  const bool own = HasOwnWarmUp(options);
  std::vector<Fact> facts;
  if (own) {
    facts.push_back(
        {Quantity::kIdleOfMakespan, "(p − 1) / (v·m + p − 1)", {{p - 1, forwards + p - 1}}});
  }
  facts.push_back({Quantity::kInFlight, fmt::format("min(v·m, {})", own ? kOwnAhead : kAhead),
                   Each(options.ranks,
                        [&](int rank) { return std::min(forwards, ChunksAhead(options, rank)); })});
  AddFlushFacts(facts);
  return facts;
}

std::vector<Fact> FactsOfEndlessInterleaved(const GeneratorOptions& options) {
  const bool own = HasOwnWarmUp(options);
  std::vector<Fact> facts;
  if (own) facts.push_back({Quantity::kSteadyIdle, "0", {0}});
  facts.push_back({Quantity::kInFlight, own ? kOwnAhead : kAhead,
                   Each(options.ranks, [&](int rank) { return ChunksAhead(options, rank); })});
  return facts;
}

}  // namespace pipelag
