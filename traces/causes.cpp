// Builds the graph of what had to end before what from spans alone, and picks each action's last.
#include "traces/causes.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "models/error.h"

namespace pipelag {
namespace {

/// A message or an action by (stage, micro-batch), for each payload in a table of its own.
using Place = std::pair<int, int64_t>;

/// Something found by its place; of several the first.
class Table {
 public:
  void Add(Place place, int item) { rows_.emplace_back(place, item); }
  void Sort() { std::stable_sort(rows_.begin(), rows_.end(), Before); }
  /// −1 if there is none.
  int Find(Place place) const {
    const auto row = std::lower_bound(rows_.begin(), rows_.end(), Row{place, 0}, Before);
    return row != rows_.end() && row->first == place ? row->second : -1;
  }

 private:
  using Row = std::pair<Place, int>;
  static bool Before(const Row& a, const Row& b) { return a.first < b.first; }
  std::vector<Row> rows_;
};

/// The hop by which the result of an action reaches another.
struct Hop {
  int cause = -1;
  Nanoseconds wire_start{0};
  Nanoseconds wire_end{0};
  Nanoseconds delivered{0};
};

class Finder {
 public:
  explicit Finder(const Trace& trace) : trace_(trace) {
    found_.lanes.resize(static_cast<size_t>(trace.ranks));
    CollectActions();
    CollectTransfers();
    BuildLanes();
  }

  Causes Find() {
    std::vector<int> order(raw_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      const CausedAction& x = Raw(a);
      const CausedAction& y = Raw(b);
      return std::tie(x.start, x.end) < std::tie(y.start, y.end);
    });
    state_.assign(raw_.size(), State::kNew);
    place_.assign(raw_.size(), -1);
    for (const int action : order) Resolve(action);
    for (auto& lane : found_.lanes) {
      for (int& action : lane) action = place_[static_cast<size_t>(action)];
    }
    Measure();
    return std::move(found_);
  }

 private:
  enum class State : uint8_t { kNew, kOpen, kDone };

  CausedAction& Raw(int action) { return raw_[static_cast<size_t>(action)]; }
  const CausedAction& Raw(int action) const { return raw_[static_cast<size_t>(action)]; }
  const Span& SpanAt(size_t index) const { return trace_.spans[index]; }

  void CollectActions() {
    for (size_t i = 0; i < trace_.spans.size(); ++i) {
      const Span& span = SpanAt(i);
      CHECK(span.rank >= 0 && span.rank < trace_.ranks);
      if (IsSend(span.kind) || IsReceive(span.kind)) continue;
      const int action = static_cast<int>(raw_.size());
      CausedAction caused;
      caused.span = i;
      caused.rank = span.rank;
      caused.start = span.start;
      caused.end = std::max(span.start, span.end);
      caused.pair = i + 1 < trace_.spans.size() && AreHalves(span, SpanAt(i + 1));
      raw_.push_back(caused);
      Register(span, action);
      if (caused.pair) Register(SpanAt(++i), action);
    }
    for (Table& table : made_) table.Sort();
  }

  void Register(const Span& span, int action) {
    const Place place{span.stage, span.microbatch};
    if (IsForward(span.kind)) made_[0].Add(place, action);
    if (YieldsInputGradient(span.kind)) made_[1].Add(place, action);
    if (YieldsWeightGradient(span.kind)) {
      gradients_[{span.rank, StepOf(span, trace_)}].push_back(action);
    }
    if (span.kind == ActionKind::kAllReduce) {
      reductions_[{span.rank, span.microbatch}].push_back(action);
      members_[place].push_back(span.rank);
    }
  }

  void CollectTransfers() {
    for (size_t i = 0; i < trace_.spans.size(); ++i) {
      const Span& span = SpanAt(i);
      const Place place{span.stage, span.microbatch};
      const size_t payload =
          span.kind == ActionKind::kSendForward || span.kind == ActionKind::kReceiveForward ? 0 : 1;
      if (IsSend(span.kind)) sent_[payload].Add(place, static_cast<int>(i));
      if (IsReceive(span.kind)) received_[payload].Add(place, static_cast<int>(i));
    }
    for (auto* tables : {&sent_, &received_}) {
      for (Table& table : *tables) table.Sort();
    }
  }

  void BuildLanes() {
    std::vector<int> reduce(found_.lanes.size(), -1);
    for (size_t i = 0; i < raw_.size(); ++i) {
      const auto rank = static_cast<size_t>(raw_[i].rank);
      if (SpanAt(raw_[i].span).kind == ActionKind::kAllReduce) {
        raw_[i].before = reduce[rank];
        reduce[rank] = static_cast<int>(i);
      } else {
        std::vector<int>& lane = found_.lanes[rank];
        raw_[i].before = lane.empty() ? -1 : lane.back();
        lane.push_back(static_cast<int>(i));
      }
    }
  }

  /// What must have ended before `action`, its lane's own first.
  void Prerequisites(int action, std::vector<int>& all) const {
    all.clear();
    const CausedAction& caused = Raw(action);
    if (caused.before >= 0) all.push_back(caused.before);
    for (size_t i = caused.span; i <= caused.span + (caused.pair ? 1 : 0); ++i) {
      const Span& span = SpanAt(i);
      if (span.kind == ActionKind::kAllReduce) {
        for (const int rank : members_.at({span.stage, span.microbatch})) {
          AddLast(gradients_, {rank, span.microbatch}, caused.end, all);
        }
      } else if (span.kind == ActionKind::kUpdate) {
        AddLast(reductions_, {span.rank, span.microbatch}, caused.start, all);
      } else if (const int producer = ProducerOf(span); producer >= 0) {
        all.push_back(producer);
      }
    }
  }

