#include "sim/steady_state.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "sim/cycle_ratio.h"
#include "sim/long_run.h"

namespace pipelag {
namespace {

/// Builds the event graph: a node per compute action of the body (an OVERLAP is one), per message
/// where messages occupy their lane or need a slot, and per collective. A node's repetition is that
/// of its rank's body (a message's: its producer's; a collective's: the step).
class EventGraph {
 public:
  EventGraph(const Program& program, const ActionTimes& times, const SteadyStateOptions& options)
      : program_(program),
        schedule_(program.schedule()),
        times_(times),
        slots_(options.receive_slots),
        messages_are_nodes_(times.messages_occupy() || options.receive_slots > 0) {
    IndexActions();
    AddComputeLanes();
    AddData();
    if (slots_ > 0) AddSlots();
    if (!options.without_reductions) AddReductions();
    if (schedule_.streams > 1) ConnectRanks();
  }

  SteadyState Solve() {
    const CycleRatio critical =
        MaximumCycleRatio(static_cast<int>(nodes_.size()), edges_, std::move(policy_));
    SteadyState result;
    result.step_time = critical.ratio;
    for (const int index : critical.cycle) {
      const CycleEdge& edge = edges_[static_cast<size_t>(index)];
      const Node& node = nodes_[static_cast<size_t>(edge.to)];
      result.critical_steps += edge.tokens;
      if (node.group >= 0) {
        result.critical_groups.push_back(node.group);
        if (MovesGradients(schedule_.groups[static_cast<size_t>(node.group)])) {
          ++result.critical_reductions;
        }
        continue;
      }
      result.critical_ranks.push_back(node.rank);
      if (node.lane >= 0) result.critical_lanes.push_back(node.lane);
      const Node& before = nodes_[static_cast<size_t>(edge.from)];
      const bool direct = before.lane < 0 && node.lane < 0 && before.group < 0;
      if (direct && before.rank != node.rank) result.critical_lanes.push_back(LaneOf(edge));
    }
    for (auto* list : {&result.critical_ranks, &result.critical_lanes, &result.critical_groups}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    return result;
  }

 private:
  /// An action of the body and the node that performs it.
  struct Entry {
    int node = -1;
    int32_t microbatch = 0;
    int64_t duration = 0;
  };
  struct Node {
    int rank = 0;
    int lane = -1;   // of a message
    int group = -1;  // of a reduction
  };
  struct LaneMessages {
    std::vector<int> nodes;      // in production order
    std::vector<int> consumers;  // nodes of the consuming actions in the receiver's order
    std::vector<int64_t> consumer_durations;
    int64_t shift_sum = 0;  // Σ (producer's − consumer's micro-batch number) / m
  };

  size_t Cell(int stage, int64_t microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(schedule_.microbatches) +
           static_cast<size_t>(FloorMod(microbatch, schedule_.microbatches));
  }

  int AddNode(const Node& node) {
    nodes_.push_back(node);
    policy_.push_back(-1);
    return static_cast<int>(nodes_.size()) - 1;
  }

  /// Of an edge that is a message.
  int LaneOf(const CycleEdge& edge) const {
    return std::lower_bound(message_edges_.begin(), message_edges_.end(),
                            std::pair(static_cast<int>(&edge - edges_.data()), -1))
        ->second;
  }

  /// The first edge into a node is its lane's: a policy whose cycles are the lanes.
  void AddEdge(int from, int to, int64_t weight, int64_t tokens) {
    if (policy_[static_cast<size_t>(to)] < 0) {
      policy_[static_cast<size_t>(to)] = static_cast<int>(edges_.size());
    }
    edges_.push_back({from, to, weight, static_cast<int32_t>(tokens)});
  }

  /// A lane: its nodes follow each other, the last is followed by the first of the next repetition.
  void AddLane(const std::vector<int>& nodes, const std::vector<int64_t>& durations) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      const size_t next = (i + 1) % nodes.size();
      AddEdge(nodes[i], nodes[next], durations[i], next == 0 ? 1 : 0);
    }
  }

  void IndexActions() {
    const size_t cells = static_cast<size_t>(schedule_.placed_stages()) *
                         static_cast<size_t>(schedule_.microbatches);
    forward_.resize(cells);
    gradient_.resize(cells);
    update_.resize(static_cast<size_t>(schedule_.placed_stages()));
    last_gradient_.resize(update_.size());
  }

  void AddComputeLanes() {
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const auto& body = schedule_.body[static_cast<size_t>(rank)];
      std::vector<int> nodes;
      std::vector<int64_t> durations;
      for (size_t i = 0; i < body.size(); ++i) {
        if (body[i].kind == ActionKind::kAllReduce) continue;
        const int node = AddNode({.rank = rank});
        int64_t duration = times_.Of(body[i]);
        if (body[i].overlaps_next) {
          duration = times_.OfOverlap(body[i], body[i + 1]);
          Register(body[i], node, duration, static_cast<int>(i));
          ++i;
        }
        Register(body[i], node, duration, static_cast<int>(i));
        nodes.push_back(node);
        durations.push_back(duration);
      }
      AddLane(nodes, durations);
    }
  }

