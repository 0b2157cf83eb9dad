// Follows the chain behind every action and takes the difference of two at every gap.
#include "traces/idle.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "models/error.h"
#include "traces/causes.h"
#include "traces/metrics.h"

namespace pipelag {
namespace {

/// In the order in which a gap serves them.
enum Component : size_t {
  kNoise,
  kOverhead,
  kUpdate,
  kContention,
  kBandwidth,
  kLatency,
  kImbalance,
  kStructure,
  kComponents,
};

/// What a chain is made of, in nanoseconds; they add up to its length.
using Composition = std::array<int64_t, kComponents>;

/// What kind of action a median is taken over. The two halves of an OVERLAP are one action.
using WorkKind = std::pair<ActionKind, bool>;

/// Times that actions usually take.
class Usual {
 public:
  Usual(const Trace& trace, const Causes& causes) {
    std::map<std::pair<WorkKind, int>, std::vector<Nanoseconds>> times;
    for (const CausedAction& action : causes.actions) {
      const Span& span = trace.spans[action.span];
      times[{{span.kind, action.pair}, span.stage}].push_back(action.end - action.start);
    }
    for (auto& [key, values] : times) {
      const int64_t median = Median(std::move(values)).RoundedUp().count();
      medians_[key] = median;
      const auto [least, is_new] = least_.try_emplace(key.first, median);
      if (!is_new) least->second = std::min(least->second, median);
    }
  }

  void Add(const Span& span, const CausedAction& action, Composition& chain) const {
    const WorkKind kind{span.kind, action.pair};
    const int64_t median = medians_.at({kind, span.stage});
    const int64_t least = least_.at(kind);
    chain[kStructure] += least;
    chain[kImbalance] += median - least;
    chain[kNoise] += (action.end - action.start).count() - median;
  }

 private:
  std::map<std::pair<WorkKind, int>, int64_t> medians_;
  std::map<WorkKind, int64_t> least_;
};

/// Cuts the steps of a run where it flushes.
class Sections {
 public:
  Sections(const Trace& trace, const Causes& causes) {
    for (const CausedAction& action : causes.actions)
      Number(StepOf(trace.spans[action.span], trace));
    // A step that begins before an earlier one has ended on some rank joins it.
    std::map<int64_t, int64_t> joined;  // from step, up to step
    for (const std::vector<int>& lane : causes.lanes) {
      int64_t newest = 0;
      for (const int index : lane) {
        const Span& span = trace.spans[causes.actions[static_cast<size_t>(index)].span];
        if (!HasMicrobatch(span.kind)) continue;
        const int64_t step = StepOf(span, trace);
        if (step < newest) {
          int64_t& up_to = joined.try_emplace(step, newest).first->second;
          up_to = std::max(up_to, newest);
        }
        newest = std::max(newest, step);
      }
    }
    int64_t reach = 0;
    int section = -1;
    for (auto& [step, number] : sections_) {
      if (section < 0 || step > reach) ++section;
      number = section;
      reach = std::max(reach, step);
      const auto join = joined.find(step);
      if (join != joined.end()) reach = std::max(reach, join->second);
    }
  }

  int Of(const Span& span, const Trace& trace) const { return sections_.at(StepOf(span, trace)); }

 private:
  void Number(int64_t step) { sections_.try_emplace(step, 0); }
  std::map<int64_t, int> sections_;  // by step
};

/// The end of a chain.
struct Chain {
  Composition parts{};
  int64_t in_section = 0;  ///< its structure since it entered the section it ends in
};

class Explainer {
 public:
  explicit Explainer(const Trace& trace)
      : trace_(trace),
        causes_(FindCauses(trace)),
        usual_(trace, causes_),
        sections_(trace, causes_) {
    starts_.reserve(causes_.actions.size());
    ends_.reserve(causes_.actions.size());
    for (const CausedAction& action : causes_.actions) Follow(action);
  }

  std::vector<IdleGap> Gaps() const {
    std::vector<IdleGap> gaps;
    for (size_t rank = 0; rank < causes_.lanes.size(); ++rank)
      AddGaps(static_cast<int>(rank), gaps);
    return gaps;
  }

 private:
  enum class Phase : uint8_t { kFill, kSteady, kDrain };

  const CausedAction& At(int action) const { return causes_.actions[static_cast<size_t>(action)]; }
  const Span& SpanOf(int action) const { return trace_.spans[At(action).span]; }
  int SectionOf(int action) const { return sections_.Of(SpanOf(action), trace_); }

  /// Carries the chain of its cause on to its own end. Causes come first.
  void Follow(const CausedAction& action) {
    Chain chain;
    Nanoseconds from = causes_.start;
    const Span& span = trace_.spans[action.span];
    if (action.cause >= 0) {
      chain = ends_[static_cast<size_t>(action.cause)];
      from = At(action.cause).end;
      if (SectionOf(action.cause) != sections_.Of(span, trace_)) chain.in_section = 0;
    }
    if (span.kind == ActionKind::kAllReduce) {
      starts_.push_back(chain);
      chain.parts[kUpdate] += (action.end - from).count();
      ends_.push_back(chain);
      return;
    }
    if (action.cause >= 0) {
      chain.parts[kContention] += (action.wire_start - from).count();
      chain.parts[kBandwidth] += (action.wire_end - action.wire_start).count();
      chain.parts[kLatency] += (action.delivered - action.wire_end).count();
      from = action.delivered;
    }
    chain.parts[kOverhead] += (action.start - from).count();
    starts_.push_back(chain);
    if (span.kind == ActionKind::kUpdate) {
      chain.parts[kUpdate] += (action.end - action.start).count();
    } else {
      const int64_t before = chain.parts[kStructure];
      usual_.Add(span, action, chain.parts);
      chain.in_section += chain.parts[kStructure] - before;
    }
    ends_.push_back(chain);
  }

