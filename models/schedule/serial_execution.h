// Plays an order with its transfers as ranks would that do one thing after the other: a receive
// waits for its send and, unless sends are eager, a send for its receive. An AR is posted and waits
// for nobody; the U behind it does. Knows no hardware, no seconds.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "models/schedule/deadlock.h"
#include "models/schedule/program.h"

namespace pipelag {

class SerialExecution {
 public:
  /// A run of `steps` of the schedule's given order, whose messages must be complete.
  SerialExecution(const Schedule& schedule, int64_t steps, Sends sends);

  /// Runs to the end or until nothing can go on; then who waits for what, by rank.
  std::vector<Wait> Run();

  /// Per rank what was done, in order; an AR at the moment when all its members had come to it.
  const std::vector<std::vector<RunAction>>& done() const { return done_; }

 private:
  using Message = std::tuple<bool, int, int64_t>;  // forward, receiving stage, micro-batch

  bool Step(int rank);
  bool StepSend(int rank);
  bool StepReceive(int rank);
  void Finish(int rank);
  void CountGradient(const RunAction& action);
  void Collect(int group, int64_t step);
  bool MayUpdate(const RunAction& update) const;
  Wait WaitOf(int rank) const;
  Wait WaitOfUpdate(int rank) const;

  bool Done(int rank) const;
  const RunAction& Head(int rank) const;
  Message MessageOf(const RunAction& transfer) const;
  int PeerOf(const RunAction& transfer) const;
  Place PlaceOf(int rank, const RunAction& action) const;
  int64_t MembersOf(int group) const;

  const Schedule& schedule_;
  Sends sends_;
  std::vector<std::vector<RunAction>> order_;
  std::vector<size_t> next_;
  std::vector<std::vector<RunAction>> done_;
  std::vector<int> queue_;
  std::set<Message> under_way_;                         // sent eagerly, not received
  std::map<std::pair<int, int64_t>, int64_t> missing_;  // posts and gradients, per (group, step)
};

}  // namespace pipelag
