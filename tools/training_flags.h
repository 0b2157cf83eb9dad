// The flags that say what to train: network, data, optimizer. Must not know how it is run.
#pragma once

#include <vector>

#include "runtime/training.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --layers … --deadline.
std::vector<Flag> TrainingFlags();

/// For a network in `stages` stages trained for `steps` updates. Throws Error naming the flag.
TrainingOptions TrainingOf(const Arguments& arguments, int stages, int64_t steps);

/// The file of --data, or the built-in text.
Corpus CorpusOf(const Arguments& arguments, const TrainingOptions& options);

}  // namespace pipelag
