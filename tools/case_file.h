// Case files: jobs with what was measured of them. Must not know how a job is simulated.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "sim/validation.h"
#include "tools/arguments.h"

namespace pipelag {

struct CaseRow {
  std::string place;  ///< "cases.json: /rows/3"
  std::string name;   ///< "row 3" if it has none
  std::string group;  ///< runs of one machine and framework; empty if the file names none
  Arguments job;
  MeasuredRun measured;
};

struct CaseFile {
  std::string source;
  std::vector<CaseRow> rows;
};

/// {"source", "rows": [{"job": {flag: value, …}, "measured": {"step_time_s"?,
/// "tokens_per_s_per_gpu"?, "tflops_per_gpu"?, "peak_memory_gib"?, "forward_s"?, "backward_s"?},
/// "group"?, "name"?}]}. Throws
/// Error with file and JSON path for what is missing, unknown (with the nearest known key), no
/// number from 1e-6 to 1e12 or a text with control characters, and if two rows have one name.
CaseFile ReadCases(const std::filesystem::path& file, std::span<const std::string> job_keys);

}  // namespace pipelag
