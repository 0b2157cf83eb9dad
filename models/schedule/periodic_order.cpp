#include "models/schedule/periodic_order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "models/schedule/play.h"

namespace pipelag {
namespace {

/// When the last lane is free again.
struct Length {
  void OnCompute(int, const RunAction&, int64_t, int64_t, int64_t end, bool) { Take(end); }
  void OnTransfer(int, const RunAction&, int64_t, int64_t, int64_t sent, int64_t) { Take(sent); }
  void OnReduce(int, int, int64_t, int64_t, int64_t end) { Take(end); }
  void Take(int64_t end) { latest = std::max(latest, end); }

  int64_t latest = 0;
};

/// `to` starts when `from` of as many repetitions before has ended.
struct Edge {
  int from = 0;
  int to = 0;
  int64_t repetitions = 0;
};

struct Message {
  int node = 0;
  Action producer;
};

/// The dependency graph of one repetition, whose nodes are computations (an OVERLAP is one),
/// messages and collectives. A message belongs to its producer's repetition, a collective to the
/// step it reduces.
class PeriodicGraph {
 public:
  explicit PeriodicGraph(const Program& program)
      : program_(program), schedule_(program.schedule()), m_(schedule_.microbatches) {
    node_at_.resize(schedule_.body.size());
    for (int rank = 0; rank < schedule_.ranks; ++rank) NumberComputation(rank);
    for (size_t g = 0; g < schedule_.groups.size(); ++g) group_nodes_.push_back(nodes_++);
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      AddLane(rank);
      AddMessages(rank);
      AddReductions(rank);
    }
    AddMessageLanes();
  }

  int nodes() const { return nodes_; }
  const std::vector<Message>& messages() const { return messages_; }
  int NodeAt(int rank, size_t position) const {
    return node_at_[static_cast<size_t>(rank)][position];
  }

  /// A moment for each node where repetitions follow each other by `period`; nothing if that takes
  /// more than `rounds` passes over the edges, as it does for a period too short.
  std::optional<std::vector<int64_t>> Moments(int64_t period, int64_t rounds) const {
    std::vector<int64_t> moments(static_cast<size_t>(nodes_));
    for (int64_t round = 0; round < rounds; ++round) {
      bool changed = false;
      for (const Edge& edge : edges_) {
        const int64_t earliest =
            moments[static_cast<size_t>(edge.from)] + 1 - edge.repetitions * period;
        int64_t& moment = moments[static_cast<size_t>(edge.to)];
        if (moment >= earliest) continue;
        moment = earliest;
        changed = true;
      }
      if (!changed) return moments;
    }
    return std::nullopt;
  }

 private:
  struct Where {
    int rank = 0;
    size_t position = 0;
  };
  using Cell = std::tuple<bool, int, int64_t>;  // F, placed stage, within the step

  const std::vector<Action>& Body(int rank) const {
    return schedule_.body[static_cast<size_t>(rank)];
  }

  void NumberComputation(int rank) {
    const auto& body = Body(rank);
    std::vector<int>& nodes = node_at_[static_cast<size_t>(rank)];
    for (size_t i = 0; i < body.size(); ++i) {
      const Action& a = body[i];
      const bool second = i > 0 && body[i - 1].overlaps_next;
      const bool compute = a.kind != ActionKind::kAllReduce;
      nodes.push_back(second ? nodes.back() : compute ? nodes_++ : -1);
      if (IsForward(a.kind) || YieldsInputGradient(a.kind)) {
        cells_[{IsForward(a.kind), a.stage, schedule_.WithinStep(a)}] = {rank, i};
      }
    }
  }

  /// Computation one after the other, around the end of the period too.
  void AddLane(int rank) {
    int first = -1;
    int last = -1;
    for (const int node : node_at_[static_cast<size_t>(rank)]) {
      if (node < 0 || node == last) continue;
      if (last >= 0) edges_.push_back({last, node, 0});
      if (first < 0) first = node;
      last = node;
    }
    if (first >= 0) edges_.push_back({last, first, 1});
  }

