// Deadlocks in words: who waits for whom in a circle.
#include "models/schedule/deadlock.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "models/schedule/text.h"

namespace pipelag {
namespace {

/// The lanes of the circle that every way through `waits` runs into, from the least one on.
std::vector<int> CircleOf(const std::map<int, const Wait*>& waits) {
  std::map<int, size_t> seen;
  std::vector<int> way;
  int lane = waits.begin()->first;
  while (seen.try_emplace(lane, way.size()).second) {
    way.push_back(lane);
    const auto next = waits.find(waits.at(lane)->of);
    CHECK(next != waits.end());  // a lane that is not stuck would have done what is waited for
    lane = next->first;
  }
  way.erase(way.begin(), way.begin() + static_cast<std::ptrdiff_t>(seen.at(lane)));
  std::rotate(way.begin(), std::min_element(way.begin(), way.end()), way.end());
  return way;
}

/// The places of a circle in the order of waiting, each named once; a rank only where it changes.
std::string CircleText(const std::vector<const Wait*>& circle) {
  std::string text;
  const Place* last = nullptr;
  const auto add = [&](const Place& place) {
    if (last != nullptr && last->rank == place.rank && last->position == place.position) return;
    const bool same_rank = last != nullptr && last->rank == place.rank;
    text += fmt::format("{}{}", last == nullptr ? "" : " → ", place.text);
    if (!same_rank) text += fmt::format(" (rank {})", place.rank);
    last = &place;
  };
  for (const Wait* wait : circle) {
    add(wait->at);
    add(wait->what);
  }
  add(circle.front()->at);
  return text;
}

/// Finds, for every lane of a run by the law, what its first action is short of. Compute lanes are
/// numbered by rank, reduce lanes behind them.
class LawWaits {
 public:
  LawWaits(const Program& program, const std::vector<Blocked>& blocked)
      : program_(program), schedule_(program.schedule()) {
    for (const Blocked& b : blocked) heads_[b.rank] = b;
  }

  std::vector<Wait> All() const {
    std::vector<Wait> waits;
    for (const auto& [rank, head] : heads_) {
      waits.push_back(OfCompute(head));
      if (head.reduction) waits.push_back(OfReduction(head));
    }
    return waits;
  }

 private:
  int ReduceLane(int rank) const { return schedule_.ranks + rank; }
  int RankOf(int placed) const { return schedule_.placement[static_cast<size_t>(placed)]; }
  const std::vector<Action>& Body(int rank) const {
    return schedule_.body[static_cast<size_t>(rank)];
  }

  Place PlaceAt(int rank, int position) const {
    return {ActionText(schedule_, Body(rank)[static_cast<size_t>(position)]), rank, position};
  }

  /// Repetition of the body that an action of the run stands in.
  int64_t BlockOf(int rank, int position, int64_t number) const {
    const Action& a = Body(rank)[static_cast<size_t>(position)];
    return (number - a.microbatch) / (HasMicrobatch(a.kind) ? schedule_.microbatches : 1);
  }

  /// Whether the rank has passed the entry that stands for `number` at `position`.
  bool Passed(int rank, int position, int64_t number) const {
    const auto head = heads_.find(rank);
    if (head == heads_.end()) return true;
    const RunAction& at = head->second.action;
    return std::pair(BlockOf(rank, position, number), position) <
           std::pair(BlockOf(rank, at.position, at.microbatch), at.position);
  }

  /// Position of the entry with which `is` agrees that stands for micro-batch or step `number`.
  template <class Is>
  int Find(int rank, int64_t number, const Is& is) const {
    const auto& body = Body(rank);
    for (size_t i = 0; i < body.size(); ++i) {
      const int64_t period = HasMicrobatch(body[i].kind) ? schedule_.microbatches : 1;
      if (is(body[i]) && FloorMod(number - body[i].microbatch, period) == 0) {
        return static_cast<int>(i);
      }
    }
    CHECK(false);  // a validated schedule is complete
  }

  /// The F, B or I of `stage` that makes what its neighbour needs, if that is not done.
  std::optional<Wait> IfMissing(int rank, int position, int stage, bool forward,
                                int64_t number) const {
    if (stage < 0) return std::nullopt;
    const int of = RankOf(stage);
    const int at = Find(of, number, [&](const Action& a) {
      return a.stage == stage && (forward ? IsForward(a.kind) : YieldsInputGradient(a.kind));
    });
    if (Passed(of, at, number)) return std::nullopt;
    return Wait{rank, PlaceAt(rank, position), of, PlaceAt(of, at)};
  }

  std::optional<Wait> DataOf(int rank, int position, int64_t number) const {
    const Action& a = Body(rank)[static_cast<size_t>(position)];
    if (IsForward(a.kind)) {
      const int from = schedule_.IsFirst(a.stage) ? -1 : a.stage - 1;
      return IfMissing(rank, position, from, true, number);
    }
    const int from = schedule_.IsLast(a.stage) ? -1 : a.stage + 1;
    return IfMissing(rank, position, from, false, number);
  }

