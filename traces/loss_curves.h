// Loss curves of training runs: what one is called, how it is smoothed, when it reaches a loss, and
// how many are kept in one CSV. Knows nothing of how they were trained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace pipelag {

/// What a run did differently from the others of its study; the seed apart.
struct CurveMode {
  std::string optimizer;
  std::string profile;  ///< of delay: "0", "1", "3:2:1:0", "pipedream@4x1"
  std::string correction = "none";

  bool operator==(const CurveMode&) const = default;
};

/// One run.
struct LossCurve {
  CurveMode mode;
  double learning_rate = 0;
  uint64_t seed = 1;
  int64_t tokens_per_step = 1;
  std::vector<double> losses;             ///< per step, nats per token
  bool diverged = false;                  ///< ended early: has curve, but no final loss
  std::optional<double> validation_loss;  ///< where it was taken
};

/// Trailing means over a twentieth of the run, each placed at the middle of its window. A place
/// counts batches: the k-th batch, from 1, has place k.
class SmoothCurve {
 public:
  /// `losses` has at least one entry.
  explicit SmoothCurve(const std::vector<double>& losses);
  /// The mean of runs, over the steps that all have.
  explicit SmoothCurve(const std::vector<const LossCurve*>& runs);

  /// The mean of the last window: what is called the final training loss.
  double Final() const { return values_.back(); }
  /// Where the curve is first at or below `loss`, between steps by linear interpolation; none if it
  /// never is.
  std::optional<double> StepsTo(double loss) const;
  /// By linear interpolation; beyond an end, the value there.
  double At(double place) const;

  double first_place() const { return first_place_; }
  const std::vector<double>& values() const { return values_; }  ///< one place apart

 private:
  double first_place_ = 1;
  std::vector<double> values_;
};

/// A header and a line per run and step.
std::string CurvesCsv(const std::vector<LossCurve>& curves);

/// Of CurvesCsv, in any order of columns. Throws Error naming `source` and the line.
std::vector<LossCurve> ParseCurvesCsv(const std::string& csv, const std::string& source);

}  // namespace pipelag
