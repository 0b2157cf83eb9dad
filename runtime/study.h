// A study: a grid of training runs on the serial reference, several at once, each kept in a file as
// soon as it is done. Knows nothing of what is read off the curves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/delay_profile.h"
#include "runtime/training.h"
#include "traces/loss_curves.h"

namespace pipelag {

struct Study {
  /// Split into the stages of a profile given stage by stage. Of its optimizer and correction only
  /// what all share; `microbatch_size` goes with `microbatches`: a profile with another number of
  /// micro-batches has others of another size, so that every run sees the same tokens a step.
  TrainingOptions common;
  int microbatches = 1;
  std::vector<std::string> optimizers;
  std::vector<DelayProfile> profiles;
  std::vector<std::string> corrections;
  std::vector<double> learning_rates;
  std::vector<uint64_t> seeds;
};

/// One point of the grid.
struct StudyRun {
  CurveMode mode;
  double learning_rate = 0;
  uint64_t seed = 1;
  const DelayProfile* profile = nullptr;  ///< the study's
  TrainingOptions options;
  std::string parameters;  ///< JSON: what tells it from every other run
  std::string file_name;   ///< from the parameters
};

/// The whole grid, seeds innermost. Corrections of a synchronous profile are left out, since they
/// are none; basis rotation is not and stays. Throws Error for unknown names and for what does not
/// go together.
std::vector<StudyRun> RunsOf(const Study& study, const Corpus& corpus);

/// The curves in the order of the runs. A run whose file lies in `folder` is not trained again. All
/// those files are read before any training. `on_progress` is told how many runs are done and how
/// many of them were found done; called from several threads, one at a time.
std::vector<LossCurve> RunStudy(const std::vector<StudyRun>& runs, const Corpus& corpus,
                                const std::filesystem::path& folder, int jobs,
                                const std::function<void(size_t done, size_t found)>& on_progress);

}  // namespace pipelag
