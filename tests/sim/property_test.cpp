// The simulator against the law of execution itself, on random schedules: the dependency graph is
// built here anew from the prose, and its longest paths are the times.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "sim/simulator.h"
#include "tests/schedule/random_schedule.h"

namespace pipelag {
namespace {

/// End times of everything in a run, as longest paths: a node is an action, an overlapped pair, a
/// message or a collective; it starts when all it depends on has ended (and been delivered).
class LongestPath {
 public:
  LongestPath(const Schedule& s, const Costs& costs, int steps, int64_t reduction)
      : s_(s), costs_(costs), reduction_(reduction) {
    for (int rank = 0; rank < s.ranks; ++rank) LayOut(rank, steps);
    AddData();
    AddCollectives(steps);
  }

  int64_t Makespan() {
    int64_t last = 0;
    for (size_t v = 0; v < nodes_.size(); ++v) {
      if (nodes_[v].on_compute) last = std::max(last, End(static_cast<int>(v)));
    }
    return last;
  }

 private:
  struct Node {
    int64_t duration = 0;
    int64_t after_end = 0;  ///< latency: counts for those who wait, not for the lane
    std::vector<std::pair<int, bool>> needs;  ///< node, and whether its delivery is needed
    bool on_compute = false;
    int64_t end = -1;
  };

  int Add(int64_t duration) {
    nodes_.push_back({duration, 0, {}, false, -1});
    return static_cast<int>(nodes_.size()) - 1;
  }
  void Need(int node, int what, bool delivered = false) {
    nodes_[static_cast<size_t>(node)].needs.push_back({what, delivered});
  }
  int64_t End(int v) {
    Node& node = nodes_[static_cast<size_t>(v)];
    if (node.end >= 0) return node.end;
    int64_t start = 0;
    for (const auto& [need, delivered] : node.needs) {
      const int64_t end = End(need);
      start = std::max(start, end + (delivered ? nodes_[static_cast<size_t>(need)].after_end : 0));
    }
    return node.end = start + node.duration;
  }

  int64_t DurationOf(ActionKind kind, int stage) const {
    return costs_.Of(kind, s_.SliceOf(stage)).count();
  }

  /// All repetitions of the body, less what does not exist; compute actions follow each other.
  void LayOut(int rank, int steps) {
    const auto& body = s_.body[static_cast<size_t>(rank)];
    int last = -1;
    for (int block = -40; block < steps + 40; ++block) {
      for (size_t i = 0; i < body.size(); ++i) {
        const auto number = [&](const Action& a) {
          return a.microbatch + block * (HasMicrobatch(a.kind) ? s_.microbatches : 1);
        };
        const auto exists = [&](const Action& a) {
          const int64_t end = HasMicrobatch(a.kind) ? int64_t{steps} * s_.microbatches : steps;
          return number(a) >= 0 && number(a) < end;
        };
        const Action& a = body[i];
        if (a.kind == ActionKind::kAllReduce) {
          if (exists(a)) collectives_[rank].push_back({a.stage, number(a)});
          continue;
        }
        const bool pair = a.overlaps_next;
        const bool both = pair && exists(a) && exists(body[i + 1]);
        if (!exists(a)) continue;
        int node = -1;
        if (both) {
          const Action& b = body[i + 1];
          const bool given = b.kind == ActionKind::kBackward && !costs_.overlap.empty();
          node = Add(given ? costs_.overlap[static_cast<size_t>(s_.SliceOf(a.stage))].count()
                           : DurationOf(a.kind, a.stage) + DurationOf(b.kind, b.stage));
          at_[{b.kind, b.stage, number(b)}] = node;
        } else {
          node = Add(DurationOf(a.kind, a.stage));
        }
        at_[{a.kind, a.stage, number(a)}] = node;
        nodes_[static_cast<size_t>(node)].on_compute = true;
        if (last >= 0) Need(node, last);
        last = node;
        order_[rank].push_back(node);
        what_[node].push_back({a.kind, a.stage, number(a)});
        if (both) {
          what_[node].push_back({body[i + 1].kind, body[i + 1].stage, number(body[i + 1])});
          ++i;
        }
      }
    }
  }

