// Automatic zero-bubble schedules: greedy list scheduling of F, I and W on given times under a
// limit on the activations a rank holds (in the spirit of Qi et al., "Zero Bubble Pipeline
// Parallelism", section 3), and, with two chunks in a V, building blocks (Qi et al., "Pipeline
// Parallelism with Controllable Memory", arXiv 2405.15362, whose V-Half and V-Min are the limits
// p/2 and p/3 and a little). A few rules of thumb and blocks are tried and the shortest result
// kept.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/schedule/building_block.h"
#include "models/schedule/greedy_listing.h"
#include "models/schedule/pipelines.h"

namespace pipelag {
namespace {

GivenCosts CostsOrUniform(const GeneratorOptions& options, int stages) {
  const auto wanted = static_cast<size_t>(stages);
  if (options.costs.forward.empty()) {
    const std::vector<int64_t> same(wanted, 1);
    return {same, same, same, 0};
  }
  if (options.costs.forward.size() != wanted || options.costs.backward_input.size() != wanted ||
      options.costs.backward_weight.size() != wanted) {
    throw Error(
        fmt::format("zb-auto needs the times of F, I and W of each of its {} stages", stages));
  }
  return options.costs;
}

/// V-Min, V-Half and between: of all slopes from 1 to 5 those that were the shortest for some
/// limit, for 4 to 16 ranks of F = I = W.
constexpr std::array<BlockSlope, 9> kBlocks = {{{1, 1, 1, 1},
                                                {1, 2, 1, 2},
                                                {2, 2, 1, 3},
                                                {2, 3, 1, 2},
                                                {1, 3, 1, 5},
                                                {3, 3, 1, 3},
                                                {1, 4, 1, 2},
                                                {1, 4, 2, 3},
                                                {1, 5, 1, 5}}};

/// All that are tried, the first of which wins where several are as good.
std::vector<ListingRules> RulesFor(int chunks, int limit) {
  std::vector<ListingRules> all;
  // With one chunk there is no later one to hold places for; beyond half of the places chunk 0
  // starves.
  const int most_reserve = chunks == 1 ? 0 : std::max(1, limit / 2);
  for (int reserve = chunks - 1; reserve <= most_reserve; reserve = std::max(1, 2 * reserve)) {
    for (const auto& [put_off, slope] :
         {std::pair(-1, 0), std::pair(0, 0), std::pair(1, 1), std::pair(2, 2)}) {
      for (const bool always_fill : {true, false}) {
        for (const bool forward_first : {false, true}) {
          all.push_back({reserve, always_fill, forward_first, put_off, slope});
        }
      }
    }
  }
  return all;
}

}  // namespace

Schedule GenerateZbAuto(const GeneratorOptions& options) {
  const int v = options.chunks > 0 ? options.chunks : GeneratorOptions::kChunksOfZbAuto;
  if (v > 2) {
    throw Error(fmt::format("zb-auto has one chunk per rank, or two in a V, not {} (--chunks)", v));
  }
  const double given = options.memory_limit > 0 ? options.memory_limit : options.ranks;
  const auto limit = static_cast<int>(std::min(std::floor(given * v), 1e9));
  if (limit < v) {
    throw Error(fmt::format(
        "zb-auto cannot do with {} activations per rank: one micro-batch needs 1 (--memory-limit)",
        options.memory_limit));
  }
  const Schedule pipeline =
      v == 2 ? VPipeline("zb-auto", options) : LinearPipeline("zb-auto", options);
  const GivenCosts costs = CostsOrUniform(options, pipeline.stages);
  const std::vector<ListingRules> all_rules = RulesFor(v, limit);
  Schedule best;
  int64_t shortest = kDeadEnd;
  // Of the shortest the first in the order of rules, then blocks. Blocks are tried before, since
  // they are soon good, and whatever cannot become the best any more is given up early.
  size_t first = 0;
  const auto consider = [&](size_t place, const auto& list) {
    const int64_t too_late = shortest != kDeadEnd && place < first ? shortest + 1 : shortest;
    Schedule listed = pipeline;
    const int64_t end = list(listed, ListingBounds{limit, too_late});
    if (end >= too_late) return;
    shortest = end;
    first = place;
    best = std::move(listed);
  };
  size_t place = all_rules.size();
  const auto repeat = [&](const BlockSlope& slope, int64_t period) {
    const auto order = RepeatBlock(pipeline, slope, static_cast<int>(period));
    if (order) {
      consider(place, [&](Schedule& to, const ListingBounds& bounds) {
        return ListInOrder(to, costs, bounds, *order);
      });
    }
    ++place;
  };
  if (v == 2) {
    for (const BlockSlope& slope : kBlocks) repeat(slope, 6);
    // Below V-Min: the same block with empty slots, until it needs no more than one micro-batch.
    const int64_t held = (4 * int64_t{options.ranks} + 6) / limit;
    for (int64_t period = 8; period <= held + 4; period += 2) repeat(kBlocks.front(), period);
  }
  for (size_t i = 0; i < all_rules.size(); ++i) {
    consider(i, [&](Schedule& to, const ListingBounds& bounds) {
      return ListGreedily(to, costs, bounds, all_rules[i]);
    });
  }
  CHECK(shortest != kDeadEnd);
  AppendUpdates(best);
  return best;
}

/// Idle time and activations are what the given times and the limit make of them.
std::vector<Fact> FactsOfZbAuto(const GeneratorOptions&) {
  std::vector<Fact> facts;
  AddFlushFacts(facts);
  return facts;
}

}  // namespace pipelag