  int ProducerOf(const Span& span) const {
    if (IsForward(span.kind)) return made_[0].Find({span.stage - 1, span.microbatch});
    if (YieldsInputGradient(span.kind)) return made_[1].Find({span.stage + 1, span.microbatch});
    return -1;
  }

  /// Of the actions at `place` the one that ends last, but not after `limit`.
  void AddLast(const std::map<Place, std::vector<int>>& table, Place place, Nanoseconds limit,
               std::vector<int>& all) const {
    const auto row = table.find(place);
    if (row == table.end()) return;
    int last = -1;
    for (const int action : row->second) {
      if (Raw(action).end <= limit && (last < 0 || Raw(action).end >= Raw(last).end)) last = action;
    }
    if (last >= 0) all.push_back(last);
  }

  /// Depth first, so that even among actions of no length each comes behind its cause; a circle, as
  /// only a false trace can hold, is cut where it closes.
  void Resolve(int action) {
    std::vector<int> stack{action};
    std::vector<int> before;
    while (!stack.empty()) {
      const int top = stack.back();
      State& state = state_[static_cast<size_t>(top)];
      if (state == State::kDone) {
        stack.pop_back();
        continue;
      }
      state = State::kOpen;
      Prerequisites(top, before);
      const auto open = std::find_if(before.begin(), before.end(), [&](int b) {
        return state_[static_cast<size_t>(b)] == State::kNew && Raw(b).end <= Limit(top);
      });
      if (open != before.end()) {
        stack.push_back(*open);
        continue;
      }
      Decide(top, before);
      state = State::kDone;
      stack.pop_back();
    }
  }

  Nanoseconds Limit(int action) const {
    const CausedAction& caused = Raw(action);
    return SpanAt(caused.span).kind == ActionKind::kAllReduce ? caused.end : caused.start;
  }

  void Decide(int action, const std::vector<int>& before) {
    CausedAction& caused = Raw(action);
    Hop last;
    for (const int b : before) {
      if (state_[static_cast<size_t>(b)] != State::kDone || Raw(b).end > Limit(action)) continue;
      const Hop hop = b == caused.before ? Direct(b) : HopTo(action, b);
      if (last.cause < 0 || hop.delivered > last.delivered) last = hop;
    }
    if (last.cause < 0) {
      last.wire_start = last.wire_end = last.delivered = caused.start;
    } else {
      caused.cause = place_[static_cast<size_t>(last.cause)];
    }
    caused.wire_start = last.wire_start;
    caused.wire_end = last.wire_end;
    caused.delivered = last.delivered;
    place_[static_cast<size_t>(action)] = static_cast<int>(found_.actions.size());
    found_.actions.push_back(caused);
    int& lane_before = found_.actions.back().before;
    if (lane_before >= 0) lane_before = place_[static_cast<size_t>(lane_before)];
  }

  Hop Direct(int cause) const {
    const Nanoseconds end = Raw(cause).end;
    return {cause, end, end, end};
  }

  Hop HopTo(int action, int cause) const {
    const CausedAction& from = Raw(cause);
    const CausedAction& to = Raw(action);
    if (from.rank == to.rank || SpanAt(to.span).kind == ActionKind::kAllReduce) {
      return Direct(cause);
    }
    const Span* consumer = &SpanAt(to.span);
    if (ProducerOf(*consumer) != cause) consumer = &SpanAt(to.span + 1);
    const size_t payload = IsForward(consumer->kind) ? 0 : 1;
    const int sender = consumer->stage + (payload == 0 ? -1 : 1);
    const int send = sent_[payload].Find({sender, consumer->microbatch});
    const int receive = received_[payload].Find({consumer->stage, consumer->microbatch});
    Hop hop = Direct(cause);
    if (receive >= 0) {
      hop.delivered = SpanAt(static_cast<size_t>(receive)).end;
    } else if (send >= 0 || to.before < 0 || from.end > Raw(to.before).end) {
      hop.delivered = to.start;
    }
    hop.delivered = std::clamp(hop.delivered, from.end, to.start);
    if (send >= 0) {
      const Span& span = SpanAt(static_cast<size_t>(send));
      hop.wire_start = std::clamp(span.start, from.end, hop.delivered);
      hop.wire_end = std::clamp(span.end, hop.wire_start, hop.delivered);
    }
    return hop;
  }

  void Measure() {
    bool any = false;
    for (size_t i = 0; i < found_.actions.size(); ++i) {
      const CausedAction& action = found_.actions[i];
      if (SpanAt(action.span).kind == ActionKind::kAllReduce) continue;
      found_.start = any ? std::min(found_.start, action.start) : action.start;
      if (!any || action.end > found_.end) {
        found_.end = action.end;
        found_.last = static_cast<int>(i);
      }
      any = true;
    }
  }

  const Trace& trace_;
  Causes found_;
  std::vector<CausedAction> raw_;  ///< in the order of the spans
  std::vector<State> state_;
  std::vector<int> place_;                        ///< where an action stands in found_.actions
  std::array<Table, 2> made_;                     ///< by payload: who produces it
  std::array<Table, 2> sent_;                     ///< spans
  std::array<Table, 2> received_;                 ///< spans
  std::map<Place, std::vector<int>> gradients_;   ///< by rank and step
  std::map<Place, std::vector<int>> reductions_;  ///< by rank and step
  std::map<Place, std::vector<int>> members_;     ///< ranks, by group and step
};

}  // namespace

Causes FindCauses(const Trace& trace) { return Finder(trace).Find(); }

}  // namespace pipelag
