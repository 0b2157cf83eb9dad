// Buffers that stand for a whole run, derived from a program's versions and slots.
#include "models/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/schedule/slots.h"

namespace pipelag {
namespace {

/// 64 TiB: a hundred thousand of them stay within 64 bits, and the largest networks on one device
/// below it, so that it can be told by how much they do not fit.
constexpr Bytes kMostBytes = Bytes{1} << 46;

void CheckSizes(const MemorySizes& sizes, const Schedule& schedule) {
  if (sizes.stages.size() != static_cast<size_t>(schedule.stages)) {
    throw Error(fmt::format("the sizes are for {} stages, but the schedule has {}",
                            sizes.stages.size(), schedule.stages));
  }
  for (size_t s = 0; s < sizes.stages.size(); ++s) {
    const StageMemory& stage = sizes.stages[s];
    const auto [least, most] = std::minmax({stage.weights, stage.gradients, stage.optimizer,
                                            stage.activation, stage.message, stage.workspace});
    if (least < 0 || std::max(most, -stage.freed_at_input) > kMostBytes) {
      throw Error(fmt::format("stage {}: a size is out of range, it must be from 0 to {}", s,
                              FormatBytes(kMostBytes)));
    }
    if (stage.freed_at_input > stage.activation) {
      throw Error(
          fmt::format("stage {} would free {} at the input's backward, but an activation "
                      "is only {}",
                      s, FormatBytes(stage.freed_at_input), FormatBytes(stage.activation)));
    }
  }
}

/// Per lane the largest message of the stages that send over it.
std::vector<Bytes> LargestMessages(const Program& program, const MemorySizes& sizes) {
  const Schedule& schedule = program.schedule();
  std::vector<Bytes> largest(program.lanes().size());
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    const Bytes message = sizes.stages[static_cast<size_t>(schedule.SliceOf(placed))].message;
    for (const int lane : {program.ForwardLane(placed), program.BackwardLane(placed)}) {
      if (lane < 0) continue;
      Bytes& own = largest[static_cast<size_t>(lane)];
      own = std::max(own, message);
    }
  }
  return largest;
}

}  // namespace

std::vector<StandingMemory> StandingMemoryOf(const Program& program, const MemorySizes& sizes,
                                             int receive_slots) {
  const size_t lanes = program.lanes().size();
  const bool any_message = std::any_of(sizes.stages.begin(), sizes.stages.end(),
                                       [](const StageMemory& stage) { return stage.message > 0; });
  if (receive_slots > 0 || !any_message) {
    return StandingMemoryOf(program, sizes, std::vector<int>(lanes, receive_slots));
  }
  return StandingMemoryOf(program, sizes, NeverDelayingSlots(program));
}

std::vector<StandingMemory> StandingMemoryOf(const Program& program, const MemorySizes& sizes,
                                             const std::vector<int>& slots) {
  const Schedule& schedule = program.schedule();
  CheckSizes(sizes, schedule);
  CHECK(slots.size() == program.lanes().size());
  std::vector<StandingMemory> ranks(static_cast<size_t>(schedule.ranks));
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    const StageMemory& stage = sizes.stages[static_cast<size_t>(schedule.SliceOf(placed))];
    const StageVersions& versions = program.versions(placed);
    StandingMemory& rank =
        ranks[static_cast<size_t>(schedule.placement[static_cast<size_t>(placed)])];
    rank.weights += stage.weights;
    rank.stash += stage.weights * (versions.weight_versions - 1);
    rank.gradients += stage.gradients * versions.gradient_buffers;
    rank.optimizer += stage.optimizer;
    rank.workspace = std::max(rank.workspace, stage.workspace);
  }
  const std::vector<Bytes> largest = LargestMessages(program, sizes);
  for (size_t lane = 0; lane < largest.size(); ++lane) {
    ranks[static_cast<size_t>(program.lanes()[lane].receiver)].transfer_buffers +=
        largest[lane] * slots[lane];
  }
  return ranks;
}

}  // namespace pipelag