  /// For each section the positions, in the rank's lane, of its first gradient and its last F.
  struct Bounds {
    size_t first_gradient = SIZE_MAX;
    size_t last_forward = 0;
  };
  std::map<int, Bounds> BoundsOf(const std::vector<int>& lane) const {
    std::map<int, Bounds> bounds;
    for (size_t i = 0; i < lane.size(); ++i) {
      Bounds& own = bounds[SectionOf(lane[i])];
      const CausedAction& action = At(lane[i]);
      for (size_t half = 0; half <= (action.pair ? 1 : 0); ++half) {
        const ActionKind kind = trace_.spans[action.span + half].kind;
        if (IsForward(kind)) own.last_forward = i;
        if (YieldsInputGradient(kind)) own.first_gradient = std::min(own.first_gradient, i);
      }
    }
    return bounds;
  }

  void AddGaps(int rank, std::vector<IdleGap>& gaps) const {
    const std::vector<int>& lane = causes_.lanes[static_cast<size_t>(rank)];
    const std::map<int, Bounds> bounds = BoundsOf(lane);
    Nanoseconds free = causes_.start;
    Chain here;
    int section = -1;
    for (size_t i = 0; i < lane.size(); ++i) {
      const CausedAction& next = At(lane[i]);
      const int next_section = SectionOf(lane[i]);
      if (next.start > free) {
        const Bounds& own = bounds.at(next_section);
        const Chain& chain = starts_[static_cast<size_t>(lane[i])];
        IdleGap gap{rank, free, next.start, {}};
        if (section >= 0 && section != next_section) {
          gap.shares = Shares(here, chain, Phase::kDrain, chain.in_section);
        } else if (i <= own.first_gradient) {
          gap.shares = Shares(here, chain, Phase::kFill, 0);
        } else {
          gap.shares =
              Shares(here, chain, i > own.last_forward ? Phase::kDrain : Phase::kSteady, 0);
        }
        gaps.push_back(gap);
      }
      section = next_section;
      if (next.end >= free) {
        free = next.end;
        here = ends_[static_cast<size_t>(lane[i])];
      }
    }
    if (causes_.last >= 0 && causes_.end > free) {
      const Chain& chain = ends_[static_cast<size_t>(causes_.last)];
      gaps.push_back({rank, free, causes_.end, Shares(here, chain, Phase::kDrain, 0)});
    }
  }

  /// `new_section`: as much of the structure is the filling of a new section.
  static IdleShares Shares(const Chain& here, const Chain& awaited, Phase phase,
                           int64_t new_section) {
    Composition parts;
    int64_t left = 0;
    for (size_t k = 0; k < kComponents; ++k) {
      parts[k] = awaited.parts[k] - here.parts[k];
      left += parts[k];
    }
    for (int64_t& part : parts) {
      part = std::clamp<int64_t>(part, 0, left);
      left -= part;
    }
    CHECK(left == 0);
    IdleShares shares;
    shares.noise = Nanoseconds{parts[kNoise]};
    shares.overhead = Nanoseconds{parts[kOverhead]};
    shares.update = Nanoseconds{parts[kUpdate]};
    shares.contention = Nanoseconds{parts[kContention]};
    shares.bandwidth = Nanoseconds{parts[kBandwidth]};
    shares.latency = Nanoseconds{parts[kLatency]};
    shares.imbalance = Nanoseconds{parts[kImbalance]};
    const Nanoseconds structure{parts[kStructure]};
    switch (phase) {
      case Phase::kFill:
        shares.warm_up = structure;
        break;
      case Phase::kSteady:
        shares.upstream = structure;
        break;
      case Phase::kDrain:
        shares.warm_up = std::min(structure, Nanoseconds{new_section});
        shares.cool_down = structure - shares.warm_up;
        break;
    }
    return shares;
  }

  const Trace& trace_;
  Causes causes_;
  Usual usual_;
  Sections sections_;
  std::vector<Chain> starts_;  ///< of each action
  std::vector<Chain> ends_;
};

}  // namespace

std::span<const NamedShare> NamedShares() {
  static constexpr NamedShare kShares[] = {
      {"warm-up", &IdleShares::warm_up},     {"cool-down", &IdleShares::cool_down},
      {"upstream", &IdleShares::upstream},   {"latency", &IdleShares::latency},
      {"bandwidth", &IdleShares::bandwidth}, {"contention", &IdleShares::contention},
      {"update", &IdleShares::update},       {"imbalance", &IdleShares::imbalance},
      {"noise", &IdleShares::noise},         {"overhead", &IdleShares::overhead},
  };
  return kShares;
}

Nanoseconds IdleShares::Total() const {
  Nanoseconds total{0};
  for (const NamedShare& named : NamedShares()) total += this->*named.share;
  return total;
}

IdleShares& IdleShares::operator+=(const IdleShares& other) {
  for (const NamedShare& named : NamedShares()) this->*named.share += other.*named.share;
  return *this;
}

std::vector<IdleGap> FindIdleGaps(const Trace& trace) {
  if (AreSorted(trace)) return Explainer(trace).Gaps();
  Trace sorted = trace;
  SortSpans(sorted);
  return Explainer(sorted).Gaps();
}

std::vector<IdleShares> ExplainIdle(const Trace& trace) {
  std::vector<IdleShares> ranks(static_cast<size_t>(trace.ranks));
  for (const IdleGap& gap : FindIdleGaps(trace)) ranks[static_cast<size_t>(gap.rank)] += gap.shares;
  return ranks;
}

}  // namespace pipelag
