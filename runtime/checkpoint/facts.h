// What a run must have in common with the one that left a checkpoint, so that going on from it is
// going on with the same run. Knows no ranks and no schedule by name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/data/corpus.h"
#include "runtime/serial_plan.h"
#include "runtime/training.h"

namespace pipelag {

/// The sizes of a network, and in what it is no GPT-2.
nlohmann::ordered_json NetworkFacts(const NetworkShape& shape);

/// Network, optimizer, correction, course of the learning rate, clipping, seed, sizes of batches,
/// the text trained on (by its fingerprint), and the gradient delay of every layer: a number, or
/// those of forwards and backwards by micro-batch where they differ. Embeddings are as late as the
/// first layer, the head is as late as the last.
nlohmann::ordered_json RunFacts(const TrainingOptions& options, const SerialPlan& plan,
                                const Corpus& corpus);

/// In which order the gradients of every layer are added: of runs that differ in nothing else the
/// weights agree but for rounding.
nlohmann::ordered_json SummationOf(const TrainingOptions& options, const SerialPlan& plan);

/// "/optimizer/name is "adamw" there, but "sgd" here" for the first keys of `here` that differ,
/// and how many more do; empty if none does.
std::string DifferencesOf(const nlohmann::json& there, const nlohmann::ordered_json& here);

}  // namespace pipelag
