// A sum of gradients over processes: each of n member ranks adds up an n-th of the values and hands
// the result to the others. Knows no schedule.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/processes/wire.h"
#include "runtime/summation.h"

namespace pipelag {

/// A reduce-scatter and an all-gather, as one collective seen from one rank: it goes on whenever
/// its messages do and never waits. A rank with one summand of N bytes sends and receives
/// 2 · (n − 1) / n · N of them, the least that any all-reduce can do with (Patarasu and Yuan,
/// "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). An owner adds
/// nothing before all summands of its part are there, and then in the order of summation.h: the
/// bits do not depend on when messages come, nor on the number of ranks that hold the summands.
class GradientSum {
 public:
  struct Summand {
    int rank = 0;
    std::span<float> own = {};  ///< on the rank that has it
  };

  /// `summands` of all members in the order of summation, every `together` of them to be added
  /// first; `length` of each. One after the other on one tag: this one begins when `before`, if
  /// any, is done. `received` is room for other ranks' summands of this one's part, no more and no
  /// less (ReceivedElements), which nobody else uses meanwhile.
  GradientSum(int rank, int tag, std::vector<Summand> summands, size_t together, size_t length,
              std::shared_ptr<const GradientSum> before,
              std::shared_ptr<std::vector<float>> received);

  /// True once every summand of this rank is the sum. Called by one thread at a time. Adds for a
  /// fraction of a millisecond at most, so that other messages are not kept waiting.
  bool Advance(Wire& wire);

 private:
  enum class Phase : uint8_t { kBefore, kScatter, kAdd, kGather, kDone };

  PartOfSum PartOf(size_t member) const;
  bool AllDone(Wire& wire);
  void Scatter(Wire& wire);
  bool Add();
  void Gather(Wire& wire);
  void Finish();
  std::span<float> Own() const;

  int rank_;
  int tag_;
  std::vector<Summand> summands_;
  size_t together_;
  size_t length_;
  std::shared_ptr<const GradientSum> before_;
  std::shared_ptr<std::vector<float>> received_;
  std::vector<int> ranks_;  // members, ascending: owners of the parts in this order
  size_t me_ = 0;
  std::vector<std::span<float>> pieces_;  // all summands of this rank's part
  size_t added_ = 0;                      // elements of it
  std::vector<Wire::Handle> under_way_;
  Phase phase_ = Phase::kBefore;
};

}  // namespace pipelag