  void Register(const Action& action, int node, int64_t duration, int position) {
    const Entry entry{node, action.microbatch, duration};
    if (action.kind == ActionKind::kUpdate) {
      update_[action.stage] = entry;
      return;
    }
    const size_t cell = Cell(action.stage, action.microbatch);
    if (IsForward(action.kind)) forward_[cell] = entry;
    if (YieldsInputGradient(action.kind)) gradient_[cell] = entry;
    if (YieldsWeightGradient(action.kind)) {
      // Latest in the lane's endless order among the batch: least shift, then greatest position.
      LastGradient& last = last_gradient_[action.stage];
      const int64_t shift = schedule_.ShiftOf(action);
      if (last.entry.node < 0 ||
          std::pair(-shift, position) > std::pair(-last.shift, last.position)) {
        last = {entry, shift, position};
      }
    }
  }

  /// Messages of one producing action to the stage that consumes them.
  void AddData() {
    lanes_.resize(program_.lanes().size());
    for (const auto& body : schedule_.body) {
      for (const Action& action : body) {
        if (!HasMicrobatch(action.kind)) continue;
        const int stage = action.stage;
        const bool forward = IsForward(action.kind);
        if (forward && !schedule_.IsLast(stage)) {
          AddMessage(program_.ForwardLane(stage), forward_[Cell(stage, action.microbatch)],
                     forward_[Cell(stage + 1, action.microbatch)]);
        } else if (YieldsInputGradient(action.kind) && !schedule_.IsFirst(stage)) {
          AddMessage(program_.BackwardLane(stage), gradient_[Cell(stage, action.microbatch)],
                     gradient_[Cell(stage - 1, action.microbatch)]);
        }
      }
    }
    if (!messages_are_nodes_) return;
    for (const LaneMessages& lane : lanes_) {
      const auto index = static_cast<int>(&lane - lanes_.data());
      AddLane(lane.nodes,
              std::vector<int64_t>(lane.nodes.size(), times_.OfMessage(index).occupancy));
    }
    for (const auto& [from, to, weight, tokens] : delayed_) AddEdge(from, to, weight, tokens);
  }

  void AddMessage(int lane, const Entry& producer, const Entry& consumer) {
    const int64_t tokens =
        (static_cast<int64_t>(producer.microbatch) - consumer.microbatch) / schedule_.microbatches;
    if (lane < 0) {
      AddEdge(producer.node, consumer.node, producer.duration, tokens);
      return;
    }
    const LinkTime& takes = times_.OfMessage(lane);
    if (!messages_are_nodes_) {
      message_edges_.emplace_back(static_cast<int>(edges_.size()), lane);
      AddEdge(producer.node, consumer.node, producer.duration + takes.latency, tokens);
      return;
    }
    LaneMessages& messages = lanes_[static_cast<size_t>(lane)];
    const int node =
        AddNode({.rank = nodes_[static_cast<size_t>(producer.node)].rank, .lane = lane});
    messages.nodes.push_back(node);
    messages.shift_sum += tokens;
    // Held back until the lanes stand, whose edges must come first (AddEdge).
    delayed_.push_back({producer.node, node, producer.duration, 0});
    delayed_.push_back(
        {node, consumer.node, takes.occupancy + takes.latency, static_cast<int32_t>(tokens)});
  }

  /// Message k of a lane waits until message-consumption k − slots has ended. Consumptions of
  /// repetition T are numbered from T · count − shift_sum, so that both number the same messages.
  void AddSlots() {
    for (const auto& body : schedule_.body) {
      for (const Action& action : body) {
        const int lane = program_.ConsumedLane(action.kind, action.stage);
        if (lane < 0) continue;
        const Entry& entry =
            (IsForward(action.kind) ? forward_ : gradient_)[Cell(action.stage, action.microbatch)];
        lanes_[static_cast<size_t>(lane)].consumers.push_back(entry.node);
        lanes_[static_cast<size_t>(lane)].consumer_durations.push_back(entry.duration);
      }
    }
    for (const LaneMessages& lane : lanes_) {
      const auto count = static_cast<int64_t>(lane.nodes.size());
      for (int64_t k = 0; k < count; ++k) {
        const int64_t number = k - slots_ + lane.shift_sum;
        const auto consumer = static_cast<size_t>(FloorMod(number, count));
        AddEdge(lane.consumers[consumer], lane.nodes[static_cast<size_t>(k)],
                lane.consumer_durations[consumer], -FloorDiv(number, count));
      }
    }
  }

