#include "models/schedule/building_block.h"

#include <algorithm>
#include <array>

#include "models/error.h"
#include "models/schedule/pipelines.h"

namespace pipelag {
namespace {

/// The slots of one micro-batch in one pass over the ranks, up or down the line.
struct Way {
  ActionKind kind = ActionKind::kForward;
  bool down = true;  // from rank 0 to the last one
  int first = 0;
  int slope = 1;

  int SlotOf(int rank, int ranks) const { return first + slope * (down ? rank : ranks - 1 - rank); }
};

bool Collide(const Way& a, const Way& b, int ranks, int period) {
  for (int rank = 0; rank < ranks; ++rank) {
    if ((a.SlotOf(rank, ranks) - b.SlotOf(rank, ranks)) % period == 0) return true;
  }
  return false;
}

struct Pass {
  int slot = 0;
  Action action;
};

}  // namespace

std::optional<std::vector<std::vector<Action>>> RepeatBlock(const Schedule& pipeline,
                                                            const BlockSlope& slope, int period) {
  CHECK(period >= 6);  // F, I and W of two chunks
  const int p = pipeline.ranks;
  std::array<Way, 4> ways = {Way{ActionKind::kForward, true, 0, slope.forward_down},
                             Way{ActionKind::kForward, false, 0, slope.forward_up},
                             Way{ActionKind::kBackwardInput, true, 0, slope.input_down},
                             Way{ActionKind::kBackwardInput, false, 0, slope.input_up}};
  for (size_t w = 1; w < ways.size(); ++w) {
    const int end = ways[w - 1].first + ways[w - 1].slope * (p - 1);
    const auto collides = [&](const Way& before) { return Collide(before, ways[w], p, period); };
    int turn = 1;
    do {
      ways[w].first = end + turn;
    } while (std::any_of(ways.begin(), ways.begin() + static_cast<std::ptrdiff_t>(w), collides) &&
             ++turn <= period);
    if (turn > period) return std::nullopt;
  }
  std::vector<std::vector<Action>> order(static_cast<size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    const std::array<int, 4> stages = {rank, 2 * p - 1 - rank, 2 * p - 1 - rank, rank};
    std::vector<Pass> passes;
    for (int i = 0; i < pipeline.microbatches; ++i) {
      for (size_t w = 0; w < ways.size(); ++w) {
        passes.push_back(
            {period * i + ways[w].SlotOf(rank, p), MakeAction(ways[w].kind, stages[w], i)});
      }
    }
    std::sort(passes.begin(), passes.end(),
              [](const Pass& a, const Pass& b) { return a.slot < b.slot; });
    for (const Pass& pass : passes) order[static_cast<size_t>(rank)].push_back(pass.action);
  }
  return order;
}

}  // namespace pipelag
