// Where a run begins, if not at freshly drawn weights: what each stage is given before its first
// action. Knows no files.
#pragma once

#include <cstdint>

#include "runtime/network/layout.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// The state of a run at a step boundary k: every stage has done updates 1 to k and nothing of
/// batch k or a later one counts. Update t + 1 needs the gradient of batch t, taken at version
/// max(0, t − d) of each stage (serial_plan.h). So a run goes on from k as if it had never stopped,
/// to the last bit, given of every stage its versions k − d to k, what its optimizer and correction
/// keep, and k itself, which is the position in the data, the learning rate's course and all random
/// numbers. What a pipeline had in flight at k is done again from the data, on the same versions:
/// the program of the remaining steps is the endless body clipped at k instead of at 0. Only the
/// watch for divergence looks at no losses before k.
class StartingPoint {
 public:
  virtual ~StartingPoint() = default;
  /// k.
  virtual int64_t step() const = 0;
  /// Of the last batches before k, as many as are known and whoever goes on judges the run by.
  virtual std::vector<double> LatestLosses() const { return {}; }
  /// Writes version k − `age` as its readers see it, gaps zero. Throws Error if it is not known.
  virtual void ReadVersion(const StageLayout& layout, int64_t age, float* weights) const = 0;
  /// Fills what the optimizer of a stage keeps, in its own layout.
  virtual void ReadState(Optimizer& optimizer) const = 0;
};

}  // namespace pipelag
