// Job files: a JSON object whose keys are the names of flags. Must not know what a flag is for.
#include "tools/job_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/json_file.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;

/// A number or a text as it would stand behind the flag.
std::string ScalarText(const Json& value, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return value.dump();
  throw Error(fmt::format("{}: expected a text or a number, not {}", place, value.type_name()));
}

void AddKey(const std::string& key, const Json& value, const std::string& place,
            std::map<std::string, Given>& job) {
  if (value.is_boolean()) {
    if (value.get<bool>()) job[key] = {{}, false, place};
    return;
  }
  Given given{{}, value.is_array(), place};
  if (value.is_array()) {
    if (value.empty()) throw Error(fmt::format("{}: the list is empty", place));
    for (size_t i = 0; i < value.size(); ++i) {
      given.items.push_back(ScalarText(value[i], fmt::format("{}/{}", place, i)));
    }
  } else {
    given.items.push_back(ScalarText(value, place));
  }
  job[key] = std::move(given);
}

}  // namespace

std::map<std::string, Given> JobOf(const Json& object, const std::string& place,
                                   std::span<const std::string> known) {
  if (!object.is_object()) {
    throw Error(fmt::format("{}: a job is a JSON object, not {}",
                            place.ends_with(": ") ? place + "/" : place, object.type_name()));
  }
  std::map<std::string, Given> job;
  CheckKeys(object, {known.begin(), known.end()}, place);
  for (const auto& [key, value] : object.items()) {
    const std::string at = fmt::format("{}/{}", place, key);
    AddKey(key, value, at, job);
  }
  return job;
}

std::map<std::string, Given> ReadJob(const std::filesystem::path& file,
                                     std::span<const std::string> known) {
  return JobOf(ReadJson(file), file.string() + ": ", known);
}

}  // namespace pipelag