  void AddMessages(int rank) {
    const auto& body = Body(rank);
    for (size_t i = 0; i < body.size(); ++i) {
      const Action& a = body[i];
      const bool forward = IsForward(a.kind);
      if (!forward && !YieldsInputGradient(a.kind)) continue;
      if (forward ? schedule_.IsLast(a.stage) : schedule_.IsFirst(a.stage)) continue;
      const Where& to = cells_.at({forward, a.stage + (forward ? 1 : -1), schedule_.WithinStep(a)});
      const int64_t later = (a.microbatch - Body(to.rank)[to.position].microbatch) / m_;
      const int consumer = NodeAt(to.rank, to.position);
      if (to.rank == rank) {
        edges_.push_back({NodeAt(rank, i), consumer, later});
        continue;
      }
      messages_.push_back({nodes_, a});
      edges_.push_back({NodeAt(rank, i), nodes_, 0});
      edges_.push_back({nodes_, consumer, later});
      ++nodes_;
    }
  }

  /// Messages of a lane in the order in which they were found, that of their producers.
  void AddMessageLanes() {
    std::map<int, std::vector<int>> lanes;
    for (const Message& message : messages_) {
      lanes[program_.ProducedLane(message.producer.kind, message.producer.stage)].push_back(
          message.node);
    }
    for (const auto& [lane, nodes] : lanes) {
      for (size_t k = 1; k < nodes.size(); ++k) edges_.push_back({nodes[k - 1], nodes[k], 0});
      edges_.push_back({nodes.back(), nodes.front(), 1});
    }
  }

  /// A collective starts behind the gradients of its step and when all its members have posted it;
  /// the updates wait for it.
  void AddReductions(int rank) {
    const auto& body = Body(rank);
    int last_of_all = -1;
    for (const int node : node_at_[static_cast<size_t>(rank)]) {
      if (node >= 0) last_of_all = node;
    }
    int before = last_of_all;
    int64_t wrapped = 1;
    for (size_t i = 0; i < body.size(); ++i) {
      const Action& a = body[i];
      if (a.kind == ActionKind::kAllReduce) {
        if (before >= 0) edges_.push_back({before, group_nodes_[a.stage], a.microbatch + wrapped});
        continue;
      }
      before = NodeAt(rank, i);
      wrapped = 0;
      for (size_t g = 0; g < schedule_.groups.size(); ++g) {
        const auto& stages = schedule_.groups[g].stages;
        if (!std::binary_search(stages.begin(), stages.end(), a.stage)) continue;
        if (YieldsWeightGradient(a.kind)) {
          edges_.push_back({before, group_nodes_[g], schedule_.ShiftOf(a)});
        }
        if (a.kind == ActionKind::kUpdate) {
          edges_.push_back({group_nodes_[g], before, -int64_t{a.microbatch}});
        }
      }
    }
  }

  const Program& program_;
  const Schedule& schedule_;
  int64_t m_;
  int nodes_ = 0;
  std::vector<std::vector<int>> node_at_;  // per rank and position; −1 for an AR
  std::vector<int> group_nodes_;
  std::map<Cell, Where> cells_;
  std::vector<Message> messages_;
  std::vector<Edge> edges_;
};

/// Units per repetition that a run which starts everything as early as can be comes to, rounded up
/// generously: what a fixed period needs at least, or about that.
int64_t PeriodOfARun(const Program& program) {
  const auto length = [&](int64_t steps) {
    const Program run = program.WithSteps(steps);
    const UnitTimes unit;
    Length length_of_run;
    CHECK(Play(run, unit, PlayLinks{.all = {.occupancy = 1}}, length_of_run).Run().empty());
    return length_of_run.latest;
  };
  const int64_t steps = program.StepsThatShowAll();
  return (length(2 * steps) - length(steps)) / steps + 2;
}

/// A period of as many units as there are nodes is always long enough, so the search ends.
std::pair<int64_t, std::vector<int64_t>> PeriodAndMoments(const PeriodicGraph& graph,
                                                          int64_t shortest) {
  constexpr int64_t kPatience = 1000;
  const int64_t longest = std::max<int64_t>(shortest, graph.nodes());
  for (int64_t period = shortest; period < longest; period *= 2) {
    if (auto moments = graph.Moments(period, kPatience)) return {period, std::move(*moments)};
  }
  auto moments = graph.Moments(longest, int64_t{graph.nodes()} + 1);
  CHECK(moments.has_value());
  return {longest, std::move(*moments)};
}

/// A send or receive and its place in its rank's period.
struct Transfer {
  int64_t moment = 0;
  int sender = 0;
  ActionKind payload = ActionKind::kSendForward;
  int receiver = 0;
  Action action;
  auto Key() const { return std::tuple(moment, sender, payload, receiver); }
};

/// The moments of all nodes, as read by rank.
class Timetable {
 public:
  Timetable(const Program& program, const PeriodicGraph& graph)
      : program_(program), schedule_(program.schedule()), graph_(graph) {
    std::tie(period_, moments_) = PeriodAndMoments(graph, PeriodOfARun(program));
  }

