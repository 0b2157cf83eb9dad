// One finished run of a study as one JSON file: parameters that tell it from every other, and its
// curve. Knows which parameters make a CurveMode, and nothing of what the others mean.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "traces/loss_curves.h"

namespace pipelag {

/// `parameters` is a JSON object with at least optimizer, profile, correction, learning_rate, seed
/// and tokens_per_step, which the file's curve then has.
std::string RunFileText(const std::string& parameters, const LossCurve& curve);

/// Throws Error naming `file` if it is damaged or its parameters are not exactly these.
LossCurve ReadRunFile(const std::filesystem::path& file, const std::string& parameters);

/// A CSV of curves, or a folder of run files. Throws Error if they differ in more than mode,
/// learning rate and seed, or if there are none.
std::vector<LossCurve> ReadCurves(const std::filesystem::path& place);

}  // namespace pipelag