  void AddReductions() {
    std::vector<int> nodes;
    for (const CollectiveGroup& group : schedule_.groups) {
      nodes.push_back(AddNode({.rank = schedule_.placement[static_cast<size_t>(group.stages[0])],
                               .group = static_cast<int>(nodes.size())}));
    }
    for (const auto& body : schedule_.body) {
      std::vector<Action> order;
      for (const Action& action : body) {
        if (action.kind == ActionKind::kAllReduce) order.push_back(action);
      }
      for (size_t i = 0; i < order.size(); ++i) {
        const bool wraps = i + 1 == order.size();
        const Action& next = order[wraps ? 0 : i + 1];
        AddEdge(nodes[order[i].stage], nodes[next.stage], times_.OfReduction(order[i].stage),
                next.microbatch + (wraps ? 1 : 0) - order[i].microbatch);
      }
    }
    for (size_t g = 0; g < nodes.size(); ++g) {
      for (const int stage : schedule_.groups[g].stages) {
        const LastGradient& last = last_gradient_[static_cast<size_t>(stage)];
        AddEdge(last.entry.node, nodes[g], last.entry.duration, last.shift);
        const Entry& update = update_[static_cast<size_t>(stage)];
        AddEdge(nodes[g], update.node, times_.OfReduction(static_cast<int>(g)), -update.microbatch);
      }
    }
  }

  /// Streams may have no rank in common, but the graph must be strongly connected. So many tokens
  /// make these edges' cycles cheaper than any lane.
  void ConnectRanks() {
    constexpr int64_t kTokens = 1 << 24;
    std::vector<int> firsts;
    int last = -1;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].rank <= last) continue;
      last = nodes_[node].rank;
      firsts.push_back(static_cast<int>(node));
    }
    for (size_t i = 0; i < firsts.size(); ++i) {
      AddEdge(firsts[i], firsts[(i + 1) % firsts.size()], 0, kTokens);
    }
  }

  struct LastGradient {
    Entry entry;
    int64_t shift = 0;
    int position = 0;
  };

  const Program& program_;
  const Schedule& schedule_;
  const ActionTimes& times_;
  int64_t slots_;
  bool messages_are_nodes_;
  std::vector<Node> nodes_;
  std::vector<int> policy_;
  std::vector<CycleEdge> edges_;
  std::vector<CycleEdge> delayed_;
  std::vector<Entry> forward_;   // per (placed stage, micro-batch mod m): F
  std::vector<Entry> gradient_;  // B or I
  std::vector<Entry> update_;
  std::vector<LastGradient> last_gradient_;
  std::vector<LaneMessages> lanes_;
  std::vector<std::pair<int, int>> message_edges_;  // edge and lane, ascending
};

struct NoObserver {
  void OnCompute(int, const RunAction&, int64_t, int64_t, int64_t, bool) {}
  void OnTransfer(int, const RunAction&, int64_t, int64_t, int64_t, int64_t) {}
  void OnReduce(int, int, int64_t, int64_t, int64_t) {}
  int Noted() const { return 0; }
  void Repeat(int, int64_t) {}
};

/// Steps that clipping takes something from.
int64_t ClippedSteps(const Program& program) {
  return program.steps() + program.first_whole_block() - program.last_whole_block();
}

std::optional<Repetition> FindRepetition(const Program& program, const ActionTimes& times,
                                         int receive_slots) {
  constexpr int64_t kMostRepetitions = 64;
  const Program endless = program.WithSteps(ClippedSteps(program) + kMostRepetitions);
  NoObserver observer;
  Play play(endless, times, times.Links(receive_slots), observer);
  return LongRun(endless, play, observer).FindRepetition(kMostRepetitions);
}

}  // namespace

StepTime ExactStepTime(const Program& program, const ActionTimes& times, int receive_slots) {
  const std::optional<Repetition> found = FindRepetition(program, times, receive_slots);
  if (found) return found->step_time;
  return ExactSteadyState(program, times, {.receive_slots = receive_slots}).step_time;
}

std::optional<int64_t> StepsThatShowAll(const Program& program, const ActionTimes& times,
                                        int receive_slots) {
  const std::optional<Repetition> found = FindRepetition(program, times, receive_slots);
  if (!found) return std::nullopt;
  // Ranks and the ends of the run are no further apart than the body reaches.
  return found->block + 2 * found->steps + 2 * ClippedSteps(program) + 2;
}

std::optional<StepTime> StepTimeByFirstStep(const Program& program,
                                            const std::vector<RankTotals>& ranks,
                                            const std::vector<int64_t>& lane_ends) {
  CHECK(program.schedule().flushes());
  int64_t longest = 0;
  for (const RankTotals& rank : ranks) {
    longest = std::max(longest, (rank.last_end - rank.first_start).count());
  }
  for (const RankTotals& rank : ranks) {
    const bool waited = rank.first_start.count() > 0;
    if (!waited && rank.last_end.count() != longest) return std::nullopt;
  }
  for (size_t lane = 0; lane < lane_ends.size(); ++lane) {
    // A rank sends nothing before its first action starts.
    const auto sender = static_cast<size_t>(program.lanes()[lane].sender);
    if (lane_ends[lane] - ranks[sender].first_start.count() > longest) return std::nullopt;
  }
  return StepTime{longest, 1};
}

SteadyState ExactSteadyState(const Program& program, const ActionTimes& times,
                             const SteadyStateOptions& options) {
  return EventGraph(program, times, options).Solve();
}

}  // namespace pipelag
