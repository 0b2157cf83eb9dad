// Several runs of one job: the typical one and the spread.
#pragma once

#include <cstddef>
#include <vector>

#include "traces/metrics.h"

namespace pipelag {

struct SeriesSummary {
  size_t typical =
      0;            ///< index of the run with the median step time (the lower of two middle ones)
  Metrics metrics;  ///< of that run
  StepTime least;
  StepTime greatest;

  /// predicted / measured − 1, measured being the typical run's step time.
  double ErrorOf(StepTime predicted) const;
};

/// At least one trace. `warm_up` as in ComputeMetrics.
SeriesSummary Summarise(const std::vector<const Trace*>& traces, int64_t warm_up);

}  // namespace pipelag