  Wait OfCompute(const Blocked& head) const {
    const RunAction& a = head.action;
    if (a.kind == ActionKind::kUpdate) return OfUpdate(head);
    std::optional<Wait> wait = DataOf(head.rank, a.position, a.microbatch);
    if (!wait && a.overlaps_next) {
      const Action& other = Body(head.rank)[static_cast<size_t>(a.position) + 1];
      const int64_t block = BlockOf(head.rank, a.position, a.microbatch);
      wait = DataOf(head.rank, a.position + 1, block * schedule_.microbatches + other.microbatch);
    }
    CHECK(wait.has_value());
    return *wait;
  }

  int PlaceOfReduction(int rank, int group, int64_t step) const {
    return Find(rank, step, [&](const Action& a) {
      return a.kind == ActionKind::kAllReduce && a.stage == group;
    });
  }

  /// An AR that names the stage has not ended.
  Wait OfUpdate(const Blocked& head) const {
    const Place at = PlaceAt(head.rank, head.action.position);
    for (size_t g = 0; g < schedule_.groups.size(); ++g) {
      const auto& stages = schedule_.groups[g].stages;
      if (!std::binary_search(stages.begin(), stages.end(), head.action.stage)) continue;
      const auto group = static_cast<int>(g);
      const int position = PlaceOfReduction(head.rank, group, head.action.step);
      const Place what = PlaceAt(head.rank, position);
      if (!Passed(head.rank, position, head.action.step)) {
        return {head.rank, at, head.rank, what};
      }
      if (head.reduction && Stands(head, group, head.action.step)) {
        return {head.rank, at, ReduceLane(head.rank), what};
      }
    }
    CHECK(false);
  }

  /// Whether an AR that the compute lane has passed is still on the reduce lane.
  bool Stands(const Blocked& head, int group, int64_t step) const {
    const auto key = [&](int g, int64_t t) {
      const int position = PlaceOfReduction(head.rank, g, t);
      return std::pair(BlockOf(head.rank, position, t), position);
    };
    return key(head.reduction->first, head.reduction->second) <= key(group, step);
  }

  /// A gradient is missing, or a member's reduce lane is not there yet.
  Wait OfReduction(const Blocked& head) const {
    const auto [group, step] = *head.reduction;
    Wait wait{
        ReduceLane(head.rank), PlaceAt(head.rank, PlaceOfReduction(head.rank, group, step)), 0, {}};
    for (const int stage : schedule_.groups[static_cast<size_t>(group)].stages) {
      const int rank = RankOf(stage);
      const auto& body = Body(rank);
      for (int i = 0; i < static_cast<int>(body.size()); ++i) {
        const Action& a = body[static_cast<size_t>(i)];
        if (a.stage != stage || !YieldsWeightGradient(a.kind)) continue;
        const int64_t number = step * schedule_.microbatches + schedule_.WithinStep(a);
        if (Passed(rank, i, number)) continue;
        wait.of = rank;
        wait.what = PlaceAt(rank, i);
        return wait;
      }
    }
    for (const int stage : schedule_.groups[static_cast<size_t>(group)].stages) {
      const int rank = RankOf(stage);
      const auto other = heads_.find(rank);
      CHECK(other != heads_.end());
      const auto& reduction = other->second.reduction;
      if (reduction && *reduction == std::pair(group, step)) continue;
      const int position = PlaceOfReduction(rank, group, step);
      wait.of = Passed(rank, position, step) ? ReduceLane(rank) : rank;
      wait.what = PlaceAt(rank, position);
      return wait;
    }
    CHECK(false);
  }

  const Program& program_;
  const Schedule& schedule_;
  std::map<int, Blocked> heads_;
};

}  // namespace

std::vector<Finding> CycleFindings(std::string_view opening, const std::vector<Wait>& waits) {
  std::map<int, const Wait*> by_lane;
  for (const Wait& wait : waits) by_lane.emplace(wait.lane, &wait);
  std::vector<const Wait*> circle;
  for (const int lane : CircleOf(by_lane)) circle.push_back(by_lane.at(lane));
  std::vector<Finding> findings = {
      {fmt::format("{}: {}, each waiting for the next", opening, CircleText(circle)),
       circle.front()->at.rank, circle.front()->at.position}};
  const auto add = [&](const Wait& wait, std::string_view where) {
    findings.push_back({fmt::format("deadlock: rank {} waits at {} for {}{}", wait.at.rank,
                                    wait.at.text, wait.what.text, where),
                        wait.at.rank, wait.at.position});
  };
  for (size_t i = 1; i < circle.size(); ++i) add(*circle[i], "");
  for (const auto& [lane, wait] : by_lane) {
    if (std::find(circle.begin(), circle.end(), wait) == circle.end()) {
      add(*wait, ", behind the circle");
    }
  }
  return findings;
}

std::vector<Finding> DeadlockFindings(const Program& program, const std::vector<Blocked>& blocked) {
  return CycleFindings("deadlock on any links", LawWaits(program, blocked).All());
}

}  // namespace pipelag
