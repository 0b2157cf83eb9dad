// Reads the per-action timings that AMD Primus records of pipeline-parallel training. Knows nothing
// of other formats.
#pragma once

#include <filesystem>

#include "traces/trace.h"

namespace pipelag {

/// Whether `path` is a folder with a config.json and a pp_rank_0.json.
bool IsPrimus(const std::filesystem::path& path);

/// The folder form: config.json with "pp_size" and "num_mbs", and per rank a pp_rank_N.json,
///   {"<iteration>": {"total", "fwd_start": […], "fwd_end", "bwd_start", "bwd_end"}, …},
/// times in milliseconds from the start of the iteration, entry k of a list being micro-batch k, in
/// the order of 1F1B without chunks. An iteration becomes a step; iterations are laid one behind
/// the other, each as long as the greatest "total" of any rank, since their true distance is not
/// recorded. There are no messages and no updates in it. `wait` is the time an action stood idle
/// whose message was produced after the lane became free. Throws Error with file and JSON path.
Trace ReadPrimus(const std::filesystem::path& folder);

}  // namespace pipelag
