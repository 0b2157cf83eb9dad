// The flags that say where a run begins and what it leaves behind: checkpoints, resuming, weights
// in and out. Must not know how it is run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/serial_plan.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --checkpoint, --checkpoint-every, --keep-last, --resume, --init, --export.
std::vector<Flag> CheckpointFlags();

/// What they say, checked against each other.
struct CheckpointPlan {
  std::optional<CheckpointSettings> settings;
  std::shared_ptr<const Checkpoint> resumed;  ///< null: from the beginning
  std::string init;                           ///< file, or empty
  std::string exported;                       ///< file, or empty

  bool any() const { return settings || resumed || !init.empty() || !exported.empty(); }
  int64_t first_step() const { return resumed ? resumed->step() : 0; }
};
CheckpointPlan CheckpointsOf(const Arguments& arguments);

/// The network's sizes that a file of --init brings along, if there is one and it says them. Throws
/// Error for a flag that says otherwise.
void TakeShapeOfInit(const Arguments& arguments, NetworkShape& shape);

/// Lets a run begin where the plan says and returns what writes its checkpoints, null if nothing
/// does. `last_step` counts from the start of training. Notes for people go to `notes`. Of
/// processes that share the folder only one `prepares` it. Throws Error if the checkpoint is of
/// another run.
std::unique_ptr<CheckpointWriter> Attach(const CheckpointPlan& plan, const SerialPlan& serial,
                                         const Corpus& corpus, int ranks, int64_t last_step,
                                         TrainingOptions& options, std::vector<std::string>& notes,
                                         bool prepares);

}  // namespace pipelag
