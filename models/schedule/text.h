// Schedules as text: action names, the rank × step grid, and CSV files as PyTorch's pipelining
// schedules write them (one line per rank, one cell per action).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/schedule/schedule.h"

namespace pipelag {

/// "2F0", "1B3", "0U0", "AR" as `<group>AR<step>`; the stage is the slice of the network.
std::string ActionText(const Schedule& schedule, const Action& action);

/// Rank × position grid of the body, at most `columns` columns wide around the first bad cell; bad
/// cells are marked `>2B0<`. OVERLAP pairs stand in one cell as `2F1+3B0`.
std::string FormatGrid(const Schedule& schedule, const std::vector<Finding>& findings = {},
                       int columns = 24);

/// The rows are the schedule's bodies, or the same with their transfers in between: PyTorch's forms
/// "compute only" and "compute and communication". One flush step without U and AR is what PyTorch
/// reads. What a CSV cannot say (policy, streams, micro-batches per step, groups) goes into a JSON
/// text beside it.
std::string ToCsv(const Schedule& schedule, const std::vector<std::vector<Action>>& rows);
std::string ToCsvSidecar(const Schedule& schedule);

/// True if the CSV alone loses nothing: flush, one stream, no groups.
bool CsvIsComplete(const Schedule& schedule);

/// Writes `file` and, unless the CSV is complete and there is no such file yet, the JSON of the
/// same stem beside it. Throws Error if a file of that name is something else.
void WriteCsv(const Schedule& schedule, const std::vector<std::vector<Action>>& rows,
              const std::filesystem::path& file);

/// Placement is read off the rows. Without a JSON file beside it the schedule is one flush step
/// with its U added at the end of each row. Rows with transfers become the schedule's given order;
/// what PyTorch does for sharded weights (UNSHARD, RESHARD, REDUCE_GRAD) is passed over. Throws
/// Error with file, line and cell for text that is no action; the result is not validated yet.
Schedule ReadCsv(const std::filesystem::path& file);
Schedule ParseCsv(std::string_view csv, std::string_view sidecar_json,
                  const std::string& file_name);

}  // namespace pipelag
