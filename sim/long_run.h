// A run of any length for the price of a short one. Between two repetitions of the body a run is in
// a state (PlayState); all that follows is a function of it in which times only meet in maxima and
// sums. So
//  * if the state comes back with every time later by the same, what was played in between repeats
//    for ever, and the step time is known exactly;
//  * if every time grew by an amount of its own, and by the same amount in the period before, the
//    run may go on like that for a while, as ranks that are faster than the slowest one do while
//    they use up their lead. Times are convex in the number of periods gone by, being maxima of
//    straight lines: if they lie on one line in two periods and in a later one, they do in all in
//    between.
// Skipped repetitions are added to the figures and not played. Knows nothing of noise or clusters,
// under which nothing repeats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/schedule/play_state.h"
#include "traces/metrics.h"

namespace pipelag {

/// All that was played in the `steps` repetitions of the body before `block` comes again for ever.
struct Repetition {
  StepTime step_time;  ///< exact
  int64_t block = 0;
  int64_t steps = 0;
};

/// The observer is told of actions as Play says, and of repetitions that are skipped:
/// Repeat(since, times): once more all that was noted since, so many times; Noted(): what `since`
/// is.
template <class Costs, class Observer>
class LongRun {
 public:
  using Player = Play<Costs, Observer>;

  /// `play` stands at its start and tells `observer`.
  LongRun(const Program& program, Player& play, Observer& observer)
      : program_(program), play_(play), observer_(observer), block_(program.first_whole_block()) {}

  /// To the end, or until nothing can go on.
  std::vector<Blocked> Run() {
    while (PlayOn()) {
      if (const std::optional<Period> period = FindPeriod()) SkipAhead(*period);
    }
    return play_.Run();
  }

  /// Where the state comes back, if it does within so many repetitions.
  std::optional<Repetition> FindRepetition(int64_t most_repetitions) {
    for (int64_t i = 0; i < most_repetitions && PlayOn(); ++i) {
      const std::optional<Period> period = FindPeriod();
      if (!period || !period->even) continue;
      const int64_t time = period->later.front();
      const int64_t divisor = std::gcd(time, period->steps);
      return Repetition{{time / divisor, period->steps / divisor}, block_, period->steps};
    }
    return std::nullopt;
  }

 private:
  struct Cut {
    PlayState state;
    std::decay_t<decltype(std::declval<Observer>().Noted())> noted;
  };
  struct Period {
    int64_t steps = 0;
    std::vector<int64_t> later;  ///< by how much each time of the state grows
    bool even = false;           ///< all by the same
  };
  /// Beyond so many steps no period is looked for.
  static constexpr size_t kMostCuts = 256;

  /// One repetition more; false at the end of what repeats.
  bool PlayOn() {
    if (block_ >= program_.last_whole_block() || !play_.RunUntil(++block_)) return false;
    cuts_.push_back({play_.StateAt(block_), observer_.Noted()});
    if (cuts_.size() > kMostCuts) cuts_.pop_front();
    ++uneven_pause_;
    return true;
  }

  const PlayState& State(size_t back) const { return cuts_[cuts_.size() - 1 - back].state; }

  std::optional<Period> FindPeriod() {
    for (size_t steps = 1; steps < cuts_.size(); ++steps) {
      if (State(steps).times.size() != State(0).times.size()) continue;
      const bool even = GrewEvenly(steps);
      // Whether a growth holds is dear to find out where it does not hold for long.
      const bool steady = !even && uneven_pause_ >= kPause && GrewAsBefore(steps);
      if ((!even && !steady) || State(0).things != State(steps).things) continue;
      Period period{static_cast<int64_t>(steps), State(0).times, even};
      for (size_t i = 0; i < period.later.size(); ++i) period.later[i] -= State(steps).times[i];
      return period;
    }
    return std::nullopt;
  }

  bool GrewEvenly(size_t steps) const {
    const std::vector<int64_t>& now = State(0).times;
    const std::vector<int64_t>& then = State(steps).times;
    const int64_t by = now.front() - then.front();
    return std::equal(now.begin(), now.end(), then.begin(),
                      [by](int64_t a, int64_t b) { return a - b == by; });
  }

  bool GrewAsBefore(size_t steps) const {
    if (2 * steps >= cuts_.size() || State(2 * steps).things != State(steps).things) return false;
    const std::vector<int64_t>& now = State(0).times;
    const std::vector<int64_t>& then = State(steps).times;
    const std::vector<int64_t>& before = State(2 * steps).times;
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] - then[i] != then[i] - before[i]) return false;
    }
    return true;
  }

  void SkipAhead(const Period& period) {
    const int64_t left = (program_.last_whole_block() - block_) / period.steps;
    const int64_t periods = period.even ? left : LongestGrowth(period, left);
    uneven_pause_ = 0;
    if (periods == 0) return;
    const auto since = cuts_.size() - 1 - static_cast<size_t>(period.steps);
    observer_.Repeat(cuts_[since].noted, periods);
    play_.Skip(block_, periods * period.steps, Times(period.later, periods));
    block_ += periods * period.steps;
    cuts_.clear();
  }

  /// In how many periods, `most` at most, all times go on growing as they did.
  int64_t LongestGrowth(const Period& period, int64_t most) {
    const auto holds = [&](int64_t periods) {  // for the last of so many
      Observer unheard = observer_;
      Player ahead(play_, unheard);
      ahead.Skip(block_, (periods - 1) * period.steps, Times(period.later, periods - 1));
      const int64_t block = block_ + periods * period.steps;
      if (!ahead.RunUntil(block)) return false;
      const PlayState reached = ahead.StateAt(block);
      if (reached.things != State(0).things) return false;
      const std::vector<int64_t> grown = Times(period.later, periods);
      for (size_t i = 0; i < grown.size(); ++i) {
        if (reached.times[i] != State(0).times[i] + grown[i]) return false;
      }
      return true;
    };
    int64_t good = 0;
    int64_t bad = most + 1;
    while (good + 1 < bad) {
      const int64_t middle = good == 0 && bad == most + 1 ? most : good + (bad - good) / 2;
      (holds(middle) ? good : bad) = middle;
    }
    return good;
  }

  static std::vector<int64_t> Times(std::vector<int64_t> later, int64_t periods) {
    for (int64_t& time : later) time *= periods;
    return later;
  }

  static constexpr int64_t kPause = 32;

  const Program& program_;
  Player& play_;
  Observer& observer_;
  int64_t block_;
  std::deque<Cut> cuts_;
  int64_t uneven_pause_ = 0;
};

}  // namespace pipelag
