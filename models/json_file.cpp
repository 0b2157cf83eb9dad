#include "models/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "models/error.h"
#include "models/file.h"
#include "models/names.h"

namespace pipelag {

nlohmann::json ReadJson(const std::filesystem::path& file) {
  return ParseJson(ReadFile(file), file.string());
}

nlohmann::json ParseJson(std::string_view text, std::string_view name) {
  using Json = nlohmann::json;
  if (text.empty()) throw Error(fmt::format("{}: is empty", name));
  std::vector<std::set<std::string>> open_objects;
  const auto refuse_second = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        throw Error(fmt::format("{}: the key \"{}\" stands twice in one object", name, key));
      }
    }
    return true;
  };
  try {
    return Json::parse(text, refuse_second);
  } catch (const Json::parse_error& error) {
    const bool ends = error.byte > text.size();
    throw Error(fmt::format("{}: not valid JSON {} byte {}", name,
                            ends ? "as it ends too early, after" : "at",
                            ends ? text.size() : error.byte));
  } catch (const Json::out_of_range&) {
    throw Error(fmt::format("{}: a number in it is too large to be held", name));
  }
}

void CheckKeys(const nlohmann::json& object, const std::vector<std::string_view>& known,
               const std::string& place) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw Error(fmt::format("{}/{}: unknown key; the nearest known one is '{}'", place, key,
                              Nearest(key, known)));
    }
  }
}

std::string ShowJson(const nlohmann::json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace pipelag
