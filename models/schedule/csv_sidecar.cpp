#include "models/schedule/csv_sidecar.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/json_file.h"
#include "models/schedule/text.h"

namespace pipelag {
namespace {

constexpr int64_t kMostMicrobatches = int64_t{1} << 30;

std::optional<WeightPolicy> PolicyFromName(std::string_view name) {
  for (const WeightPolicy policy :
       {WeightPolicy::kFlush, WeightPolicy::kStashed, WeightPolicy::kVerticalSync,
        WeightPolicy::kDoubleBuffered, WeightPolicy::kLatest}) {
    if (PolicyName(policy) == name) return policy;
  }
  return std::nullopt;
}

constexpr std::string_view kPurposes[] = {"replicas", "weights", "norm", "barrier", "shared"};

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
  if (!value.is_number_integer() || value < 1 || value > kMostMicrobatches) {
    throw Error(fmt::format("{}: /{} is not a whole number from 1 to {}: {}", file_name, key,
                            kMostMicrobatches, value.dump()));
  }
  return value.get<int>();
}

}  // namespace

void ReadSidecar(std::string_view text, const std::string& file_name, Schedule& schedule) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) throw Error(fmt::format("{}: is not a JSON object", file_name));
  CheckKeys(json, {"name", "policy", "streams", "microbatches", "groups"}, file_name + ": ");
  const auto policy = Key<std::string>(json, "policy", file_name);
  const std::optional<WeightPolicy> known = PolicyFromName(policy);
  if (!known) throw Error(fmt::format("{}: /policy: there is no policy '{}'", file_name, policy));
  schedule.policy = *known;
  schedule.name = Key<std::string>(json, "name", file_name);
  if (schedule.name.find('/') != std::string::npos) {
    throw Error(
        fmt::format("{}: /name: '{}' has a slash, and names files", file_name, schedule.name));
  }
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
    if (!groups[g].is_object()) {
      throw Error(fmt::format("{}: expected an object, not {}", place, ShowJson(groups[g])));
    }
    CheckKeys(groups[g], {"purpose", "stages"}, place);
    const auto purpose = Key<std::string>(groups[g], "purpose", place);
    const auto* const found = std::find(std::begin(kPurposes), std::end(kPurposes), purpose);
    if (found == std::end(kPurposes)) {
      throw Error(fmt::format("{}: there is no purpose '{}'", place, purpose));
    }
    schedule.groups.push_back({static_cast<CollectiveGroup::Purpose>(found - std::begin(kPurposes)),
                               Key<std::vector<int>>(groups[g], "stages", place)});
  }
}

bool IsSidecar(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() && json.contains("policy") && json.contains("groups");
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

}  // namespace pipelag
