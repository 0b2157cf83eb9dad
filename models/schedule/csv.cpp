// CSV files in PyTorch's two forms: computation only, and with the transfers.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "models/file.h"
#include "models/schedule/csv_sidecar.h"
#include "models/schedule/text.h"

namespace pipelag {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";
/// What PyTorch does for stages whose weights are sharded. Weights here are not, and gradients meet
/// in an AR, so these are passed over.
constexpr std::string_view kOfSharding[] = {"UNSHARD", "RESHARD", "REDUCE_GRAD"};
constexpr int64_t kLastStage = 65534;
constexpr int64_t kLastMicrobatch = int64_t{1} << 30;

/// An action as it stands in a cell: the stage is a slice, not yet a placed stage.
struct CellAction {
  int64_t stage = 0;
  ActionKind kind = ActionKind::kForward;
  int64_t microbatch = 0;
  bool overlaps_next = false;
};

class CellReader {
 public:
  CellReader(std::string_view cell, const std::string& place) : cell_(cell), place_(place) {}

  std::vector<CellAction> Read() const {
    if (IsOfSharding()) return {};
    if (!cell_.starts_with('(')) return {One(cell_)};
    const size_t close = cell_.find(')');
    if (close == std::string_view::npos || cell_.substr(close + 1) != kOverlap) {
      throw Bad("a bracket is only for (F;B)OVERLAP_F_B");
    }
    const std::string_view inner = cell_.substr(1, close - 1);
    const size_t semicolon = inner.find(';');
    if (semicolon == std::string_view::npos) throw Bad("an OVERLAP_F_B needs two actions");
    CellAction forward = One(inner.substr(0, semicolon));
    const CellAction backward = One(inner.substr(semicolon + 1));
    forward.overlaps_next = true;
    return {forward, backward};
  }

 private:
  bool IsOfSharding() const {
    const size_t begin = cell_.find_first_not_of("0123456789");
    if (begin == std::string_view::npos || begin == 0) return false;
    return std::find(std::begin(kOfSharding), std::end(kOfSharding), cell_.substr(begin)) !=
           std::end(kOfSharding);
  }

  Error Bad(std::string_view why) const {
    return Error(fmt::format("{}: '{}' is not an action: {}", place_, cell_, why));
  }

  int64_t Number(std::string_view digits, int64_t most) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc::invalid_argument || end != digits.data() + digits.size()) {
      throw Bad("it reads <stage><kind><micro-batch>, as in 2F0");
    }
    if (error != std::errc() || std::abs(value) > most) {
      throw Bad(fmt::format("{} is beyond {}", digits, most));
    }
    return value;
  }

  CellAction One(std::string_view text) const {
    const size_t begin = text.find_first_not_of("0123456789");
    if (begin == std::string_view::npos || begin == 0) {
      throw Bad("it reads <stage><kind><micro-batch>, as in 2F0");
    }
    const size_t end = text.find_last_not_of("0123456789-") + 1;
    const std::string_view name = text.substr(begin, end > begin ? end - begin : 0);
    const std::optional<ActionKind> kind = KindFromName(name);
    if (!kind) throw Bad(fmt::format("there is no kind '{}'", name));
    return {Number(text.substr(0, begin), kLastStage), *kind,
            Number(text.substr(end), kLastMicrobatch), false};
  }

  std::string_view cell_;
  const std::string& place_;
};

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

using Rows = std::vector<std::vector<CellAction>>;

Rows ReadRows(std::string_view csv, const std::string& file_name) {
  Rows rows;
  int line_number = 0;
  while (!csv.empty()) {
    const size_t end = csv.find('\n');
    std::string_view line = csv.substr(0, end);
    csv = end == std::string_view::npos ? std::string_view{} : csv.substr(end + 1);
    ++line_number;
    if (Trim(line).empty()) continue;
    std::vector<CellAction> row;
    int cell_number = 0;
    for (;;) {
      const size_t comma = line.find(',');
      std::string_view cell = Trim(line.substr(0, comma));
      ++cell_number;
      if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
        cell = Trim(cell.substr(1, cell.size() - 2));
      }
      if (!cell.empty()) {
        const std::string place =
            fmt::format("{}: line {}, cell {}", file_name, line_number, cell_number);
        for (const CellAction& action : CellReader(cell, place).Read()) row.push_back(action);
      }
      if (comma == std::string_view::npos) break;
      line = line.substr(comma + 1);
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) throw Error(fmt::format("{}: holds no schedule, it is empty", file_name));
  return rows;
}

/// Placed stage of every (rank, slice, stream) seen; a stage stands where its F stand.
void Place(const Rows& rows, const std::string& file_name, Schedule& schedule) {
  schedule.ranks = static_cast<int>(rows.size());
  for (const auto& row : rows) {
    for (const CellAction& a : row) {
      if (!HasMicrobatch(a.kind)) continue;
      schedule.stages = std::max(schedule.stages, static_cast<int>(a.stage) + 1);
    }
  }
  if (static_cast<int64_t>(schedule.stages) * schedule.streams > 65535) {
    throw Error(
        fmt::format("{}: {} stages are more than a schedule can hold", file_name, schedule.stages));
  }
  schedule.placement.assign(static_cast<size_t>(schedule.placed_stages()), -1);
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (const CellAction& a : rows[rank]) {
      if (!IsForward(a.kind)) continue;
      const int placed = schedule.PlacedStage(schedule.StreamOfMicrobatch(a.microbatch),
                                              static_cast<int>(a.stage));
      int& home = schedule.placement[static_cast<size_t>(placed)];
      if (home < 0) home = static_cast<int>(rank);
    }
  }
  for (size_t s = 0; s < schedule.placement.size(); ++s) {
    if (schedule.placement[s] < 0) {
      throw Error(fmt::format("{}: stage {} has no F on any rank", file_name,
                              schedule.SliceOf(static_cast<int>(s))));
    }
  }
}

