#include "models/schedule/greedy_listing.h"

#include <algorithm>
#include <queue>

#include "models/schedule/pipelines.h"

namespace pipelag {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

class Listing {
 public:
  /// Without an `order` by the rules alone.
  Listing(Schedule& schedule, const GivenCosts& costs, const ListingBounds& bounds,
          const ListingRules& rules, const std::vector<std::vector<Action>>* order = nullptr)
      : schedule_(schedule), costs_(costs), bounds_(bounds), rules_(rules), order_(order) {
    const auto stages = static_cast<size_t>(schedule_.stages);
    const auto m = static_cast<size_t>(schedule_.microbatches);
    forward_.assign(stages, std::vector<int64_t>(m, kUnknown));
    gradient_.assign(stages, std::vector<int64_t>(m, kUnknown));
    std::fill(forward_.front().begin(), forward_.front().end(), 0);
    next_.resize(stages);
    ranks_.resize(static_cast<size_t>(schedule_.ranks));
    for (int s = 0; s < schedule_.stages; ++s) {
      RankState& rank = RankOf(s);
      rank.stages.push_back(s);
      for (const auto* times : {&costs_.forward, &costs_.backward_input, &costs_.backward_weight}) {
        rank.left += (*times)[static_cast<size_t>(s)] * schedule_.microbatches;
      }
    }
  }

  /// Fills the bodies; the end of the last action, or kDeadEnd.
  int64_t Run() {
    for (int rank = 0; rank < schedule_.ranks; ++rank) Wake(rank, 0);
    int64_t end = 0;
    while (!wakes_.empty()) {
      const auto [time, rank] = wakes_.top();
      wakes_.pop();
      RankState& state = ranks_[static_cast<size_t>(rank)];
      if (state.waked == time) state.waked = kUnknown;
      if (time < state.free) continue;
      // What it has yet to do takes the rank as long at least.
      if (time + state.left >= bounds_.too_late) return kDeadEnd;
      end = std::max(end, order_ ? Follow(rank, time) : Decide(rank, time));
    }
    const size_t wanted = ranks_.front().stages.size() * 3;
    for (const auto& body : schedule_.body) {
      if (body.size() != wanted * static_cast<size_t>(schedule_.microbatches)) return kDeadEnd;
    }
    return end;
  }

 private:
  struct RankState {
    std::vector<int> stages;
    std::queue<Action> weights;
    int64_t free = 0;
    int64_t left = 0;          // time of what it has not started
    int64_t waked = kUnknown;  // for when it was woken last, unless that is past
    int held = 0;
    size_t followed = 0;  // of its order
  };
  struct Next {
    int forward = 0;
    int gradient = 0;
  };

  /// Once for each time will do: it decides alike until something happens to it.
  void Wake(int rank, int64_t time) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    if (state.waked == time) return;
    state.waked = time;
    wakes_.push({time, rank});
  }

  RankState& RankOf(int stage) {
    return ranks_[static_cast<size_t>(schedule_.placement[static_cast<size_t>(stage)])];
  }

  int64_t ReadyAt(ActionKind kind, int stage) const {
    const auto s = static_cast<size_t>(stage);
    const bool forward = IsForward(kind);
    const int i = forward ? next_[s].forward : next_[s].gradient;
    if (i == schedule_.microbatches) return kUnknown;
    return (forward ? forward_ : gradient_)[s][static_cast<size_t>(i)];
  }

  bool MayBegin(const RankState& rank, int stage) const {
    // What has come in must be able to get through: only the last chunk may take the last places.
    const bool last_chunk = stage == rank.stages.back();
    if (rank.held >= bounds_.limit - (last_chunk ? 0 : rules_.reserve)) return false;
    const Next& next = next_[static_cast<size_t>(stage)];
    return rules_.slope == 0 ||
           next.forward - next.gradient <= rules_.slope * (schedule_.stages - 1 - stage);
  }

  /// The first of the rank's F or I that is ready by `time`; later chunks go first. Lowers `wait`
  /// to the time at which one will be ready that is not yet.
  int FirstReady(ActionKind kind, const RankState& rank, int64_t time, int64_t& wait) const {
    for (size_t c = rank.stages.size(); c-- > 0;) {
      const int stage = rank.stages[c];
      const int64_t ready = ReadyAt(kind, stage);
      if (ready == kUnknown || (IsForward(kind) && !MayBegin(rank, stage))) continue;
      if (ready <= time) return stage;
      wait = std::min(wait, ready);
    }
    return -1;
  }

