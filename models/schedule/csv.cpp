// CSV files in PyTorch's form, and the JSON beside them for what a CSV cannot say.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/file.h"
#include "models/schedule/text.h"

namespace pipelag {
namespace {

constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr int64_t kLastStage = 65534;
constexpr int64_t kLastMicrobatch = int64_t{1} << 30;

std::optional<WeightPolicy> PolicyFromName(std::string_view name) {
  for (const WeightPolicy policy :
       {WeightPolicy::kFlush, WeightPolicy::kStashed, WeightPolicy::kVerticalSync,
        WeightPolicy::kDoubleBuffered, WeightPolicy::kLatest}) {
    if (PolicyName(policy) == name) return policy;
  }
  return std::nullopt;
}

constexpr std::string_view kPurposes[] = {"replicas", "weights", "norm", "barrier"};

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
    if (*kind > ActionKind::kAllReduce) {
      throw Bad("transfers are added by lowering, give the computation only");
    }
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

template <class T>
T Key(const nlohmann::json& object, const char* key, const std::string& file_name) {
  const auto entry = object.find(key);
  if (entry == object.end()) throw Error(fmt::format("{}: /{} is missing", file_name, key));
  try {
    return entry->get<T>();
  } catch (const nlohmann::json::exception&) {
    throw Error(fmt::format("{}: /{} has the wrong type: {}", file_name, key, entry->dump()));
  }
}

int PositiveKey(const nlohmann::json& object, const char* key, const std::string& file_name) {
  const auto value = Key<nlohmann::json>(object, key, file_name);
  if (!value.is_number_integer() || value < 1 || value > kLastMicrobatch) {
    throw Error(fmt::format("{}: /{} is not a whole number from 1 to {}: {}", file_name, key,
                            kLastMicrobatch, value.dump()));
  }
  return value.get<int>();
}

void ReadSidecar(std::string_view text, const std::string& file_name, Schedule& schedule) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) throw Error(fmt::format("{}: is not a JSON object", file_name));
  const auto policy = Key<std::string>(json, "policy", file_name);
  const std::optional<WeightPolicy> known = PolicyFromName(policy);
  if (!known) throw Error(fmt::format("{}: /policy: there is no policy '{}'", file_name, policy));
  schedule.policy = *known;
  schedule.name = Key<std::string>(json, "name", file_name);
  schedule.streams = PositiveKey(json, "streams", file_name);
  schedule.microbatches = PositiveKey(json, "microbatches", file_name);
  if (schedule.microbatches % schedule.streams != 0) {
    throw Error(fmt::format("{}: /microbatches {} cannot be shared by /streams {}", file_name,
                            schedule.microbatches, schedule.streams));
  }
  const auto groups = Key<nlohmann::json>(json, "groups", file_name);
  if (!groups.is_array()) throw Error(fmt::format("{}: /groups is not a list", file_name));
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::string place = fmt::format("{}: /groups/{}", file_name, g);
    const auto purpose = Key<std::string>(groups[g], "purpose", place);
    const auto* const found = std::find(std::begin(kPurposes), std::end(kPurposes), purpose);
    if (found == std::end(kPurposes)) {
      throw Error(fmt::format("{}: there is no purpose '{}'", place, purpose));
    }
    schedule.groups.push_back({static_cast<CollectiveGroup::Purpose>(found - std::begin(kPurposes)),
                               Key<std::vector<int>>(groups[g], "stages", place)});
  }
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

/// Whether a text beside a CSV is ours.
bool IsSidecar(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() && json.contains("policy") && json.contains("groups");
}

int PlacedOf(const Schedule& schedule, const CellAction& a, int rank) {
  const auto slice = static_cast<int>(a.stage);
  if (HasMicrobatch(a.kind)) {
    return schedule.PlacedStage(schedule.StreamOfMicrobatch(a.microbatch), slice);
  }
  if (a.kind == ActionKind::kAllReduce) return slice;
  for (int stream = 0; stream < schedule.streams; ++stream) {
    const int placed = schedule.PlacedStage(stream, slice);
    if (placed < schedule.placed_stages() &&
        schedule.placement[static_cast<size_t>(placed)] == rank) {
      return placed;
    }
  }
  return slice;
}

}  // namespace

std::string ToCsv(const Schedule& schedule) {
  const bool bare = CsvIsComplete(schedule);
  std::string out;
  for (const auto& body : schedule.body) {
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

std::string ToCsvSidecar(const Schedule& schedule) {
  nlohmann::ordered_json json;
  json["name"] = schedule.name;
  json["policy"] = PolicyName(schedule.policy);
  json["streams"] = schedule.streams;
  json["microbatches"] = schedule.microbatches;
  json["groups"] = nlohmann::ordered_json::array();
  for (const CollectiveGroup& group : schedule.groups) {
    json["groups"].push_back(
        {{"purpose", kPurposes[static_cast<size_t>(group.purpose)]}, {"stages", group.stages}});
  }
  return json.dump(1) + '\n';
}

void WriteCsv(const Schedule& schedule, const std::filesystem::path& file) {
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
  WriteFile(file, ToCsv(schedule));
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
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    std::vector<Action>& body = schedule.body.emplace_back();
    for (const CellAction& a : rows[rank]) {
      const int placed = PlacedOf(schedule, a, static_cast<int>(rank));
      body.push_back({static_cast<int32_t>(a.microbatch),
                      static_cast<uint16_t>(std::min(placed, 65535)), a.kind, a.overlaps_next});
      any_update = any_update || a.kind == ActionKind::kUpdate;
    }
  }
  if (!any_update && schedule.flushes()) {
    for (int s = 0; s < schedule.placed_stages(); ++s) {
      schedule.body[static_cast<size_t>(schedule.placement[static_cast<size_t>(s)])].push_back(
          {0, static_cast<uint16_t>(s), ActionKind::kUpdate, false});
    }
  }
  return schedule;
}

}  // namespace pipelag
