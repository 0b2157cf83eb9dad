#include "models/schedule/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "models/file.h"

namespace pipelag {
namespace {

/// Cells of a row: an OVERLAP pair shares one.
struct Cell {
  std::string text;
  int first = 0;
  int last = 0;
};

std::vector<Cell> Cells(const Schedule& schedule, const std::vector<Action>& body) {
  std::vector<Cell> cells;
  for (size_t i = 0; i < body.size(); ++i) {
    Cell cell{ActionText(schedule, body[i]), static_cast<int>(i), static_cast<int>(i)};
    if (body[i].overlaps_next && i + 1 < body.size()) {
      ++i;
      cell.text += '+' + ActionText(schedule, body[i]);
      cell.last = static_cast<int>(i);
    }
    cells.push_back(std::move(cell));
  }
  return cells;
}

size_t ColumnOf(const std::vector<Cell>& cells, int position) {
  for (size_t c = 0; c < cells.size(); ++c) {
    if (position <= cells[c].last) return c;
  }
  return cells.empty() ? 0 : cells.size() - 1;
}

}  // namespace

std::string ActionText(const Schedule& schedule, const Action& action) {
  const int stage = action.kind == ActionKind::kAllReduce || schedule.stages < 1
                        ? action.stage
                        : schedule.SliceOf(action.stage);
  return fmt::format("{}{}{}", stage, KindName(action.kind), action.microbatch);
}

std::string FormatGrid(const Schedule& schedule, const std::vector<Finding>& findings,
                       int columns) {
  std::vector<std::vector<Cell>> rows;
  size_t longest = 0;
  for (const auto& body : schedule.body) {
    rows.push_back(Cells(schedule, body));
    longest = std::max(longest, rows.back().size());
  }
  size_t first = longest;
  std::set<int> marked_ranks;
  for (const Finding& finding : findings) {
    if (finding.rank < 0 || finding.position < 0) continue;
    auto& row = rows[static_cast<size_t>(finding.rank)];
    if (row.empty()) continue;
    const size_t column = ColumnOf(row, finding.position);
    if (row[column].text.front() != '>') row[column].text = '>' + row[column].text + '<';
    first = std::min(first, column);
    marked_ranks.insert(finding.rank);
  }
  const auto width = static_cast<size_t>(columns);
  first = marked_ranks.empty() ? 0 : first - std::min(first, width / 2);
  const size_t last = std::min(longest, first + width);

  std::vector<size_t> widths;
  for (size_t c = first; c < last; ++c) {
    size_t w = fmt::format("{}", c).size();
    for (const auto& row : rows) {
      if (c < row.size()) w = std::max(w, row[c].text.size());
    }
    widths.push_back(w);
  }
  std::string out = "        ";
  for (size_t c = first; c < last; ++c) out += fmt::format(" {:>{}}", c, widths[c - first]);
  for (size_t r = 0; r < rows.size(); ++r) {
    out += fmt::format("\nrank {:<3}", r);
    for (size_t c = first; c < last && c < rows[r].size(); ++c) {
      out += fmt::format(" {:>{}}", rows[r][c].text, widths[c - first]);
    }
    if (last < rows[r].size()) out += " …";
  }
  return out;
}

}  // namespace pipelag
