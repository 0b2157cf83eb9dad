// What to train and what came of it: shared by every way of running.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/architecture/work.h"
#include "models/network.h"
#include "runtime/breaking.h"
#include "runtime/correction/correction.h"
#include "runtime/data/corpus.h"
#include "runtime/network/digest.h"
#include "runtime/network/products.h"
#include "runtime/optimizer/learning_rate.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/starting_point.h"
#include "traces/trace.h"

namespace pipelag {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class CheckpointWriter;

/// A step that has been done.
struct StepReport {
  int64_t steps_done = 0;  ///< counted from the start of training, not of this run
  double loss = 0;         ///< of its batch, mean over tokens
  float learning_rate = 0;
  std::optional<double> gradient_norm = std::nullopt;  ///< before clipping; only where it clips
};

struct TrainingOptions {
  NetworkShape shape;
  std::vector<LayerRange> split;           ///< one range per stage, covering all layers
  int microbatch_size = 8;                 ///< sequences per micro-batch
  Recompute recompute = Recompute::kNone;  ///< what the backward computes again; changes no result
  /// Of the linear layers' products. Weights, gradients and optimizer are fp32 in either.
  ProductPrecision precision = ProductPrecision::kFp32;
  uint64_t seed = 1;  ///< of the weights and of the order of the data
  OptimizerOptions optimizer;
  CorrectionOptions correction;
  LearningRateCourse learning_rate;  ///< counts real updates
  std::optional<double> clip_norm;   ///< of the global gradient
  int64_t validation_microbatches = 32;
  Nanoseconds deadline = std::chrono::seconds(120);  ///< of one wait for another rank
  /// Fill slots with NaN before their first use and whenever they are free, so that whoever reads
  /// one too early or too late shows.
  bool poison_freed = kSanitized;
  /// The trace holds as many steps from the first on, so that a long run does not fill the memory.
  int64_t traced_steps = std::numeric_limits<int64_t>::max();
  /// Where the run begins; null: at weights drawn from the seed, at step 0.
  std::shared_ptr<const StartingPoint> start = nullptr;
  CheckpointWriter* checkpoints = nullptr;  ///< borrowed; null: none are written
  /// Called once per step, in order, by one thread at a time. What it throws ends the run.
  std::function<void(const StepReport&)> on_step = {};
  /// Called once with the weights that a run ends with, before their validation.
  std::function<void(const std::vector<StageWeights>&)> on_final_weights = {};
  /// Called by another thread with the error that has stopped a run which has not ended a short
  /// while later, as a rank is inside a long action: to end the process. Empty: it is waited for.
  std::function<void(const std::exception_ptr& error)> end_overdue = {};
  /// The loss of final weights, stage by stage, as ValidationLoss has it; empty: on this processor.
  std::function<double(const std::vector<const float*>& stage_weights)> validation = {};

  /// Updates done before the run began: its own steps follow them.
  int64_t first_step() const { return start ? start->step() : 0; }
};

/// Writes the versions that a stage begins with, that of age `history` first: versions[age]. Tells
/// the checkpoints of them if `stage` ≥ 0.
void BeginVersions(const TrainingOptions& options, int stage, const StageLayout& layout,
                   const std::vector<float*>& versions);

/// The same, and fills the optimizer.
void BeginStage(const TrainingOptions& options, int stage, Optimizer& optimizer,
                const std::vector<float*>& versions);

/// Losses are means over tokens, in nats. A run that diverged ended there: it has no final weights,
/// hence neither digest nor validation loss, and its trace holds the steps done until there.
struct TrainingResult {
  std::vector<double> step_losses;  ///< of each batch, at the weights its gradient was taken at
  /// The step at which it was seen, the last of step_losses; counted as StepReport::steps_done.
  std::optional<int64_t> diverged;
  std::string diverged_where = {};  ///< "stage 1: h.3.mlp.c_fc.weight is not finite"
  int64_t first_step = 0;  ///< steps done before those of step_losses; 0 unless the run goes on
  double validation_loss = std::numeric_limits<double>::quiet_NaN();  ///< of the final weights
  int64_t validation_tokens = 0;
  std::string weights_sha256;  ///< of the final weights, whatever the partition
  Trace trace;
  std::vector<int> peak_activations;  ///< per placed stage, as counted while running
  std::vector<int> peak_kept;
  std::vector<int> peak_versions;
  std::vector<int> peak_handovers;  ///< per rank

