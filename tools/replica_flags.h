// Data-parallel copies of the pipeline in a run. Must not know how it is run.
#pragma once

#include "models/schedule/program.h"
#include "tools/arguments.h"
#include "tools/flags.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --replicas of commands that run all of them; 1 if not given. Throws Error for more than a run
/// could ever hold.
int ReplicasOf(const Arguments& arguments);

/// Lowered, with --replicas copies side by side (Replicate), every step with so many times its
/// micro-batches. Throws Error as Lower and Replicate do, naming flag and file.
Program LowerWithReplicas(const NamedSchedule& named, const Arguments& arguments);

Flag ReplicasFlag();

}  // namespace pipelag
