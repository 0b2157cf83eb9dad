#include "models/held_memory.h"

#include <algorithm>

#include "models/schedule/slots.h"

namespace pipelag {
namespace {

bool NeverMore(const std::vector<int>& a, const std::vector<int>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](int x, int y) { return x <= y; });
}

}  // namespace

HeldMemory::HeldMemory(const Program& program) : slots_(NeverDelayingSlots(program)) {
  const Schedule& schedule = program.schedule();
  std::vector<int> place(static_cast<size_t>(schedule.placed_stages()));
  ranks_.resize(static_cast<size_t>(schedule.ranks));
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    Rank& rank = ranks_[static_cast<size_t>(schedule.placement[static_cast<size_t>(placed)])];
    place[static_cast<size_t>(placed)] = static_cast<int>(rank.stages.size());
    rank.stages.push_back(placed);
  }
  for (int r = 0; r < schedule.ranks; ++r) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    Held now{std::vector<int>(rank.stages.size()), std::vector<int>(rank.stages.size())};
    bool grown = false;
    for (LaneWalk walk(program, r); !walk.done(); walk.Advance()) {
      const RunAction& action = walk.action();
      if (action.kind == ActionKind::kAllReduce || action.kind == ActionKind::kUpdate) continue;
      const auto at = static_cast<size_t>(place[static_cast<size_t>(action.stage)]);
      if (IsForward(action.kind)) {
        ++now.whole[at];
        grown = true;
        continue;
      }
      // Only the tops matter: what is held before something goes.
      if (grown) Note(now, rank.most);
      grown = false;
      if (action.kind == ActionKind::kBackwardInput) {
        ++now.after_input[at];
        grown = true;  // W may need more than F kept
      }
      if (action.kind == ActionKind::kBackwardWeight) {
        --now.after_input[at];
      } else {
        --now.whole[at];
      }
    }
    if (grown) Note(now, rank.most);
  }
}

void HeldMemory::Note(const Held& now, std::vector<Held>& most) {
  const auto covers = [](const Held& a, const Held& b) {
    return NeverMore(b.whole, a.whole) && NeverMore(b.after_input, a.after_input);
  };
  if (std::any_of(most.begin(), most.end(), [&](const Held& held) { return covers(held, now); })) {
    return;
  }
  std::erase_if(most, [&](const Held& held) { return covers(now, held); });
  most.push_back(now);
}

std::vector<Bytes> HeldMemory::PeaksOf(const Program& program, const MemorySizes& sizes) const {
  const std::vector<StandingMemory> standing = StandingMemoryOf(program, sizes, slots_);
  std::vector<Bytes> peaks;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Bytes most = 0;
    for (const Held& held : ranks_[r].most) {
      Bytes bytes = 0;
      for (size_t i = 0; i < held.whole.size(); ++i) {
        const StageMemory& stage =
            sizes.stages[static_cast<size_t>(program.schedule().SliceOf(ranks_[r].stages[i]))];
        bytes += held.whole[i] * stage.activation +
                 held.after_input[i] * (stage.activation - stage.freed_at_input);
      }
      most = std::max(most, bytes);
    }
    peaks.push_back(standing[r].Total() + most);
  }
  return peaks;
}

}  // namespace pipelag