  using Key = std::tuple<ActionKind, int, int64_t>;

  int Gradient(int stage, int64_t i) const {
    const auto fused = at_.find({ActionKind::kBackward, stage, i});
    return fused != at_.end() ? fused->second : at_.at({ActionKind::kBackwardInput, stage, i});
  }

  /// Each result goes to the neighbour: by pointer on one rank, else as a message in the lane of
  /// its sender, receiver and payload, in the order in which they were produced.
  void AddData() {
    std::map<std::tuple<int, int, bool>, int> lanes;
    for (int rank = 0; rank < s_.ranks; ++rank) {
      for (const int node : order_[rank]) {
        for (const auto& [kind, stage, i] : what_[node]) {
          const bool forward = kind == ActionKind::kForward;
          if (kind == ActionKind::kBackwardWeight) Need(node, Gradient(stage, i));
          if (!forward && !YieldsInputGradient(kind)) continue;
          if (!forward) {
            const int own = at_.at({ActionKind::kForward, stage, i});
            if (own != node) Need(node, own);
          }
          if (forward ? s_.IsLast(stage) : s_.IsFirst(stage)) continue;
          const int next = forward ? stage + 1 : stage - 1;
          const int user = forward ? at_.at({kind, next, i}) : Gradient(next, i);
          const int receiver = s_.placement[static_cast<size_t>(next)];
          if (receiver == rank) {
            if (user != node) Need(user, node);
            continue;
          }
          const int message =
              Add(TransferTime(costs_.activation_bytes, costs_.p2p_bandwidth).count());
          nodes_[static_cast<size_t>(message)].after_end = costs_.p2p_latency.count();
          Need(message, node);
          Need(user, message, true);
          int& last = lanes.try_emplace({rank, receiver, forward}, -1).first->second;
          if (last >= 0) Need(message, last);
          last = message;
        }
      }
    }
  }

  void AddCollectives(int steps) {
    for (size_t g = 0; g < s_.groups.size(); ++g) {
      for (int64_t t = 0; t < steps; ++t) {
        const int node = Add(reduction_);
        collective_[{static_cast<int>(g), t}] = node;
        for (const int stage : s_.groups[g].stages) {
          for (int64_t i = t * s_.microbatches; i < (t + 1) * s_.microbatches; ++i) {
            if (s_.StreamOfMicrobatch(i) != s_.StreamOf(stage)) continue;
            const auto w = at_.find({ActionKind::kBackwardWeight, stage, i});
            Need(node, w != at_.end() ? w->second : Gradient(stage, i));
          }
          Need(at_.at({ActionKind::kUpdate, stage, t}), node);
        }
      }
    }
    for (const auto& [rank, list] : collectives_) {
      for (size_t k = 1; k < list.size(); ++k) {
        Need(collective_.at(list[k]), collective_.at(list[k - 1]));
      }
    }
  }