  /// Starts what the rank does at `time`, if anything; returns when it ends.
  int64_t Decide(int rank, int64_t time) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    int64_t wait = kUnknown;
    int gradient = FirstReady(ActionKind::kBackwardInput, state, time, wait);
    const int forward = FirstReady(ActionKind::kForward, state, time, wait);
    if (forward >= 0 && rules_.forward_first) gradient = -1;
    if (gradient >= 0) return Start(rank, ActionKind::kBackwardInput, gradient, time);
    const int64_t put_off = int64_t{rules_.put_off} * rank;
    if (rules_.put_off >= 0 && static_cast<int64_t>(state.weights.size()) > put_off) {
      return Start(rank, ActionKind::kBackwardWeight, state.weights.front().stage, time);
    }
    if (forward >= 0) return Start(rank, ActionKind::kForward, forward, time);
    if (state.weights.empty()) return 0;  // woken again when something comes in
    const int stage = state.weights.front().stage;
    const int64_t duration = costs_.backward_weight[static_cast<size_t>(stage)];
    if (!rules_.always_fill && wait != kUnknown && time + duration > wait) {
      Wake(rank, wait);
      return 0;
    }
    return Start(rank, ActionKind::kBackwardWeight, stage, time);
  }

  int64_t Follow(int rank, int64_t time) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const auto& order = (*order_)[static_cast<size_t>(rank)];
    if (state.followed < order.size()) {
      const Action& next = order[state.followed];
      const bool room = !IsForward(next.kind) || state.held < bounds_.limit;
      const int64_t ready = ReadyAt(next.kind, next.stage);
      if (room && ready != kUnknown && ready <= time) {
        ++state.followed;
        return Start(rank, next.kind, next.stage, time);
      }
    }
    if (state.weights.empty()) return 0;  // woken again when something comes in
    return Start(rank, ActionKind::kBackwardWeight, state.weights.front().stage, time);
  }

  int64_t Start(int rank, ActionKind kind, int stage, int64_t time);

  Schedule& schedule_;
  const GivenCosts& costs_;
  ListingBounds bounds_;
  ListingRules rules_;
  const std::vector<std::vector<Action>>* order_;
  std::vector<std::vector<int64_t>> forward_;  // when inputs arrive, by stage and micro-batch
  std::vector<std::vector<int64_t>> gradient_;
  std::vector<Next> next_;
  std::vector<RankState> ranks_;
  using TimedRank = std::pair<int64_t, int>;
  std::priority_queue<TimedRank, std::vector<TimedRank>, std::greater<>> wakes_;
};

int64_t Listing::Start(int rank, ActionKind kind, int stage, int64_t time) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  const auto s = static_cast<size_t>(stage);
  auto& body = schedule_.body[static_cast<size_t>(rank)];
  const auto arrive = [&](std::vector<std::vector<int64_t>>& inputs, int to, int i, int64_t end) {
    const int receiver = schedule_.placement[static_cast<size_t>(to)];
    const int64_t at = end + (receiver == rank ? 0 : costs_.latency);
    inputs[static_cast<size_t>(to)][static_cast<size_t>(i)] = at;
    if (receiver != rank) {
      Wake(receiver, std::max(at, ranks_[static_cast<size_t>(receiver)].free));
    }
  };
  if (kind == ActionKind::kForward) {
    const int i = next_[s].forward++;
    body.push_back(MakeAction(kind, stage, i));
    state.free = time + costs_.forward[s];
    ++state.held;
    if (schedule_.IsLast(stage)) {
      gradient_[s][static_cast<size_t>(i)] = state.free;
    } else {
      arrive(forward_, stage + 1, i, state.free);
    }
  } else if (kind == ActionKind::kBackwardInput) {
    const int i = next_[s].gradient++;
    body.push_back(MakeAction(kind, stage, i));
    state.weights.push(MakeAction(ActionKind::kBackwardWeight, stage, i));
    state.free = time + costs_.backward_input[s];
    if (!schedule_.IsFirst(stage)) arrive(gradient_, stage - 1, i, state.free);
  } else {
    body.push_back(state.weights.front());
    state.weights.pop();
    state.free = time + costs_.backward_weight[s];
    --state.held;
  }
  state.left -= state.free - time;
  Wake(rank, state.free);
  return state.free;
}

}  // namespace

int64_t ListGreedily(Schedule& schedule, const GivenCosts& costs, const ListingBounds& bounds,
                     const ListingRules& rules) {
  return Listing(schedule, costs, bounds, rules).Run();
}

int64_t ListInOrder(Schedule& schedule, const GivenCosts& costs, const ListingBounds& bounds,
                    const std::vector<std::vector<Action>>& order) {
  return Listing(schedule, costs, bounds, {}, &order).Run();
}

}  // namespace pipelag
