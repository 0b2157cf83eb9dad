#include "sim/plan.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "models/error.h"
#include "models/schedule/generators.h"
#include "sim/estimated_run.h"
#include "sim/parallel.h"
#include "sim/simulator.h"

namespace pipelag {
namespace {

using ProgramKey = std::tuple<std::string, int, int, int, bool>;

ProgramKey ProgramKeyOf(const Candidate& candidate) {
  const RunLayout& layout = candidate.layout;
  return {candidate.schedule, layout.pipeline, layout.chunks, layout.microbatches,
          ReducesGradients(layout)};
}

struct Made {
  std::shared_ptr<const PlannedProgram> program;
  std::string refusal;
};

Made MakeProgram(const ProgramKey& key) {
  const auto& [schedule, pipeline, chunks, microbatches, reduces] = key;
  GeneratorOptions options{.ranks = pipeline, .microbatches = microbatches};
  if (chunks > 1) options.chunks = chunks;
  options.reduction = reduces;
  try {
    return {std::make_shared<const PlannedProgram>(Generate(schedule, options)), ""};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

/// All that an estimate depends on, but the number of micro-batches: that only counts FLOPs.
auto EstimateKeyOf(const RunLayout& layout) {
  const Sharding& sharding = layout.sharding;
  return std::tuple(sharding.tensor, sharding.context, sharding.expert, sharding.sequences,
                    sharding.recompute, layout.pipeline, layout.chunks, layout.data,
                    layout.shard_states);
}

/// Distinct keys of the points, with what is made of each on several threads.
template <class Value, class Points, class KeyOf, class Make>
auto MakeAll(const Points& points, int threads, const KeyOf& key_of, const Make& make) {
  using Key = decltype(key_of(points.front()));
  std::map<Key, Value> made;
  std::vector<std::pair<const Key*, Value*>> entries;
  std::vector<const typename Points::value_type*> firsts;
  for (const auto& point : points) {
    const auto [entry, fresh] = made.try_emplace(key_of(point));
    if (!fresh) continue;
    entries.emplace_back(&entry->first, &entry->second);
    firsts.push_back(&point);
  }
  ForEachInParallel(entries.size(), threads,
                    [&](size_t i) { *entries[i].second = make(*entries[i].first, *firsts[i]); });
  return made;
}

bool AreEqual(const Schedule& a, const Schedule& b) {
  return a.ranks == b.ranks && a.stages == b.stages && a.streams == b.streams &&
         a.microbatches == b.microbatches && a.policy == b.policy && a.placement == b.placement &&
         a.body == b.body && a.groups.size() == b.groups.size();
}

/// Leaves out what lays out the same run as a point before it: two schedules may be one.
void RemoveEqual(std::vector<PlanPoint>& points) {
  std::map<const PlannedProgram*, const PlannedProgram*> same;  // the first that is equal
  std::map<std::tuple<int, int, int>, std::vector<const PlannedProgram*>> distinct;
  std::set<std::tuple<decltype(EstimateKeyOf(RunLayout{})), int, const PlannedProgram*>> seen;
  std::erase_if(points, [&](const PlanPoint& point) {
    if (!point.program) return false;
    const auto [entry, fresh] = same.try_emplace(point.program.get(), point.program.get());
    if (fresh) {
      const Schedule& own = point.program->program().schedule();
      auto& alike = distinct[{own.ranks, own.stages, own.microbatches}];
      const auto found = std::find_if(alike.begin(), alike.end(), [&](const PlannedProgram* other) {
        return AreEqual(other->program().schedule(), own);
      });
      if (found == alike.end()) {
        alike.push_back(point.program.get());
      } else {
        entry->second = *found;
      }
    }
    const RunLayout& layout = point.candidate.layout;
    return !seen.emplace(EstimateKeyOf(layout), layout.microbatches, entry->second).second;
  });
}

struct Estimated {
  std::shared_ptr<const Estimate> estimate;
  std::string refusal;
};

/// An estimate as the program can be played with it.
Estimate ForProgram(const PlanPoint& point) {
  Estimate estimate = *point.estimate;
  AddReductionsToUpdates(point.program->program().schedule(), estimate);
  return estimate;
}

void Measure(PlanPoint& point) {
  const Program& program = point.program->program();
  const Estimate estimate = ForProgram(point);
  std::vector<Bytes> peaks;
  try {
    peaks = point.program->held().PeaksOf(program, estimate.memory);
  } catch (const Error&) {  // beyond what any device has
    point.memory = std::numeric_limits<Bytes>::max();
    return;
  }
  const auto fullest = std::max_element(peaks.begin(), peaks.end());
  point.memory = *fullest;
  point.fullest_rank = static_cast<int>(fullest - peaks.begin());
  point.gradient_delay = point.program->gradient_delay();
  point.least_time =
      point.program->LeastStepTime(estimate.costs, ReductionsOf(program.schedule(), estimate));
}

bool Fits(const PlanPoint& point, const PlanQuestion& question) {
  return point.refusal.empty() && point.memory <= question.memory;
}

/// What is known to be reached.
struct Reached {
  Nanoseconds time{0};
  Bytes memory = 0;
  int delay = 0;
};

class Narrowing {
 public:
  Narrowing(const std::vector<PlanPoint>& points, const PlanQuestion& question, int threads,
            StepTimes& times)
      : points_(points), question_(question), threads_(threads), times_(times) {
    times_.resize(points.size());
    for (size_t i = 0; i < points.size(); ++i) {
      if (Fits(points[i], question)) open_.push_back(i);
    }
  }

  std::vector<size_t> Narrow() {
    if (question_.ranked) SimulateRanked();
    for (const size_t count : kRounds) {
      SimulateAll(Promising(count));
      std::erase_if(open_, [&](size_t i) { return !times_[i] && Beaten(points_[i]); });
    }
    return open_;
  }

 private:
  /// Points simulated to know what to beat, round by round.
  static constexpr size_t kRounds[] = {128, 512};
  static constexpr size_t kBands = 16;

  void SimulateAll(const std::vector<size_t>& chosen) {
    std::vector<size_t> fresh;
    for (const size_t i : chosen) {
      if (!times_[i]) fresh.push_back(i);
    }
    ForEachInParallel(fresh.size(), threads_,
                      [&](size_t at) { times_[fresh[at]] = SimulatePoint(points_[fresh[at]]); });
    const std::vector<size_t> front = ParetoFront(points_, times_);
    front_.clear();
    for (const size_t i : front) {
      front_.push_back({*times_[i], points_[i].memory, points_[i].gradient_delay});
    }
    const std::vector<size_t> ranking = Ranking(points_, times_);
    if (ranking.size() >= question_.top && question_.top > 0) {
      slowest_wanted_ = *times_[ranking[question_.top - 1]];
    }
  }

  void SimulateRanked() {
    std::vector<size_t> ranked;
    for (const size_t i : open_) {
      if (question_.ranked(points_[i])) ranked.push_back(i);
    }
    SimulateAll(ranked);
    for (const size_t i : ranked) {
      if (!ranked_time_ || *times_[i] < *ranked_time_) ranked_time_ = times_[i];
    }
  }

  /// The fastest by their bounds, of all and of each band of memory.
  std::vector<size_t> Promising(size_t count) const {
    std::vector<size_t> by_time;
    for (const size_t i : open_) {
      if (!times_[i]) by_time.push_back(i);
    }
    std::vector<size_t> by_memory = by_time;
    const auto sort = [](std::vector<size_t>& order, const auto& key) {
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return std::pair(key(a), a) < std::pair(key(b), b); });
    };
    const auto time = [&](size_t i) { return points_[i].least_time; };
    sort(by_time, time);
    sort(by_memory, [&](size_t i) { return points_[i].memory; });
    std::vector<size_t> chosen(by_time.begin(), by_time.begin() + static_cast<ptrdiff_t>(std::min(
                                                                      by_time.size(), count / 2)));
    for (size_t band = 0; band < kBands; ++band) {
      const auto at = [&](size_t edge) {
        return by_memory.begin() + static_cast<ptrdiff_t>(by_memory.size() * edge / kBands);
      };
      std::vector<size_t> own(at(band), at(band + 1));
      sort(own, time);
      own.resize(std::min(own.size(), count / 2 / kBands));
      chosen.insert(chosen.end(), own.begin(), own.end());
    }
    std::sort(chosen.begin(), chosen.end());
    chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
    return chosen;
  }

  bool Beaten(const PlanPoint& point) const {
    if (!slowest_wanted_ || point.least_time <= *slowest_wanted_) return false;
    if (ranked_time_ && point.least_time <= *ranked_time_) return false;
    return std::any_of(front_.begin(), front_.end(), [&](const Reached& reached) {
      const bool as_good = reached.time <= point.least_time && reached.memory <= point.memory &&
                           reached.delay <= point.gradient_delay;
      const bool better = reached.time < point.least_time || reached.memory < point.memory ||
                          reached.delay < point.gradient_delay;
      return as_good && better;
    });
  }

  const std::vector<PlanPoint>& points_;
  const PlanQuestion& question_;
  int threads_;
  StepTimes& times_;
  std::vector<size_t> open_;
  std::vector<Reached> front_;
  std::optional<Nanoseconds> slowest_wanted_;  ///< of the fastest so far
  std::optional<Nanoseconds> ranked_time_;
};

}  // namespace

std::vector<PlanPoint> AssessCandidates(const std::vector<Candidate>& candidates,
                                        const Estimator& estimator, int threads) {
  if (candidates.empty()) return {};
  const auto programs =
      MakeAll<Made>(candidates, threads, ProgramKeyOf,
                    [](const ProgramKey& key, const Candidate&) { return MakeProgram(key); });
  std::vector<PlanPoint> points;
  for (const Candidate& candidate : candidates) {
    PlanPoint point;
    point.candidate = candidate;
    const Made& made = programs.at(ProgramKeyOf(candidate));
    point.refusal = made.refusal;
    point.program = made.program;
    if (made.program) {
      const Schedule& schedule = made.program->program().schedule();
      point.candidate.layout.chunks = schedule.stages / schedule.ranks;
    }
    points.push_back(std::move(point));
  }
  RemoveEqual(points);
  const auto estimates = MakeAll<Estimated>(
      points, threads, [](const PlanPoint& point) { return EstimateKeyOf(point.candidate.layout); },
      [&](const auto&, const PlanPoint& point) -> Estimated {
        try {
          return {std::make_shared<const Estimate>(estimator(point.candidate.layout)), ""};
        } catch (const Error& error) {
          return {nullptr, error.what()};
        }
      });
  ForEachInParallel(points.size(), threads, [&](size_t i) {
    PlanPoint& point = points[i];
    const Estimated& own = estimates.at(EstimateKeyOf(point.candidate.layout));
    if (point.refusal.empty()) point.refusal = own.refusal;
    if (!point.refusal.empty()) return;
    point.estimate = own.estimate;
    Measure(point);
  });
  return points;
}

Nanoseconds SimulatePoint(const PlanPoint& point) {
  const Program& program = point.program->program();
  const Estimate estimate = ForProgram(point);
  const ActionTimes times(program, estimate.costs, ReductionsOf(program.schedule(), estimate));
  return Simulate(program, times, {.most_actions_for_critical_cycle = 0})
      .steady.step_time.RoundedUp();
}

std::vector<size_t> PointsToSimulate(const std::vector<PlanPoint>& points,
                                     const PlanQuestion& question, int threads, StepTimes& times) {
  return Narrowing(points, question, threads, times).Narrow();
}

std::vector<size_t> Ranking(const std::vector<PlanPoint>& points, const StepTimes& times) {
  std::vector<size_t> order;
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i]) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::tuple(*times[i], points[i].memory, points[i].gradient_delay, i);
    };
    return key(a) < key(b);
  });
  return order;
}