  int64_t MomentOf(int rank, size_t position) const {
    return moments_[static_cast<size_t>(graph_.NodeAt(rank, position))];
  }

  /// Per rank its sends and receives in order, each of that repetition in which its moment falls
  /// into the period that begins with the body's first computation.
  std::vector<std::vector<Transfer>> Transfers() const {
    std::vector<std::vector<Transfer>> transfers(schedule_.body.size());
    for (const Message& message : graph_.messages()) {
      const Action& a = message.producer;
      const auto on = static_cast<size_t>(program_.ProducedLane(a.kind, a.stage));
      const Lane& lane = program_.lanes()[on];
      const bool forward = lane.payload == ActionKind::kSendForward;
      const auto add = [&](int rank, ActionKind kind, int stage) {
        const int64_t moment = moments_[static_cast<size_t>(message.node)];
        const int64_t late = FloorDiv(moment - BeginOf(rank), period_);
        const int64_t number = a.microbatch - late * schedule_.microbatches;
        transfers[static_cast<size_t>(rank)].push_back(
            {moment - late * period_,
             lane.sender,
             lane.payload,
             lane.receiver,
             {static_cast<int32_t>(number), static_cast<uint16_t>(stage), kind}});
      };
      add(lane.sender, lane.payload, a.stage);
      add(lane.receiver, forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
          a.stage + (forward ? 1 : -1));
    }
    for (auto& own : transfers) {
      std::sort(own.begin(), own.end(),
                [](const Transfer& a, const Transfer& b) { return a.Key() < b.Key(); });
    }
    return transfers;
  }

 private:
  /// Of a rank that has a transfer, and so a computation.
  int64_t BeginOf(int rank) const {
    const auto& body = schedule_.body[static_cast<size_t>(rank)];
    const auto first = std::find_if(
        body.begin(), body.end(), [](const Action& a) { return a.kind != ActionKind::kAllReduce; });
    return MomentOf(rank, static_cast<size_t>(first - body.begin()));
  }

  const Program& program_;
  const Schedule& schedule_;
  const PeriodicGraph& graph_;
  int64_t period_ = 0;
  std::vector<int64_t> moments_;
};

}  // namespace

std::vector<std::vector<Action>> PeriodicBodyWithTransfers(const Program& program) {
  const Schedule& schedule = program.schedule();
  const PeriodicGraph graph(program);
  const Timetable timetable(program, graph);
  const std::vector<std::vector<Transfer>> transfers = timetable.Transfers();
  std::vector<std::vector<Action>> rows;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const auto& body = schedule.body[static_cast<size_t>(rank)];
    const auto& own = transfers[static_cast<size_t>(rank)];
    std::vector<Action>& row = rows.emplace_back();
    auto next = own.begin();
    for (size_t i = 0; i < body.size(); ++i) {
      const bool second = i > 0 && body[i - 1].overlaps_next;
      if (body[i].kind != ActionKind::kAllReduce && !second) {
        for (; next != own.end() && next->moment <= timetable.MomentOf(rank, i); ++next) {
          row.push_back(next->action);
        }
      }
      row.push_back(body[i]);
    }
    for (; next != own.end(); ++next) row.push_back(next->action);
  }
  return rows;
}

}  // namespace pipelag