/// The placed stage that a cell means. A rank may hold a slice for several streams; its U's of that
/// slice then are theirs in turn, for which `updated` keeps count.
int PlacedOf(const Schedule& schedule, const CellAction& a, int rank, std::vector<bool>& updated) {
  const auto slice = static_cast<int>(a.stage);
  if (HasMicrobatch(a.kind)) {
    return schedule.PlacedStage(schedule.StreamOfMicrobatch(a.microbatch), slice);
  }
  if (a.kind == ActionKind::kAllReduce) return slice;
  int taken = slice;  // if the rank holds none of that slice: the validator says so
  for (int stream = schedule.streams; slice < schedule.stages && stream-- > 0;) {
    const int placed = schedule.PlacedStage(stream, slice);
    const auto p = static_cast<size_t>(placed);
    if (schedule.placement[p] == rank && !updated[p]) taken = placed;
  }
  if (taken < schedule.placed_stages()) updated[static_cast<size_t>(taken)] = true;
  return taken;
}

}  // namespace

std::string ToCsv(const Schedule& schedule, const std::vector<std::vector<Action>>& rows) {
  const bool bare = CsvIsComplete(schedule);
  std::string out;
  for (const auto& body : rows) {
    std::string_view separator;
    for (size_t i = 0; i < body.size(); ++i) {
      if (bare && !HasMicrobatch(body[i].kind)) continue;
      out += separator;
      separator = ",";
      if (body[i].overlaps_next && i + 1 < body.size()) {
        out += fmt::format("({};{}){}", ActionText(schedule, body[i]),
                           ActionText(schedule, body[i + 1]), kOverlap);
        ++i;
      } else {
        out += ActionText(schedule, body[i]);
      }
    }
    out += '\n';
  }
  return out;
}

bool CsvIsComplete(const Schedule& schedule) {
  return schedule.flushes() && schedule.streams == 1 && schedule.groups.empty();
}

void WriteCsv(const Schedule& schedule, const std::vector<std::vector<Action>>& rows,
              const std::filesystem::path& file) {
  std::filesystem::path sidecar = file;
  sidecar.replace_extension(".json");
  const bool old = sidecar != file && std::filesystem::exists(sidecar);
  if (old && !IsSidecar(ReadFile(sidecar))) {
    throw Error(
        fmt::format("{}: is in the way: it would be read with {}, but is no text of a "
                    "schedule",
                    sidecar.string(), file.string()));
  }
  // An old text beside a CSV that needs none would be read with it, so it is renewed too.
  if (old || !CsvIsComplete(schedule)) {
    if (sidecar == file) {
      throw Error(fmt::format(
          "{}: a schedule's file must not end in .json, that name is for the text beside it",
          file.string()));
    }
    CheckWritable(file);
    WriteFile(sidecar, ToCsvSidecar(schedule));
  }
  WriteFile(file, ToCsv(schedule, rows));
}

Schedule ReadCsv(const std::filesystem::path& file) {
  const std::string csv = ReadFile(file);
  std::filesystem::path sidecar = file;
  sidecar.replace_extension(".json");
  const bool beside = sidecar != file && std::filesystem::exists(sidecar);
  Schedule schedule = ParseCsv(csv, beside ? ReadFile(sidecar) : std::string(), file.string());
  if (schedule.name.empty()) schedule.name = file.stem().string();
  return schedule;
}

Schedule ParseCsv(std::string_view csv, std::string_view sidecar_json,
                  const std::string& file_name) {
  const Rows rows = ReadRows(csv, file_name);
  Schedule schedule;
  if (!sidecar_json.empty()) {
    std::filesystem::path sidecar = file_name;
    sidecar.replace_extension(".json");
    ReadSidecar(sidecar_json, sidecar.string(), schedule);
  } else {
    for (const auto& row : rows) {
      for (const CellAction& a : row) {
        if (!HasMicrobatch(a.kind)) continue;
        schedule.microbatches = std::max(schedule.microbatches, static_cast<int>(a.microbatch) + 1);
      }
    }
    if (schedule.microbatches < 1) {
      throw Error(fmt::format("{}: holds no action of a micro-batch", file_name));
    }
  }
  Place(rows, file_name, schedule);
  bool any_update = false;
  bool any_transfer = false;
  std::vector<bool> updated(static_cast<size_t>(schedule.placed_stages()));
  std::vector<std::vector<Action>>& order = schedule.given_order;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    std::vector<Action>& row = order.emplace_back();
    for (const CellAction& a : rows[rank]) {
      const int placed = PlacedOf(schedule, a, static_cast<int>(rank), updated);
      row.push_back({static_cast<int32_t>(a.microbatch),
                     static_cast<uint16_t>(std::min(placed, 65535)), a.kind, a.overlaps_next});
      any_update = any_update || a.kind == ActionKind::kUpdate;
      any_transfer = any_transfer || IsTransfer(a.kind);
    }
  }
  if (!any_update && schedule.flushes()) {
    for (int s = 0; s < schedule.placed_stages(); ++s) {
      order[static_cast<size_t>(schedule.placement[static_cast<size_t>(s)])].push_back(
          {0, static_cast<uint16_t>(s), ActionKind::kUpdate, false});
    }
  }
  schedule.body = order;
  if (!any_transfer) {
    order.clear();
    return schedule;
  }
  for (std::vector<Action>& body : schedule.body) {
    std::erase_if(body, [](const Action& a) { return IsTransfer(a.kind); });
  }
  return schedule;
}

}  // namespace pipelag
