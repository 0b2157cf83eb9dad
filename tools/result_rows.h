// Tables of results in files, CSV or JSON, that can be read back to go on with. Must not know what
// any column means.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pipelag {

struct Column {
  std::string name;
  bool number = false;  ///< in JSON a number and not a text
};

/// Cells as text, one per column; an empty one is nothing (null in JSON).
using Row = std::vector<std::string>;

/// A number as it stands in either form; the shortest text that reads back as the same.
std::string NumberText(double value);

std::string RowsCsv(const std::vector<Column>& columns, const std::vector<Row>& rows);
/// {"rows": [{…}, …]}.
std::string RowsJson(const std::vector<Column>& columns, const std::vector<Row>& rows);

/// By the file's extension, .csv or .json; another one is an Error naming `place`.
void CheckRowsFile(const std::filesystem::path& file, const std::string& place);
void WriteRows(const std::filesystem::path& file, const std::vector<Column>& columns,
               const std::vector<Row>& rows);
/// Throws Error naming the file and the line or JSON path, also for other columns than these.
std::vector<Row> ReadRows(const std::filesystem::path& file, const std::vector<Column>& columns);

}  // namespace pipelag
