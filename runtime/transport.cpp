#include "runtime/transport.h"

#include <fmt/format.h>

#include "models/schedule/replicate.h"
#include "runtime/runnable.h"

namespace pipelag {
namespace {

std::string_view WhatTheyDo(CollectiveGroup::Purpose purpose) {
  switch (purpose) {
    case CollectiveGroup::Purpose::kReplicas:
    case CollectiveGroup::Purpose::kWeights:
      return "reduce gradients";
    case CollectiveGroup::Purpose::kShared:
      return "exchange the gradients of a shared tensor";
    case CollectiveGroup::Purpose::kNorm:
      return "take the norm";
    case CollectiveGroup::Purpose::kBarrier:
      return "reach the barrier";
  }
  CHECK(false);
}

}  // namespace

std::string WaitingForMessage(const Schedule& schedule, const Lane& lane, bool send,
                              int64_t number) {
  return fmt::format("{} waits for {} to {} {} number {}",
                     RankName(schedule, send ? lane.sender : lane.receiver),
                     RankName(schedule, send ? lane.receiver : lane.sender), send ? "take" : "send",
                     lane.payload == ActionKind::kSendForward ? "F" : "B", number);
}

std::string WaitingForGroup(const Schedule& schedule, int rank, int group) {
  constexpr size_t kMostNamed = 4;
  const CollectiveGroup& members = schedule.groups[static_cast<size_t>(group)];
  std::string others;
  size_t count = 0;
  for (const int other : RanksOf(schedule, members)) {
    if (other == rank || ++count > kMostNamed) continue;
    others += (count > 1 ? ", " : "") + RankName(schedule, other);
  }
  if (count > kMostNamed) others += fmt::format(" and {} more", count - kMostNamed);
  if (count == 0) others = "itself";
  return fmt::format("{} waits for {} to {}", RankName(schedule, rank), others,
                     WhatTheyDo(members.purpose));
}

}  // namespace pipelag
