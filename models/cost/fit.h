// Fits an efficiency to measured runs: the few factors that differ from one cluster and framework
// to the next. Knows neither runs nor how they are simulated.
#pragma once

#include <functional>
#include <vector>

#include "models/cost/efficiency.h"

namespace pipelag {

/// For each measured run ln(simulated time / measured time) under this efficiency.
using LogErrors = std::function<std::vector<double>(const Efficiency&)>;

/// Starts at `start` and moves compute_factor, communication_factor and launch so that the squared
/// log errors, weighed against how far such factors usually are from their
/// defaults, become least
/// (Gauss-Newton, maximum a posteriori). One run is enough: what it does not tell stays as it is.
/// Throws Error if an error is not finite.
Efficiency FitEfficiency(const Efficiency& start, const LogErrors& errors);

}  // namespace pipelag
