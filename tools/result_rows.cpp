// Tables of results in files, CSV or JSON.
#include "tools/result_rows.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/file.h"
#include "models/json_file.h"

namespace pipelag {
namespace {

std::string Quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

/// Records of a CSV, each with the line it begins in.
std::vector<std::pair<size_t, Row>> ParseCsv(const std::string& text) {
  std::vector<std::pair<size_t, Row>> records;
  size_t line = 1;
  for (size_t at = 0; at < text.size();) {
    records.emplace_back(line, Row(1));
    Row& row = records.back().second;
    bool quoted = false;
    for (bool ended = false; !ended; ++at) {
      const char c = at < text.size() ? text[at] : '\n';
      if (c == '\n') ++line;
      if (quoted && at < text.size()) {
        if (c != '"') {
          row.back() += c;
        } else if (at + 1 < text.size() && text[at + 1] == '"') {
          row.back() += text[++at];
        } else {
          quoted = false;
        }
      } else if (c == '"') {
        quoted = true;
      } else if (c == ',') {
        row.emplace_back();
      } else if (c == '\n') {
        ended = true;
      } else if (c != '\r') {
        row.back() += c;
      }
    }
  }
  return records;
}

Row NamesOf(const std::vector<Column>& columns) {
  Row names;
  for (const Column& column : columns) names.push_back(column.name);
  return names;
}

[[noreturn]] void FailColumns(const std::filesystem::path& file, const std::string& place) {
  throw Error(
      fmt::format("{}{}: holds other columns than this command writes: give another file, "
                  "or leave out --resume",
                  file.string(), place));
}

std::vector<Row> ReadCsvRows(const std::filesystem::path& file,
                             const std::vector<Column>& columns) {
  const std::string text = ReadFile(file);
  if (text.empty() || text.back() != '\n') {
    throw Error(fmt::format("{}: {}: give another file, or leave out --resume", file.string(),
                            text.empty() ? "is empty" : "its last line is cut off"));
  }
  auto records = ParseCsv(text);
  if (records.empty() || records[0].second != NamesOf(columns)) FailColumns(file, ":1");
  std::vector<Row> rows;
  for (size_t i = 1; i < records.size(); ++i) {
    if (records[i].second.size() != columns.size()) {
      throw Error(fmt::format("{}:{}: has {} cells, but the header {}", file.string(),
                              records[i].first, records[i].second.size(), columns.size()));
    }
    rows.push_back(std::move(records[i].second));
  }
  return rows;
}

std::vector<Row> ReadJsonRows(const std::filesystem::path& file,
                              const std::vector<Column>& columns) {
  const nlohmann::json root = ReadJson(file);
  if (!root.is_object() || !root.contains("rows") || !root["rows"].is_array()) {
    throw Error(fmt::format("{}: /rows: expected a list", file.string()));
  }
  std::vector<Row> rows;
  for (const nlohmann::json& object : root["rows"]) {
    const std::string place = fmt::format(": /rows/{}", rows.size());
    if (!object.is_object() || object.size() != columns.size()) FailColumns(file, place);
    Row row;
    for (const Column& column : columns) {
      const auto value = object.find(column.name);
      if (value == object.end() || value->is_structured()) FailColumns(file, place);
      row.push_back(value->is_null()     ? ""
                    : value->is_string() ? value->get<std::string>()
                                         : value->dump());
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::string NumberText(double value) { return nlohmann::json(value).dump(); }

std::string RowsCsv(const std::vector<Column>& columns, const std::vector<Row>& rows) {
  std::string text;
  const auto add = [&](const Row& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += ',';
      text += Quoted(row[i]);
    }
    text += '\n';
  };
  add(NamesOf(columns));
  for (const Row& row : rows) add(row);
  return text;
}

std::string RowsJson(const std::vector<Column>& columns, const std::vector<Row>& rows) {
  std::string text = "{\"rows\": [";
  for (size_t r = 0; r < rows.size(); ++r) {
    text += r == 0 ? "\n  {" : ",\n  {";
    for (size_t c = 0; c < columns.size(); ++c) {
      const std::string& cell = rows[r][c];
      const std::string value = cell.empty()        ? "null"
                                : columns[c].number ? cell
                                                    : nlohmann::json(cell).dump();
      text += fmt::format("{}{}: {}", c == 0 ? "" : ", ", nlohmann::json(columns[c].name).dump(),
                          value);
    }
    text += '}';
  }
  return text + (rows.empty() ? "]}\n" : "\n]}\n");
}

void CheckRowsFile(const std::filesystem::path& file, const std::string& place) {
  if (file.extension() == ".csv" || file.extension() == ".json") return;
  throw Error(fmt::format("{}: '{}' is neither a .csv nor a .json file", place, file.string()));
}

void WriteRows(const std::filesystem::path& file, const std::vector<Column>& columns,
               const std::vector<Row>& rows) {
  WriteFile(file, file.extension() == ".json" ? RowsJson(columns, rows) : RowsCsv(columns, rows));
}

std::vector<Row> ReadRows(const std::filesystem::path& file, const std::vector<Column>& columns) {
  return file.extension() == ".json" ? ReadJsonRows(file, columns) : ReadCsvRows(file, columns);
}

}  // namespace pipelag
