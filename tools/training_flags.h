// The flags that say what to train: network, data, optimizer. Must not know how it is run.
#pragma once

#include <vector>

#include "runtime/training.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// Network, data and what every optimizer and correction shares: a grid of runs takes these too.
std::vector<Flag> CommonTrainingFlags();
/// The common ones, and one optimizer, correction, learning rate and seed.
std::vector<Flag> TrainingFlags();

/// By the common flags: names of optimizer and correction, rate and seed are left at their
/// defaults.
TrainingOptions CommonTrainingOf(const Arguments& arguments, int stages, int64_t steps);

/// For a network in `stages` stages trained for `steps` updates. Throws Error naming the flag.
TrainingOptions TrainingOf(const Arguments& arguments, int stages, int64_t steps);

/// Throws Error naming the flag for an optimizer or a correction that is not known, or two that do
/// not go together.
void CheckOptimizer(const Arguments& arguments, const TrainingOptions& options);

/// The layers of each stage by --split, else evenly.
std::vector<LayerRange> SplitOf(const Arguments& arguments, int layers, int stages);

/// The file of --data, or the built-in text.
Corpus CorpusOf(const Arguments& arguments, const TrainingOptions& options);

}  // namespace pipelag