  const Schedule& s_;
  const Costs& costs_;
  int64_t reduction_;
  std::vector<Node> nodes_;
  std::map<Key, int> at_;
  std::map<int, std::vector<Key>> what_;
  std::map<int, std::vector<int>> order_;
  std::map<int, std::vector<std::pair<int, int64_t>>> collectives_;
  std::map<std::pair<int, int64_t>, int> collective_;
};

TEST(Property, SimulatorIsTheLongestPath) {
  for (uint64_t n = 0; n < 1500; ++n) {
    Luck luck(11, n);
    const Schedule schedule = RandomFlush(luck);
    const int steps = luck.Between(1, 3);
    const Costs costs = RandomCosts(luck, schedule.stages, luck.Chance(50));
    const int64_t reduction = luck.Below(500);
    const Program program(schedule, steps);
    const std::vector<Nanoseconds> reductions(schedule.groups.size(), Nanoseconds{reduction});
    const Simulation s = Simulate(program, ActionTimes(program, costs, reductions));
    ASSERT_EQ(s.metrics.makespan.count(), LongestPath(schedule, costs, steps, reduction).Makespan())
        << n;
  }
}

TEST(Property, MoreLatencyNeverShortens) {
  for (uint64_t n = 0; n < 300; ++n) {
    Luck luck(12, n);
    const Program program(RandomFlush(luck), luck.Between(1, 3));
    Costs costs = RandomCosts(luck, program.schedule().stages, true);
    int64_t last = -1;
    for (int more = 0; more < 4; ++more) {
      costs.p2p_latency += Nanoseconds{luck.Below(700)};
      const int64_t makespan =
          Simulate(program, ActionTimes(program, costs)).metrics.makespan.count();
      ASSERT_GE(makespan, last) << n;
      last = makespan;
    }
  }
}

TEST(Property, RenumberingRanksChangesNothing) {
  for (uint64_t n = 0; n < 300; ++n) {
    Luck luck(13, n);
    const Schedule schedule = RandomFlush(luck);
    const Costs costs = RandomCosts(luck, schedule.stages, true);
    std::vector<int> place(static_cast<size_t>(schedule.ranks));
    std::iota(place.begin(), place.end(), 0);
    for (size_t i = place.size(); i-- > 1;) {
      std::swap(place[i], place[static_cast<size_t>(luck.Below(static_cast<int64_t>(i) + 1))]);
    }
    Schedule other = schedule;
    for (int& rank : other.placement) rank = place[static_cast<size_t>(rank)];
    for (size_t r = 0; r < place.size(); ++r) {
      other.body[static_cast<size_t>(place[r])] = schedule.body[r];
    }
    const Program a(schedule, 2);
    const Program b(other, 2);
    const Simulation x = Simulate(a, ActionTimes(a, costs));
    const Simulation y = Simulate(b, ActionTimes(b, costs));
    ASSERT_EQ(x.metrics.makespan, y.metrics.makespan) << n;
    ASSERT_EQ(x.steady.step_time, y.steady.step_time) << n;
    for (size_t r = 0; r < place.size(); ++r) {
      ASSERT_EQ(x.metrics.ranks[r].totals, y.metrics.ranks[static_cast<size_t>(place[r])].totals);
    }
  }
}

// The event simulator and the maximum cycle ratio know nothing of each other. A run is periodic
// behind a transient, with the critical cycles' common period: looked for with ever longer runs.
TEST(Property, LongRunsTakeTheMaximumCycleRatio) {
  for (uint64_t n = 0; n < 5000; ++n) {
    Luck luck(14, n);
    const Program program(RandomEndless(luck), 1);
    const bool bandwidth = luck.Chance(40);
    const Costs costs = RandomCosts(luck, program.schedule().stages, bandwidth);
    const std::vector<Nanoseconds> reductions(program.schedule().groups.size(),
                                              Nanoseconds{luck.Below(500)});
    const ActionTimes times(program, costs, reductions);
    const StepTime exact = ExactSteadyState(program, times).step_time;
    const auto makespan = [&](int64_t steps) {
      return Simulate(program.WithSteps(steps), times).metrics.makespan.count();
    };
    bool agree = false;
    for (const auto& [warm, periods] :
         {std::pair(60, 12), std::pair(1000, 60), std::pair(10000, 2520)}) {
      const int64_t steps = periods * exact.denominator;
      const int64_t taken = makespan(warm + steps) - makespan(warm);
      agree = taken * exact.denominator == exact.numerator * steps;
      if (agree) break;
    }
    ASSERT_TRUE(agree) << n;
  }
}

TEST(Property, EndlessBodiesAreTheLongestPathToo) {
  for (uint64_t n = 0; n < 700; ++n) {
    Luck luck(15, n);
    const Schedule schedule = RandomEndless(luck);
    const Costs costs = RandomCosts(luck, schedule.stages, luck.Chance(50));
    const int steps = luck.Between(1, 6);
    const Program program(schedule, steps);
    const std::vector<Nanoseconds> reductions(schedule.groups.size(), Nanoseconds{70});
    const Simulation s = Simulate(program, ActionTimes(program, costs, reductions));
    ASSERT_EQ(s.metrics.makespan.count(), LongestPath(schedule, costs, steps, 70).Makespan()) << n;
  }
}

}  // namespace
}  // namespace pipelag
