// Leaves checkpoints behind a run, stage by stage as each comes to the step, without stopping any.
// Knows no ranks, threads or schedules: whoever holds a stage tells of its updates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/network/layout.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {

struct CheckpointSettings {
  std::filesystem::path folder;
  int64_t every = 0;      ///< steps; 0: at the end only
  int64_t keep_last = 0;  ///< 0: all; see KeepLast
};

/// What of the run goes to every checkpoint, as JSON text (facts.h).
struct CheckpointFacts {
  std::string facts;
  std::string summation;
  int64_t samples_per_step = 0;  ///< for people, as the rest: the position in the data
  std::string schedule;
  int ranks = 1;  ///< of one replica
  int replicas = 1;
};

/// One file per stage, written by whoever holds it right after the stage's update to the step:
/// weights under their Hugging Face names as (inputs, outputs), what optimizer and correction keep
/// as "optimizer.NAME.TENSOR", and the versions that later gradients are taken at as
/// "version.AGE.TENSOR" (AGE 0, what readers of the newest version see, only where it is not the
/// weights themselves). A tied embedding is in the first stage's file alone. Stages come to a step
/// at different times in an asynchronous schedule; what belongs to it is defined in
/// starting_point.h. A stage's older versions are copied as they are made, near a checkpoint only,
/// since the schedule may overwrite them before it.
///
/// A checkpoint is complete when its manifest stands, which is written last, by whoever first finds
/// the files of all stages there: through the folder alone, so that stages may be held by different
/// processes that share it, each with a writer of its own (PrepareFolder is for one of them, before
/// any begins). The last stage's file does not count before its step has been reported: what a run
/// that goes on from there does not do again is known by then. Every file is written under a
/// temporary name, flushed and renamed.
/// Values that are not finite are never written: the run has diverged.
class CheckpointWriter {
 public:
  /// Stage s is one of `stages`; its oldest reader is `delays[s]` updates late. The run does
  /// updates `first` + 1 to `last`.
  CheckpointWriter(CheckpointSettings settings, CheckpointFacts facts, std::vector<int> delays,
                   int64_t first, int64_t last);

  /// Before the first update, oldest first: versions that the run begins with.
  void Begin(int stage, int64_t version, const StageLayout& layout, const float* weights);
  /// Whether Updated looks at this version at all: what is on a device need not be fetched else.
  bool Wants(int stage, int64_t version) const;
  /// Right after the update that made `version`. Used by one thread per stage at a time. Throws
  /// Error if a file cannot be written, Diverged for a value that is not finite.
  void Updated(int stage, int64_t version, Optimizer& optimizer, const float* weights);
  /// After the step has been reported, by whichever thread, where the last stage is held.
  /// `latest_losses`: StartingPoint::LatestLosses of who goes on from there. Throws Error as
  /// Updated does.
  void Reported(int64_t step, const std::vector<double>& latest_losses);

  const CheckpointSettings& settings() const { return settings_; }
  /// Of the latest reader of all stages.
  int64_t delay() const { return *std::max_element(delays_.begin(), delays_.end()); }

 private:
  using Versions = std::map<int64_t, std::vector<float>>;

  int64_t NextAfter(int64_t version) const;
  bool Keeps(int stage, int64_t version) const;
  void Keep(int stage, int64_t version, int64_t elements, const float* weights);
  void WriteStage(int stage, int64_t step, Optimizer& optimizer, const float* weights);
  void NoteLastStage(int64_t step);
  void NoteStage(int stage, int64_t step, const std::string& part);
  void FinishStep(int64_t step);
  void WriteManifest(int64_t step);
  std::string FileName(int stage, const char* ending) const;

  CheckpointSettings settings_;
  CheckpointFacts facts_;
  std::vector<int> delays_;
  int64_t first_;
  int64_t last_;
  std::vector<Versions> kept_;  ///< by stage
  std::mutex finishing_;        ///< and of what follows
  int64_t reported_;
  std::vector<double> latest_losses_;          ///< at the step reported last
  std::map<int64_t, std::string> unreported_;  ///< by step: what there is to note of the last stage
};

}  // namespace pipelag