std::optional<size_t> PlaceOf(size_t point, const std::vector<PlanPoint>& points,
                              const PlanQuestion& question, const StepTimes& times) {
  if (!times[point]) return std::nullopt;
  size_t before = 0;
  for (const size_t other : Ranking(points, times)) {
    if (other == point) break;
    ++before;
  }
  for (size_t other = 0; other < points.size(); ++other) {
    if (!times[other] && Fits(points[other], question) &&
        points[other].least_time <= *times[point]) {
      return std::nullopt;
    }
  }
  return before;
}

std::vector<size_t> ParetoFront(const std::vector<PlanPoint>& points, const StepTimes& times) {
  std::vector<size_t> front;
  for (const size_t i : Ranking(points, times)) {
    const auto figures = [&](size_t of) {
      return std::tuple(*times[of], points[of].memory, points[of].gradient_delay);
    };
    // Whatever beats it stands before it in the ranking, and on the front or behind one that is.
    const bool beaten = std::any_of(front.begin(), front.end(), [&](size_t other) {
      return *times[other] <= *times[i] && points[other].memory <= points[i].memory &&
             points[other].gradient_delay <= points[i].gradient_delay &&
             figures(other) != figures(i);
    });
    if (!beaten) front.push_back(i);
  }
  return front;
}

}  // namespace pipelag