  /// NaN if the run diverged.
  double final_loss() const {
    return diverged ? std::numeric_limits<double>::quiet_NaN() : step_losses.back();
  }
};

/// Tokens of one step.
int64_t TokensPerStep(const TrainingOptions& options, int microbatches);

/// Batches whose mean tells a run that diverged.
constexpr int kLossWindow = 5;

/// True if the last batch of the training so far has no number for a loss, or if after the first 20
/// the last kLossWindow have a mean above ln V + 1: worse than knowing nothing. One spike is not
/// the end: late gradients throw runs that come back. `losses`: of the latest of `batches` in all.
bool HasDiverged(const NetworkShape& shape, int64_t batches, std::span<const double> losses);

/// Ends a run, but is no error: caught by whoever makes the TrainingResult.
class Diverged : public std::exception {
 public:
  /// `at`: counted from the first of this run's own steps.
  explicit Diverged(int64_t at) : step(at) {}
  /// Seen as values of a stage that are not finite, right after the step's update.
  Diverged(int64_t at, int stage, const std::string& tensor);
  const char* what() const noexcept override { return "the run diverged"; }

  int64_t step;
  std::string where;
};

/// The first of a stage's tensors with a value that is not finite; empty if there is none.
std::string FirstNotFinite(const StageLayout& layout, const float* weights);

/// Where a run diverged: where it was seen to break, if it was, and in which step if that was
/// another; else where `diverged` says; else, of stages in network order, the first with weights
/// that are not finite (the names of their tensors, empty where all are finite); else the loss
/// itself. `first_step`: steps done before the run's own.
std::string WhereDiverged(const std::optional<Breaking>& seen, const Diverged& diverged,
                          const std::vector<std::string>& not_finite, double loss,
                          int64_t first_step);

/// Gathers the losses of micro-batches and the updates, in any order, into reports of steps.
/// Micro-batches and steps are counted from the first of this run.
class StepWatch {
 public:
  /// `options` are borrowed.
  StepWatch(const TrainingOptions& options, int microbatches);
  /// Throws Diverged if this completes a batch up to which the run HasDiverged.
  void AddLoss(int64_t microbatch, double loss_sum);
  /// After a step's update of the last stage.
  void AddUpdate(int64_t step, float learning_rate, std::optional<double> gradient_norm);

 private:
  void Report();
  /// Of at most so many batches up to that of a step, those before this run included.
  std::vector<double> LatestLosses(int64_t step, int64_t count) const;

  const TrainingOptions& options_;
  int microbatches_;
  double tokens_;
  struct Batch {
    int seen = 0;
    std::vector<double> losses;  ///< by micro-batch, added in this order whenever they come
  };
  std::map<int64_t, Batch> open_;          ///< by step
  std::vector<double> before_;             ///< losses of the last steps before this run
  std::vector<double> step_losses_;        ///< of those complete from the first on
  std::map<int64_t, StepReport> updated_;  ///< by step: not yet reported
  int64_t reported_ = 0;
};

/// Marks the result as diverged instead if that is no number or above ln V + 1: the last updates
/// may be what broke the weights.
void SetValidationLoss(const TrainingOptions& options, double loss, TrainingResult& result);

/// The loss of final weights, stage by stage, over evenly spaced windows of corpus.validation.
double ValidationLoss(const TrainingOptions& options, const Corpus& corpus,
                      const std::vector<const float*>& stage_weights);

/// Means over tokens out of sums per micro-batch.
std::vector<double> StepLosses(const TrainingOptions& options, int microbatches,
                               const std::vector<double>& microbatch_sums);

}  // namespace pipelag
